# SPDX-License-Identifier: Apache-2.0
"""Results of Exported.call and ffi_call taken for replicated."""
import jax
import jax.numpy as jnp
from jax import export
from jax.sharding import Mesh, PartitionSpec as P
import numpy as np

try:
  from jax import shard_map
except ImportError:  # jax 0.6.0
  from jax.experimental.shard_map import shard_map

REPORT = "shard_map: ffi and export"
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


_VECTOR = jax.ShapeDtypeStruct((3,), np.float32)
_X = np.arange(12, dtype=np.float32).reshape(4, 3)


def exported_call():
  """out_specs=P() of an exported function's result that differs per device"""
  exp = export.export(jax.jit(jnp.sin))(_VECTOR)
  return _must_refuse(lambda x: exp.call(x[0]), P("x"), _X)


def exported_gradient():
  """The gradient of a shared operand of an exported function"""
  exp = export.export(jax.jit(lambda w, x: w * x))(_VECTOR, _VECTOR)
  f = shard_map(lambda w, x: exp.call(w, x[0])[None], mesh=_MESH,
                in_specs=(P(), P("x")), out_specs=P("x"))
  w = np.ones(3, np.float32)
  got = jax.grad(lambda w: jnp.sum(jax.jit(f)(w, _X)))(w)
  assert np.allclose(got, _X.sum(0)), f"{_X.sum(0)} is right, got {got}"
  return "summed over the devices"


def ffi_call():
  """out_specs=P() of an ffi_call's result that differs per device"""
  try:
    from jax import ffi
  except ImportError:
    from jax.extend import ffi
  jnp.linalg.cholesky(np.eye(3, dtype=np.float32))  # registers the target
  results = (jax.ShapeDtypeStruct((3, 3), np.float32),
             jax.ShapeDtypeStruct((), np.int32))
  factor = lambda a: ffi.ffi_call("lapack_spotrf_ffi", results)(
      a, uplo=np.uint8(ord("L")))[0]
  a = np.stack([np.eye(3, dtype=np.float32) * (i + 1) for i in range(4)])
  return _must_refuse(lambda a: factor(a[0]), P("x"), a)
