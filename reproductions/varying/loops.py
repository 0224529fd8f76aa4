# SPDX-License-Identifier: Apache-2.0
"""Loops in shard_map: results that vary, and carries that become varying."""

import numpy as np

import jax
from jax import lax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

try:
  from jax import shard_map
except ImportError:  # jax 0.6.0
  from jax.experimental.shard_map import shard_map

REPORT = "jax#40823"

_MESH = Mesh(np.array(jax.devices()[:2]), ("x",))


def _claimed(f, x, returned):
  """out_specs=P() is refused for `f`, which returns `returned`."""
  claim = shard_map(f, mesh=_MESH, in_specs=P("x"), out_specs=P())
  try:
    jax.make_jaxpr(claim)(x)
  except ValueError as e:
    assert "out_specs" in str(e), e
    return "out_specs=P() is refused"
  raise AssertionError(
      f"out_specs=P() is accepted though devices return {returned}")


def while_result():
  """while_loop's result varies over what its predicate does"""
  f = lambda x: lax.while_loop(lambda c: c < x[0], lambda c: c + 1., 0.)
  return _claimed(f, jnp.array([1., 3.]), "1 and 3")


def fori_bound():
  """fori_loop's result varies over what its bound does"""
  f = lambda x: lax.fori_loop(0, x[0], lambda i, c: c + 1, 0)
  return _claimed(f, jnp.array([1, 3]), "1 and 3")


def scan_carry():
  """scan takes a carry that starts replicated and becomes varying"""
  f = lambda x: lax.scan(lambda c, a: (c + a, c), 0., x)[1]
  f = shard_map(f, mesh=_MESH, in_specs=P("x"), out_specs=P("x"))
  out = jax.jit(f)(jnp.arange(4.))
  assert out.tolist() == [0., 0., 0., 2.], out
  return "runs without an annotation"


def while_carry():
  """while_loop takes a carry that starts replicated and becomes varying"""
  body = lambda s: (s[0] + 1, s[1] + jnp.sum(s[2]), s[2])
  f = lambda x: lax.while_loop(lambda s: s[0] < 2, body, (0, 0., x))[1][None]
  f = shard_map(f, mesh=_MESH, in_specs=P("x"), out_specs=P("x"))
  out = jax.jit(f)(jnp.arange(4.))
  assert out.tolist() == [2., 10.], out
  return "runs without an annotation"
