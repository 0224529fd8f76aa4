# SPDX-License-Identifier: Apache-2.0
"""Pallas kernels in shard_map whose results are not declared."""
import jax
from jax import lax
from jax.experimental import pallas as pl
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec as P
import numpy as np

REPORT = "shard_map: Pallas kernels"


def _shard_map(f, in_specs, out_specs):
  try:
    from jax import shard_map
  except ImportError:
    from jax.experimental.shard_map import shard_map
  mesh = Mesh(np.array(jax.devices()[:4]), ("x",))
  return jax.jit(shard_map(f, mesh=mesh, in_specs=in_specs,
                           out_specs=out_specs))


def _times(x_ref, w_ref, o_ref):
  o_ref[...] = x_ref[...] * w_ref[...]


def _call(kernel, *args):
  like = jax.ShapeDtypeStruct(args[0].shape, args[0].dtype)
  return pl.pallas_call(kernel, out_shape=like, interpret=True)(*args)


_X = np.arange(16, dtype=np.float32).reshape(4, 4)
_W = np.array([[1, 2, 3, 4]], np.float32)


def _must_refuse(f, in_specs, *args):
  try:
    out = _shard_map(f, in_specs, P())(*args)
  except ValueError as e:
    assert "require replication" in str(e), e
    return "the claim P() is refused"
  shards = [np.asarray(s.data).tolist() for s in out.addressable_shards]
  raise AssertionError(f"P() accepted; the devices hold {shards}")


def shared_factor():
  """A kernel that multiplies each device's rows by a factor they share"""
  got = _shard_map(lambda x, w: _call(_times, x, w), (P("x"), P()),
                   P("x"))(_X, _W)
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
