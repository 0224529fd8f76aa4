# SPDX-License-Identifier: Apache-2.0
"""vmap(..., spmd_axis_name=) of an unchecked shard_map that captures."""
import jax
from jax.sharding import Mesh, PartitionSpec as P
import numpy as np

REPORT = "jax#17874"


def captured_unchecked():
  """shard_map, its check off, closes over what vmap(spmd_axis_name=) maps"""
  try:
    from jax import shard_map
    off = {"check_vma": False}
  except ImportError:
    from jax.experimental.shard_map import shard_map
    off = {"check_rep": False}
  mesh = Mesh(np.array(jax.devices()[:4]), ("x",))

  def double(x):
    return shard_map(lambda: 2 * x, mesh=mesh, in_specs=(), out_specs=P(),
                     **off)()

  try:
    got = jax.vmap(double, spmd_axis_name="x")(np.arange(8.))
  except Exception as e:
    raise AssertionError(f"refused: {type(e).__name__} {e}") from e
  assert np.allclose(got, 2 * np.arange(8.)), got
  return "each device doubles its part"
