# SPDX-License-Identifier: Apache-2.0
"""A primitive whose declaration is wrong, so that devices differ.

``tell_apart`` adds a device's place along an axis to its operand, and JAX takes
the result to be the same on all devices, as the operand is. A kernel with a
wrong declaration does no other.
"""
from jax import lax
from jax._src import source_info_util
from jax._src.interpreters import batching
from jax._src.interpreters import mlir
from jax.extend import core as extend_core
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from testing.sharding import shard_map

source_info_util.register_exclusion(__file__)  # lines are those of its users
XY = ('x', 'y')
tell_apart_p = extend_core.Primitive('tell_apart')
tell_apart_p.def_abstract_eval(lambda x, at, axis: x)


def _lowered(x, at, *, axis):
  return x + (lax.axis_index(axis) * at).astype(x.dtype)


mlir.register_lowering(tell_apart_p, mlir.lower_fun(_lowered, False))
batching.primitive_batchers[tell_apart_p] = lambda args, dims, axis: (
    tell_apart_p.bind(*args, axis=axis), dims[0])


def tell_apart(x, axis='x', at=1):
  """The operand, with a device's place along an axis added ``at`` times."""
  x, at = jnp.asarray(x), jnp.asarray(at, jnp.int32)
  return tell_apart_p.bind(x, at, axis=axis)


def mapped(f, mesh, in_specs, out_specs=P(), **kwargs):
  return shard_map(f, mesh=mesh, in_specs=in_specs, out_specs=out_specs,
                   **kwargs)
