# SPDX-License-Identifier: Apache-2.0
"""Structures inside shard_map: lineax#185 and diffrax#765 without them."""
import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec as P
import numpy as np

REPORT = "lineax#185"


def structures():
  """in shard_map, a structure of eval_shape's sharding equals one without"""
  mesh = Mesh(np.array(jax.devices()[:4]), ("x",))
  seen = []

  def solve(x):
    got = jax.eval_shape(lambda x: 2 * x, x)
    got = jax.ShapeDtypeStruct(got.shape, got.dtype, sharding=got.sharding)
    seen.append(got == jax.ShapeDtypeStruct(x.shape, x.dtype))
    return x

  jax.shard_map(solve, mesh=mesh, in_specs=P("x"), out_specs=P("x"))(
      jnp.arange(4.))
  assert seen == [True], "not equal, though of the same shape and dtype"
  return "equal"


def tables():
  """jnp.interp and searchsorted in a shard_map over one of two mesh axes"""
  mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("x", "y"))
  xs = np.linspace(0., 2., 5, dtype=np.float32)

  def look_up(x):
    return jnp.interp(x, xs, xs ** 2) + jnp.searchsorted(xs, x)

  x = np.linspace(.1, 1.9, 6, dtype=np.float32)
  run = jax.shard_map(look_up, mesh=mesh, axis_names={"x"}, in_specs=P("x"),
                      out_specs=P("x"))
  try:
    got = jax.jit(run)(x)
  except AssertionError as e:
    raise AssertionError(f"refused: {str(e)[:50]}") from e
  assert np.allclose(got, np.interp(x, xs, xs ** 2) + np.searchsorted(xs, x))
  return "as without shard_map"
