# SPDX-License-Identifier: Apache-2.0
"""The gradient of an all_to_all that moves an axis."""
import jax
from jax import lax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec as P
import numpy as np

REPORT = "jax#28193"


def all_to_all():
  """the gradient of all_to_all whose split and concat axes differ"""
  try:
    from jax import shard_map
  except ImportError:
    from jax.experimental.shard_map import shard_map
  mesh = Mesh(np.array(jax.devices()[:2]), ("x",))
  x = np.arange(8, dtype=np.float32).reshape(4, 2)
  w = np.cos(x)
  move = lambda x, split, concat: shard_map(
      lambda x: lax.all_to_all(x, "x", split, concat), mesh=mesh,
      in_specs=P("x"), out_specs=P("x"))(x)
  try:
    got = jax.jit(jax.grad(lambda x: jnp.sum(move(x, 0, 1) * w)))(x)
  except ValueError as e:
    raise AssertionError(f"refused: {str(e)[:50]}") from e
  assert np.allclose(got, move(w, 1, 0)), f"wrong: {got[0]}"
  return "what went to a device comes back from it"
