# SPDX-License-Identifier: Apache-2.0
"""The gradient of a checkpointed loop in shard_map, without jit."""
import jax
from jax import lax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec as P
import numpy as np

try:
  from jax import shard_map
except ImportError:  # up to 0.6.0
  from jax.experimental.shard_map import shard_map

REPORT = "jax#27664"


def checkpointed_loop():
  """the gradient of a checkpointed loop, without jit"""
  f = lambda x: lax.fori_loop(0, 3, lambda i, y: jnp.sin(y * x), x)
  x = np.linspace(.5, 1.5, 4, dtype=np.float32)
  mesh = Mesh(np.array(jax.devices()[:4]), ("x",))
  g = shard_map(f, mesh=mesh, in_specs=P("x"), out_specs=P("x"))
  try:
    got = jax.grad(lambda x: jax.checkpoint(g)(x).sum())(x)
  except NotImplementedError as e:
    raise AssertionError(f"refused: {str(e)[:60]}") from e
  want = jax.grad(lambda x: f(x).sum())(x)
  assert np.allclose(got, want, rtol=1e-5), got
  return "that of the loop on one device"
