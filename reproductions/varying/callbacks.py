# SPDX-License-Identifier: Apache-2.0
"""Results of callbacks in shard_map that are taken for replicated."""
import jax
import jax.numpy as jnp
from jax.experimental import io_callback
from jax.sharding import Mesh, PartitionSpec as P
import numpy as np

try:
  from jax import shard_map
except ImportError:  # jax 0.6.0
  from jax.experimental.shard_map import shard_map

REPORT = "shard_map: callbacks"
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


_SCALAR = jax.ShapeDtypeStruct((), np.float32)
_X = np.arange(4, dtype=np.float32)


def pure_callback_result():
  """out_specs=P() of a pure_callback's result that differs per device"""
  square = lambda x: np.asarray(x * x, np.float32)
  return _must_refuse(
      lambda x: jax.pure_callback(square, _SCALAR, x[0]), P("x"), _X)


def io_callback_result():
  """out_specs=P() of an io_callback's result that differs per device"""
  square = lambda x: np.asarray(x * x, np.float32)
  return _must_refuse(
      lambda x: io_callback(square, _SCALAR, x[0]), P("x"), _X)


def io_callback_without_operands():
  """out_specs=P() of what an io_callback tells each device"""
  told = iter(range(1000))
  return _must_refuse(
      lambda: io_callback(lambda: np.float32(next(told)), _SCALAR), ())


def gradient_of_a_factor():
  """The gradient of a factor of a callback's result sums over the devices"""
  square = lambda x: np.asarray(x * x, np.float32)
  f = shard_map(
      lambda w, x: (w * jax.pure_callback(square, _SCALAR, x[0]))[None],
      mesh=_MESH, in_specs=(P(), P("x")), out_specs=P("x"))
  got = float(jax.grad(lambda w: jnp.sum(jax.jit(f)(w, _X)))(np.float32(2.)))
  assert got == 14., f"the gradient is 14, got {got}"
  return "14"
