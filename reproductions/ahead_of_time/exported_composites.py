# SPDX-License-Identifier: Apache-2.0
"""lax.composite in a function that is exported for two platforms."""
import jax
import numpy as np

REPORT = "jax#40486"


def two_platforms():
  """export of a lax.composite for two platforms"""
  from jax import export
  f = jax.lax.composite(lambda x: x + 1, "my.increment")
  x = np.arange(3, dtype=np.float32)
  try:
    exported = export.export(jax.jit(f), platforms=("cpu", "tpu"))(x)
  except ValueError as e:
    raise AssertionError(str(e)[:90]) from e
  out = exported.call(x)
  assert np.array_equal(out, x + 1), out
  return f"{out}"
