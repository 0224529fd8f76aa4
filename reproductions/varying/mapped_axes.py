# SPDX-License-Identifier: Apache-2.0
"""Collectives over an axis of vmap in shard_map."""
import jax
from jax import lax
from jax.sharding import Mesh, PartitionSpec as P
import numpy as np

REPORT = "shard_map: axes of vmap"


def batch_mean():
  """lax.pmean over an axis that vmap names, inside shard_map"""
  try:
    from jax import shard_map
  except ImportError:
    from jax.experimental.shard_map import shard_map
  mesh = Mesh(np.array(jax.devices()[:4]), ("x",))
  center = jax.vmap(lambda v: v - lax.pmean(v, "batch"), axis_name="batch")
  x = np.arange(24, dtype=np.float32).reshape(8, 3)
  try:
    got = jax.jit(shard_map(center, mesh=mesh, in_specs=P("x"),
                            out_specs=P("x")))(x)
  except (AssertionError, KeyError) as e:
    raise AssertionError(f"refused: {type(e).__name__} {e}") from e
  want = np.concatenate([b - b.mean(0) for b in np.split(x, 4)])
  assert np.allclose(got, want), got
  return "each device's batch is centred"
