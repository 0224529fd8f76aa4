# SPDX-License-Identifier: Apache-2.0
"""An array on the host, with indices and ones (jax#34041)."""

import jax
import jax.numpy as jnp
import numpy as np

REPORT = "jax#34041"


def _on_host():
  sharding = jax.sharding.SingleDeviceSharding(
      jax.devices()[0], memory_kind="pinned_host")
  return jax.device_put(np.arange(4, dtype=np.float32), sharding)


def indexed():
  """An array on the host, indexed with an array"""
  found = _on_host()[np.array([2, 1])]
  np.testing.assert_array_equal(found, [2, 1])
  return str(np.asarray(found))


def scaled():
  """An array on the host, times ones"""
  found = jax.jit(lambda h: h * jnp.ones(4))(_on_host())
  np.testing.assert_array_equal(found, np.arange(4))
  return str(np.asarray(found))


def two_places():
  """An array on the host, times one that was put on the device"""
  device = jax.device_put(np.ones(4, np.float32), jax.devices()[0])
  try:
    _on_host() * device
  except ValueError as e:
    assert "jax.device_put" in str(e), f"no way out in: {e}"
  return "the error says what to write"
