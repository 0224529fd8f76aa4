# SPDX-License-Identifier: Apache-2.0
"""Types stated in the program (asked for in jax#28193)."""
import jax
import jax.numpy as jnp

REPORT = "jax#28193"


def check_shapes():
  """jax.debug.check_shapes states shapes, dtypes and varying axes"""
  check = getattr(jax.debug, "check_shapes", None)
  assert check is not None, "jax.debug has no check_shapes"
  x = check(jnp.ones((4, 8)), "f32[4,_]")
  try:
    check({"w": x}, {"w": "f32[8,4]"})
  except TypeError as e:
    assert "tree['w']" in str(e), e
    return str(e).splitlines()[1].strip()
  raise AssertionError("a wrong shape was accepted")
