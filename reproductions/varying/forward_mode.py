# SPDX-License-Identifier: Apache-2.0
"""Forward-mode differentiation inside shard_map (jax#28193)."""
import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec as P
import numpy as np

try:
  from jax import shard_map
except ImportError:
  from jax.experimental.shard_map import shard_map

REPORT = "jax#28193"


_MESH = Mesh(np.array(jax.devices()[:4]), ("x",))


def _same(f, x, want):
  """`f` of `x`, split over x, is `want`."""
  run = shard_map(f, mesh=_MESH, in_specs=P("x"), out_specs=P("x"))
  got = jax.jit(run)(x)
  np.testing.assert_allclose(got, want, rtol=1e-5)
  return f"{got[:3]}, as without shard_map"


def jvp_of_scan():
  """jvp of a loop takes a tangent that does not vary"""
  x = jnp.arange(1., 9.)
  loop = lambda x: jax.lax.fori_loop(0, 2, lambda i, c: c * c, x)
  f = lambda x: jax.jvp(loop, (x,), (jnp.ones(x.shape),))[1]
  return _same(f, x, 4 * x ** 3)


def jvp_varying_direction():
  """jvp takes a direction that varies where the point does not"""
  v = jnp.arange(1., 9.)
  f = lambda v: jax.jvp(jax.nn.relu, (jnp.ones(v.shape),), (v,))[1]
  return _same(f, v, v)


def jvp_primal_output():
  """jvp's primal output is replicated if the primal is, in a custom_jvp too"""
  w, v = jnp.ones(()), jnp.arange(1., 9.)
  f = lambda w, v: jax.jvp(jax.nn.silu, (w,), (v[0],))[0]
  got = jax.jit(shard_map(
      f, mesh=_MESH, in_specs=(P(), P("x")), out_specs=P()))(w, v)
  np.testing.assert_allclose(got, jax.nn.silu(w), rtol=1e-5)
  return f"{got}, as without shard_map"


def jvp_tangent_through_jit():
  """a tangent that varies is not called replicated when it leaves a jit"""
  f = lambda v: jax.jvp(jnp.sin, (1.,), (v[0],))[1]
  g = shard_map(f, mesh=_MESH, in_specs=P("x"), out_specs=P())
  try:
    got = jax.jit(g)(jnp.arange(1., 5.))
  except ValueError as e:
    assert "replicat" in str(e), e
    return "refused with out_specs=P()"
  raise AssertionError(f"accepted, though the devices differ: {got}")
