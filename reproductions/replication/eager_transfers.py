# SPDX-License-Identifier: Apache-2.0
"""The gradient of device_put in shard_map, without jit."""
import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec as P
import numpy as np

REPORT = "jax#28193"


def device_put():
  """the gradient of device_put by a replicated argument, without jit"""
  try:
    from jax import shard_map
  except ImportError:
    from jax.experimental.shard_map import shard_map
  mesh = Mesh(np.array(jax.devices()[:4]), ("x",))
  f = shard_map(lambda x, w: x * jax.device_put(w), mesh=mesh,
                in_specs=(P("x"), P()), out_specs=P("x"))
  x = np.arange(4, dtype=np.float32)
  try:
    got = jax.grad(lambda w: jnp.sum(f(x, w)))(np.float32(2.))
  except (ValueError, NotImplementedError) as e:
    raise AssertionError(f"refused: {str(e)[:60]}") from e
  assert got == 6., got
  return "the sum over devices, 6"
