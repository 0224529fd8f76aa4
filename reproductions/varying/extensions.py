# SPDX-License-Identifier: Apache-2.0
"""Primitives of other libraries in shard_map that are taken for replicated."""
import jax
from jax.extend.core import Primitive
from jax.interpreters import mlir
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec as P
import numpy as np

REPORT = "shard_map: primitives of other libraries"


def own_primitive():
  """out_specs=P() of a library's own primitive of a value that varies"""
  try:
    from jax import shard_map
  except ImportError:
    from jax.experimental.shard_map import shard_map
  any_p = Primitive("unvmap_any")
  any_p.def_impl(jnp.any)
  any_p.def_abstract_eval(lambda x: jax.core.ShapedArray((), np.dtype(bool)))
  mlir.register_lowering(any_p, mlir.lower_fun(jnp.any, multiple_results=False))
  mesh = Mesh(np.array(jax.devices()[:4]), ("x",))
  f = jax.jit(shard_map(lambda x: any_p.bind(x > 2), mesh=mesh,
                        in_specs=P("x"), out_specs=P()))
  try:
    out = f(np.arange(4.))
  except ValueError as e:
    assert "replicat" in str(e), e
    return "the claim P() is refused"
  shards = [np.asarray(s.data).tolist() for s in out.addressable_shards]
  raise AssertionError(f"P() accepted; the devices hold {shards}")
