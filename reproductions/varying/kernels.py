# SPDX-License-Identifier: Apache-2.0
"""Pallas kernels in shard_map whose results are not declared."""
import jax
from jax import lax
from jax.experimental import pallas as pl
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec as P
import numpy as np

try:
  from jax import shard_map
except ImportError:  # jax 0.6.0
  from jax.experimental.shard_map import shard_map

REPORT = "shard_map: Pallas kernels"
_MESH = Mesh(np.array(jax.devices()[:4]), ("x",))


def _times(x_ref, w_ref, o_ref):
  o_ref[...] = x_ref[...] * w_ref[...]


def _call(kernel, *args):
  like = jax.ShapeDtypeStruct(args[0].shape, args[0].dtype)
  return pl.pallas_call(kernel, out_shape=like, interpret=True)(*args)


_X = np.arange(16, dtype=np.float32).reshape(4, 4)
_W = np.array([[1, 2, 3, 4]], np.float32)


def _must_refuse(f, in_specs, *args):
  claim = shard_map(f, mesh=_MESH, in_specs=in_specs, out_specs=P())
  try:
    out = jax.jit(claim)(*args)
  except ValueError as e:
    assert "require replication" in str(e), e
    return "the claim P() is refused"
  shards = [np.asarray(s.data).tolist() for s in out.addressable_shards]
  raise AssertionError(f"P() accepted; the devices hold {shards}")


def shared_factor():
  """A kernel that multiplies each device's rows by a factor they share"""
  f = shard_map(lambda x, w: _call(_times, x, w), mesh=_MESH,
                in_specs=(P("x"), P()), out_specs=P("x"))
  got = jax.jit(f)(_X, _W)
  assert (got == _X * _W).all(), got
  return "x * w"


def result_claimed_to_be_replicated():
  """out_specs=P() of a kernel's result that differs per device"""
  return _must_refuse(lambda x: _call(_times, x, x), P("x"), _X)


def index_claimed_to_be_replicated():
  """out_specs=P() of a kernel that asks for the device's index"""
  def kernel(x_ref, o_ref):
    o_ref[...] = x_ref[...] + lax.axis_index("x").astype(jnp.float32)
  return _must_refuse(lambda x: _call(kernel, x), P(), _W)
