# SPDX-License-Identifier: Apache-2.0
"""Interpolation and search in branches of a shard_map."""
import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, PartitionSpec as P
import numpy as np

REPORT = "shard_map: searchsorted"


def interpolation_in_a_branch():
  """The gradient through jnp.interp in a branch that one device takes"""
  grid = np.linspace(-2., 2., 3, dtype=np.float32)

  def loss(w):
    def f(w):
      first = lax.axis_index("x") == 0
      return lax.cond(first, lambda: jnp.interp(w, grid, w), lambda: w)[None]
    mesh = Mesh(np.array(jax.devices()[:4]), ("x",))
    return jnp.sum(jax.shard_map(f, mesh=mesh, in_specs=P(),
                                 out_specs=P("x"))(w))

  w = np.array([.2, .5, .9], np.float32)
  want = jax.grad(lambda w: jnp.sum(jnp.interp(w, grid, w)) + 3 * jnp.sum(w))(w)
  got = jax.jit(jax.grad(loss))(w)
  assert np.allclose(got, want), f"the gradient is {want}, got {got}"
  return "the gradient of one device's interpolation and three others"
