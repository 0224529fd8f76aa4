# SPDX-License-Identifier: Apache-2.0
"""Derivatives in shard_map with check_rep=True."""
import jax
from jax.experimental.shard_map import shard_map
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec as P
import numpy as np

REPORT = "jax#27664"


def _shard_map(f, in_specs, out_specs):
  mesh = Mesh(np.array(jax.devices()[:2]), ('i',))
  return shard_map(f, mesh=mesh, in_specs=in_specs, out_specs=out_specs)


def hessian():
  """jax.hessian runs in shard_map with the check on"""
  f = _shard_map(lambda x: jax.hessian(lambda y: jnp.sum(y ** 3))(x),
                 P('i'), P('i'))
  try:
    h = f(jnp.arange(4.))
  except TypeError as e:
    raise AssertionError(str(e)[:60]) from None
  assert np.allclose(h, [[0, 0], [0, 6], [12, 0], [0, 18]]), str(h)
  return "the right values"
