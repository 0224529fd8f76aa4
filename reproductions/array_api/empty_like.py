# SPDX-License-Identifier: Apache-2.0
"""Whether empty_like can be traced (jax#27606)."""
import jax
import jax.numpy as jnp

REPORT = "jax#27606"


def _traced(function):
  try:
    return f"an array of shape {jax.jit(function)().shape}"
  except Exception as e:
    raise AssertionError(f"{type(e).__name__}: {str(e)[:150]}") from e


def with_device():
  """empty_like(x, device=d) can be traced"""
  x, d = jnp.arange(8.), jax.devices()[0]
  return _traced(lambda: jnp.empty_like(x, device=d))


def of_committed_array():
  """empty_like(x) of a committed array x can be traced"""
  x = jax.device_put(jnp.arange(8.), jax.devices()[1])
  return _traced(lambda: jnp.empty_like(x))
