# SPDX-License-Identifier: Apache-2.0
"""vmap(..., spmd_axis_name=) of a shard_map that closes over the batch."""
import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec as P
import numpy as np

REPORT = "jax#17874, jax#23476"


def captured_batch():
  """shard_map closes over what vmap(..., spmd_axis_name=) maps"""
  try:
    from jax import shard_map
  except ImportError:
    from jax.experimental.shard_map import shard_map
  mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("x", "y"))

  def add(offset, state):
    inner = shard_map(jax.vmap(lambda part: offset + part), mesh=mesh,
                      in_specs=P("y"), out_specs=P("y"))
    return inner(state)

  offset, state = jnp.array([0., 1.]), jnp.ones((2, 4))
  try:
    got = jax.jit(jax.vmap(add, spmd_axis_name="x"))(offset, state)
  except Exception as e:
    raise AssertionError(f"refused: {type(e).__name__} {e}") from e
  assert np.allclose(got, [[1.] * 4, [2.] * 4]), got
  return "each device has its part of what is captured"
