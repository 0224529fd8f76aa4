"""lineax#185 and diffrax#765, without the libraries."""
import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec as P
import numpy as np

REPORT = "lineax#185"


def structures():
  """eval_shape's structure equals one that was written down, in shard_map"""
  mesh = Mesh(np.array(jax.devices()[:4]), ("x",))
  seen = []

  def solve(x):
    got = jax.eval_shape(lambda x: 2 * x, x)
    seen.append(got == jax.ShapeDtypeStruct(x.shape, x.dtype))
    return x

  jax.shard_map(solve, mesh=mesh, in_specs=P("x"), out_specs=P("x"))(
      jnp.arange(4.))
  assert seen == [True], "not equal, though of the same shape and dtype"
  return "equal"
