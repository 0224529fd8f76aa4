# SPDX-License-Identifier: Apache-2.0
"""Custom derivative rules inside shard_map (jax#28193)."""
import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec as P
import numpy as np

try:
  from jax import shard_map
except ImportError:
  from jax.experimental.shard_map import shard_map

REPORT = "jax#28193"

_X = jnp.arange(1., 9.)


def _same(f, want, w=1.):
  """`f(x, w)`, x split over the devices, is `want`."""
  mesh = Mesh(np.array(jax.devices()[:4]), ("x",))
  got = jax.jit(shard_map(f, mesh=mesh, in_specs=(P("x"), P()),
                          out_specs=P("x")))(_X, jnp.float32(w))
  np.testing.assert_allclose(got, want, rtol=1e-5)
  return f"{got[:3]}, as without shard_map"


def custom_jvp_constant_slope():
  """a custom_jvp rule may return a constant slope"""
  @jax.custom_jvp
  def f(x):
    return x * 1.
  f.defjvp(lambda p, t: (f(*p), jnp.ones(p[0].shape)))
  return _same(lambda x, w: x * jax.jvp(f, (x,), (x,))[1], _X)


def custom_vjp_constant_cotangent():
  """a custom_vjp backward rule may return a constant"""
  @jax.custom_vjp
  def f(x):
    return jnp.sum(x ** 2)
  f.defvjp(lambda x: (f(x), x.shape), lambda s, g: (jnp.ones(s),))
  return _same(lambda x, w: x * jax.vjp(f, x)[1](x[0])[0], _X)


def custom_vjp_replicated_parameter():
  """a custom_vjp gradient of a replicated parameter is summed"""
  @jax.custom_vjp
  def f(x, w):
    return jnp.sum(x * w)
  f.defvjp(lambda x, w: (f(x, w), (x, w)),
           lambda r, g: (None, jnp.sum(g * r[0])))
  def g(x, w):
    y, pull = jax.vjp(lambda w: f(x, w), w)
    return x * 0. + pull(y * 0. + 1.)[0]
  return _same(g, np.full(8, 36.), w=2.)
