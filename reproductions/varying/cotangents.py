# SPDX-License-Identifier: Apache-2.0
"""Gradients and derivatives inside shard_map (jax#28193)."""
import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec as P
import numpy as np

try:
  from jax import shard_map
except ImportError:
  from jax.experimental.shard_map import shard_map

REPORT = "jax#28193"


def _same(f, x, want):
  """`f` of `x`, split over the devices, is `want`."""
  mesh = Mesh(np.array(jax.devices()[:4]), ("x",))
  f = shard_map(f, mesh=mesh, in_specs=P("x"), out_specs=P("x"))
  got = jax.jit(f)(x)
  np.testing.assert_allclose(got, want, rtol=1e-5)
  return f"{got[:3]}, as without shard_map"


def value_and_grad():
  """value_and_grad works inside shard_map"""
  x = jnp.arange(1., 9.)
  f = lambda x: jax.value_and_grad(lambda x: jnp.sum(x ** 2))(x)[1]
  return _same(f, x, 2 * x)


def hessian():
  """hessian works inside shard_map"""
  x = jnp.arange(1., 5.)
  f = lambda x: jax.hessian(lambda x: jnp.sum(x ** 3))(x)[0]
  return _same(f, x, 6 * x)


def vjp():
  """the function that vjp returns takes 1.0 or jnp.ones(())"""
  x = jnp.arange(1., 9.)
  def f(x):
    _, pull = jax.vjp(lambda x: jnp.sum(x ** 2), x)
    return pull(1.0)[0] + pull(jnp.ones(()))[0]
  return _same(f, x, 4 * x)


def linear_transpose():
  """linear_transpose takes a cotangent that does not vary"""
  x = jnp.arange(1., 9.)
  f = lambda x: x * jax.linear_transpose(
      lambda y: 3. * y, x)(jnp.ones(x.shape))[0]
  return _same(f, x, 3 * x)


def linearize():
  """the function that linearize returns takes a tangent that does not vary"""
  x = jnp.arange(1., 9.)
  f = lambda x: jax.linearize(jnp.sin, x)[1](jnp.ones(x.shape))
  return _same(f, x, np.cos(x))
