# SPDX-License-Identifier: Apache-2.0
"""A sum that is scattered over one axis of a mesh whose other is Explicit."""
import jax
from jax import lax
from jax.sharding import AxisType, PartitionSpec as P
import numpy as np

REPORT = "jax#28193"


def scattered():
  """psum_scatter over one axis of a mesh whose other axis is Explicit"""
  mesh = jax.make_mesh((2, 2), ("x", "y"),
                       axis_types=(AxisType.Auto, AxisType.Explicit))
  x = np.arange(16, dtype=np.float32).reshape(4, 4)
  run = jax.shard_map(lambda x: lax.psum_scatter(x, "x"), mesh=mesh,
                      axis_names={"x"}, in_specs=P("x"), out_specs=P("x"))
  with jax.set_mesh(mesh):
    moved = jax.device_put(x, jax.NamedSharding(mesh, P(None, "y")))
    try:
      got = jax.jit(run)(moved)
    except (AssertionError, ValueError) as e:
      raise AssertionError(f"refused: {str(e)[:50]}") from e
  assert np.allclose(got, x.reshape(2, 2, 4).sum(0).ravel()), got
  return "the sum, scattered"
