# SPDX-License-Identifier: Apache-2.0
"""The compute type on each operation of compute_on (jax#27825)."""

import jax
from jax.experimental.compute_on import compute_on
import jax.numpy as jnp
import numpy as np

REPORT = "jax#27825"


def _unmarked(f, operation):
  """The lines with `operation` that lack the compute type."""
  if jax.__version_info__ < (0, 11, 1):
    f = compute_on("device_host")(f)
  else:
    f = compute_on(f, compute_type="device_host",
                   out_memory_spaces=jax.memory.Space.Device)
  text = jax.jit(f).lower(np.ones(4, np.float32)).as_text()
  return [line.strip() for line in text.splitlines()
          if operation in line and "_xla_compute_type" not in line]


def power():
  """x ** 3 under compute_on: both multiplications have the compute type"""
  found = _unmarked(lambda x: x ** 3, "stablehlo.multiply")
  assert not found, f"without the compute type: {found}"
  return "every multiplication has it"


def argmax():
  """argmax under compute_on: the call of its rule has the compute type"""
  found = _unmarked(lambda x: jnp.argmax(x), "call @argmax")
  assert not found, f"without the compute type: {found}"
  return "the call has it"
