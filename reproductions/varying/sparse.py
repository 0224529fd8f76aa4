# SPDX-License-Identifier: Apache-2.0
"""Results of sparse operations in shard_map that are taken for replicated."""
import jax
import jax.numpy as jnp
from jax.experimental import sparse
from jax.sharding import Mesh, PartitionSpec as P
import numpy as np

try:
  from jax import shard_map
except ImportError:  # jax 0.6.0
  from jax.experimental.shard_map import shard_map

REPORT = "shard_map: sparse"
_MESH = Mesh(np.array(jax.devices()[:4]), ("x",))


def _must_refuse(f, in_specs, *args):
  claim = shard_map(f, mesh=_MESH, in_specs=in_specs, out_specs=P())
  try:
    out = jax.jit(claim)(*args)
  except ValueError as e:
    assert "replicat" in str(e), e
    return "the claim P() is refused"
  shards = [np.asarray(s.data).tolist() for s in out.addressable_shards]
  raise AssertionError(f"P() accepted; the devices hold {shards}")


_INDICES = np.array([[0, 0], [1, 2], [2, 1]])
_DATA = np.arange(1, 13, dtype=np.float32).reshape(4, 3)


def _bcoo(data):
  return sparse.BCOO((data, _INDICES), shape=(3, 3))


def bcoo_todense():
  """out_specs=P() of a BCOO matrix that differs per device, made dense"""
  return _must_refuse(lambda d: _bcoo(d[0]).todense(), P("x"), _DATA)


def bcoo_matvec():
  """out_specs=P() of BCOO @ vector, the matrix differing per device"""
  v = np.ones(3, np.float32)
  return _must_refuse(lambda d: _bcoo(d[0]) @ v, P("x"), _DATA)


def gradient_of_a_shared_vector():
  """The gradient of a shared vector that BCOO matrices multiply"""
  f = shard_map(lambda d, v: (_bcoo(d[0]) @ v)[None], mesh=_MESH,
                in_specs=(P("x"), P()), out_specs=P("x"))
  v = np.ones(3, np.float32)
  got = jax.grad(lambda v: jnp.sum(jax.jit(f)(_DATA, v)))(v)
  want = np.array([_DATA[:, 0].sum(), _DATA[:, 2].sum(), _DATA[:, 1].sum()])
  assert np.allclose(got, want), f"{want} is right, got {got}"
  return "summed over the devices"
