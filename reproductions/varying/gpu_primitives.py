# SPDX-License-Identifier: Apache-2.0
"""Scaled products in shard_map that are taken for replicated."""
import jax
from jax.sharding import Mesh, PartitionSpec as P
import numpy as np

REPORT = "shard_map: GPU primitives"


def _shard_map(f, in_specs, out_specs):
  try:
    from jax import shard_map
  except ImportError:
    from jax.experimental.shard_map import shard_map
  mesh = Mesh(np.array(jax.devices()[:4]), ("x",))
  return jax.jit(shard_map(f, mesh=mesh, in_specs=in_specs,
                           out_specs=out_specs))


def sparse_product_of_cusparse():
  """out_specs=P() of cuSPARSE's product, the vector differing per device"""
  from jax.experimental.sparse import _lowerings
  i = np.arange(3, dtype=np.int32)
  x = np.ones((4, 3), np.float32)
  f = lambda x: _lowerings.coo_spmv_p.bind(
      np.ones(3, np.float32), i, i, x[0], transpose=False, shape=(3, 3))
  try:  # tracing is enough, and takes no GPU
    _shard_map(f, P("x"), P()).trace(x)
  except ValueError as e:
    assert "replicat" in str(e), e
    return "the claim P() is refused"
  raise AssertionError("P() accepted for a value that differs per device")
