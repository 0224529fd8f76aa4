# SPDX-License-Identifier: Apache-2.0
"""Scaled products in shard_map that are taken for replicated."""
import jax
from jax.sharding import Mesh, PartitionSpec as P
import numpy as np

try:
  from jax import shard_map
except ImportError:  # jax 0.6.0
  from jax.experimental.shard_map import shard_map

REPORT = "shard_map: GPU primitives"


def sparse_product_of_cusparse():
  """out_specs=P() of cuSPARSE's product, the vector differing per device"""
  from jax.experimental.sparse import _lowerings
  i = np.arange(3, dtype=np.int32)
  x = np.ones((4, 3), np.float32)
  f = lambda x: _lowerings.coo_spmv_p.bind(
      np.ones(3, np.float32), i, i, x[0], transpose=False, shape=(3, 3))
  mesh = Mesh(np.array(jax.devices()[:4]), ("x",))
  claim = shard_map(f, mesh=mesh, in_specs=P("x"), out_specs=P())
  try:  # tracing is enough, and takes no GPU
    jax.jit(claim).trace(x)
  except ValueError as e:
    assert "replicat" in str(e), e
    return "the claim P() is refused"
  raise AssertionError("P() accepted for a value that differs per device")
