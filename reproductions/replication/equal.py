# SPDX-License-Identifier: Apache-2.0
"""What all_gather returns, in shard_map with check_rep=True."""
import jax
from jax import lax
from jax.experimental.shard_map import shard_map
from jax.sharding import Mesh, PartitionSpec as P
import numpy as np

REPORT = "jax#27664"


def _shard_map(f, in_specs, out_specs):
  mesh = Mesh(np.array(jax.devices()[:4]), ('i',))
  return shard_map(f, mesh=mesh, in_specs=in_specs, out_specs=out_specs)


def all_gather_is_the_same_everywhere():
  """the result of all_gather may have out_specs=P()"""
  f = _shard_map(lambda x: lax.all_gather(x, 'i', tiled=True), P('i'), P())
  x = np.arange(8., dtype=np.float32)
  try:
    y = jax.jit(f)(x)
  except ValueError as e:
    raise AssertionError(str(e)[:120]) from None
  assert np.array_equal(y, x), str(y)
  return "accepted, and gathered"
