# SPDX-License-Identifier: Apache-2.0
"""Primitives without a replication rule."""
import jax
from jax import lax
from jax.experimental.shard_map import shard_map
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec as P
import numpy as np

REPORT = "jax#27664"


def _shard_map(f, in_specs, out_specs):
  mesh = Mesh(np.array(jax.devices()[:2]), ('i',))
  return shard_map(f, mesh=mesh, in_specs=in_specs, out_specs=out_specs)


def checkpoint_name():
  """checkpoint_name runs in shard_map with the check on"""
  from jax.ad_checkpoint import checkpoint_name as named
  f = _shard_map(lambda x: named(jnp.sin(x), 'sin'), P('i'), P('i'))
  try:
    y = f(jnp.arange(4.))
  except NotImplementedError as e:
    raise AssertionError(str(e)[:60]) from None
  assert np.allclose(y, np.sin(np.arange(4.))), str(y)
  return "the right values"


def sparse_matrix():
  """a sparse matrix product runs in shard_map with the check on"""
  from jax.experimental import sparse
  f = _shard_map(lambda x: sparse.BCOO.fromdense(x, nse=8) @ jnp.ones(4),
                 P('i'), P('i'))
  try:
    y = f(jnp.arange(16.).reshape(4, 4))
  except NotImplementedError as e:
    raise AssertionError(str(e)[:60]) from None
  assert np.allclose(y, [6, 22, 38, 54]), str(y)
  return "the right values"


def random_number_of_each_device():
  """lax.rng_uniform is not taken to be the same on every device"""
  f = _shard_map(lambda: lax.rng_uniform(0., 1., (2,)), (), P())
  try:
    f()
  except ValueError as e:
    assert "out_specs" in str(e), f"ValueError: {e}"
    return "out_specs=P() refused"
  raise AssertionError("out_specs=P() accepted for lax.rng_uniform")
