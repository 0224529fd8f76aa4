# SPDX-License-Identifier: Apache-2.0
"""Whether a device= that is none is refused with what a device is."""
import jax.numpy as jnp

REPORT = "jax#27606"


def _refused(function):
  try:
    function()
  except TypeError as e:
    assert "expected device to be" in str(e), str(e)
    return str(e)[:70]
  except Exception as e:
    raise AssertionError(f"{type(e).__name__}: {str(e)[:150]}") from e
  raise AssertionError("accepted")


def zeros():
  """zeros(3, device="cpu") says what a device is"""
  return _refused(lambda: jnp.zeros(3, device="cpu"))


def asarray():
  """asarray([1.], device="cpu") says what a device is"""
  return _refused(lambda: jnp.asarray([1.], device="cpu"))
