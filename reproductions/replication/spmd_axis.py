# SPDX-License-Identifier: Apache-2.0
"""vmap(spmd_axis_name=) of a shard_map, of what is mapped and what isn't."""
import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec as P
import numpy as np

REPORT = "jax#17874, jax#23476"


def mapped_meets_unmapped():
  """what vmap(spmd_axis_name=) maps is captured, and meets what it doesn't"""
  from jax.experimental.shard_map import shard_map
  mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("x", "y"))

  def example(scale, x, w):
    return shard_map(lambda x: jnp.sin(x * w) * scale, mesh=mesh,
                     in_specs=P("y"), out_specs=P("y"))(x)

  scales, xs = jnp.array([1., 2.]), jnp.arange(8.).reshape(2, 4)
  batch = jax.vmap(example, (0, 0, None), spmd_axis_name="x")
  try:
    got = jax.grad(lambda w: jnp.sum(batch(scales, xs, w)))(2.)
  except Exception as e:
    raise AssertionError(f"refused: {type(e).__name__} {e}") from e
  want = jnp.sum(jnp.cos(2. * xs) * xs * scales[:, None])
  assert np.allclose(got, want, rtol=1e-4), (got, want)
  return "and its gradient is summed over the batch"
