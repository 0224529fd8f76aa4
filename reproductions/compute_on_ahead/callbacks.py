# SPDX-License-Identifier: Apache-2.0
"""Callbacks and symbolic sizes under compute_on (jax#27825)."""

import jax
from jax.experimental.compute_on import compute_on
import numpy as np

REPORT = "jax#27825"


def _host(f):
  """`f` on the host, in the spelling of this release."""
  if jax.__version_info__ < (0, 11, 1):
    return compute_on("device_host")(f)
  return compute_on(f, compute_type="device_host",
                    out_memory_spaces=jax.memory.Space.Device)


def callback():
  """jax.debug.callback under compute_on carries the compute type"""
  def f(x):
    jax.debug.callback(lambda x: None, x)
    return x
  text = jax.jit(_host(f)).lower(np.float32(0)).as_text()
  line, = [l for l in text.splitlines() if "callback" in l and "call @" in l
           or "python" in l]
  assert '_xla_compute_type = "host"' in line, "it has no compute type"
  return "it has the compute type"


def symbolic_size():
  """compute_on exported with a symbolic size, and called"""
  from jax import export
  n, = export.symbolic_shape("n")
  exported = export.export(jax.jit(_host(lambda x: x * 2)))(
      jax.ShapeDtypeStruct((n,), np.float32))
  out = exported.call(np.ones(3, np.float32))
  np.testing.assert_array_equal(out, [2, 2, 2])
  return "the result"
