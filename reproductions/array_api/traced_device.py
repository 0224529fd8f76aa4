# SPDX-License-Identifier: Apache-2.0
"""Whether code that reads x.device can be transformed (jax#26000)."""
import jax
import jax.numpy as jnp

REPORT = "jax#26000"


def _f(x):
  return jnp.sum(x * jnp.ones(3, device=x.device))


def _runs(function):
  try:
    return str(function(jnp.arange(3.)))
  except AttributeError as e:
    raise AssertionError(f"{type(e).__name__}: {str(e)[:150]}") from e


def jit():
  """ones(3, device=x.device) under jit"""
  return _runs(jax.jit(_f))


def grad():
  """ones(3, device=x.device) under grad"""
  return _runs(jax.grad(_f))


def vmap():
  """ones(3, device=x.device) under vmap"""
  return _runs(lambda x: jax.vmap(_f)(x[None] * jnp.ones((2, 3))))
