# SPDX-License-Identifier: Apache-2.0
"""The errors of compute_on (jax#27825)."""

import jax
import numpy as np

REPORT = "jax#27825"


def _on(compute_type, f):
  """`f` under a compute type, in the spelling that refuses another within."""
  from jax.experimental import compute_on
  if jax.__version_info__ < (0, 10, 1):
    return compute_on.compute_on(compute_type)(f)
  form = getattr(compute_on, "compute_on2", compute_on.compute_on)
  return form(f, compute_type=compute_type,
              out_memory_spaces=jax.memory.Space.Device)


def nesting_names_both_types():
  """Nesting compute_on with different types: the error names both"""
  inner = _on("device", lambda x: x * 2)
  outer = _on("device_host", lambda x: inner(x) + 1)
  try:
    jax.jit(outer)(np.float32(0))
  except (NotImplementedError, ValueError) as e:
    assert "'device_host'" in str(e) and "'device'" in str(e), f"only: {e}"
    return "the error names both types"
  raise AssertionError("no error")


def same_type_nests():
  """compute_on within compute_on of the same type"""
  inner = _on("device_host", lambda x: x * 2)
  outer = _on("device_host", lambda x: inner(x) + 1)
  try:
    lowered = jax.jit(outer).lower(np.float32(2))
  except ValueError as e:
    raise AssertionError(f"ValueError: {e}") from e
  if jax.__version_info__[:3] == (0, 10, 1):
    return "is lowered"  # the CPU of this release places no results
  out = lowered.compile()(np.float32(2))
  assert out == 5, f"got {out}"
  return "runs"


def not_a_function():
  """compute_on of what is not a function says what it expected"""
  try:
    _on("device_host", 3)(np.float32(0))
  except TypeError as e:
    assert "compute_on" in str(e), f"TypeError: {e}"
    return "the error names compute_on and what came"
  raise AssertionError("no error")
