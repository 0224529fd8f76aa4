# SPDX-License-Identifier: Apache-2.0
"""Whether from_dlpack copies, shares and places as it says (jax#27606)."""
import jax
import jax.numpy as jnp
import numpy as np

REPORT = "jax#27606"


def _aligned(n):
  room = np.zeros(4 * n + 64, np.uint8)
  start = -room.ctypes.data % 64
  return room[start:start + 4 * n].view(np.float32)


def copy():
  """from_dlpack(x, copy=True) has memory of its own"""
  x = _aligned(1024)
  y = jnp.from_dlpack(x, copy=True)
  x[:] = 1
  assert not y.any(), "a later write to x shows in the copy"
  return "copied"


def no_copy():
  """from_dlpack(x, copy=False) shares memory or is refused"""
  x = _aligned(1024)[1:]
  try:
    y = jnp.from_dlpack(x, copy=False)
  except ValueError as e:
    assert "cop" in str(e), f"ValueError: {e}"
    return str(e)[:60]
  x[:] = 1
  assert y.all(), "copied without a word"
  return "shared"


def device():
  """an array on the second device comes back on it"""
  x = jax.device_put(np.zeros(8, np.float32), jax.devices()[1])
  y = jnp.from_dlpack(x)
  assert y.devices() == x.devices(), f"placed on {y.devices()}"
  return "placed there"


def strided():
  """from_dlpack of every second element"""
  try:
    y = jnp.from_dlpack(_aligned(16)[::2])
  except Exception as e:
    raise AssertionError(f"{type(e).__name__}: {str(e)[:100]}") from e
  return str(y.shape)


def device_that_is_not_there():
  """x.__dlpack__(dl_device=) of a missing device is a BufferError"""
  try:
    jnp.arange(3.).__dlpack__(dl_device=(1, 1000))  # the CPU number 1000
  except BufferError as e:
    return str(e)[:60]
  except RuntimeError as e:
    raise AssertionError(f"{type(e).__name__}: {str(e)[:100]}") from e
  raise AssertionError("exported")
