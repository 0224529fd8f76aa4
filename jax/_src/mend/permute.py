# SPDX-License-Identifier: Apache-2.0
"""A ppermute of those devices alone that reach it together.

XLA's collective permute has no groups of devices. On CPU it waits for all of
the mesh, so where devices along one axis diverge, one over another axis never
ends. In such a loop or branch a ``ppermute`` is marked, by the type of the
names of its axes, which every transformation hands on. What is marked is
lowered for CPU as a gather along those axes, which has groups, and of it each
device takes its source's part, or zeros where it has no source. Elsewhere it is
XLA's own permute, as is all that is not marked. Where some of the mesh's axes
aren't manual, the partitioner of 0.5.3 and 0.6.0 aborts at a gather, and a sum
stands for it.

Cost: on CPU, room for the operands of all devices along the axes.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
import functools
import math
from typing import Any

from jax._src import core
from jax._src import dtypes
from jax._src.mend import foreign
from jax._src.mend import jaxprs
from jax._src.mend import release_types
import numpy as np


class PartlyReached(tuple):
  """Names of the axes of a ppermute that not all devices of the mesh reach.

  It is no other tuple's equal, so that no cache takes one for the other.
  """
  __slots__ = ()

  def __eq__(self, other):
    return type(other) is PartlyReached and tuple.__eq__(self, other)

  def __ne__(self, other):
    return not self == other

  def __hash__(self):
    return hash((PartlyReached, tuple(self)))


def marked_eqn(eqn: core.JaxprEqn,
               mark: Callable[[core.Jaxpr], core.Jaxpr]) -> core.JaxprEqn:
  """An equation, marked if it is a ppermute; itself if nothing changes.

  Args:
    eqn: the equation.
    mark: marks a jaxpr that one of its parameters holds.
  """
  params = {name: jaxprs.map_jaxprs(mark, x) for name, x in eqn.params.items()}
  if foreign.name_of(eqn.primitive) == 'ppermute':
    axes = params['axis_name']
    axes = axes if isinstance(axes, (tuple, list)) else (axes,)
    params['axis_name'] = PartlyReached(axes)
  elif all(x is eqn.params[name] for name, x in params.items()):
    return eqn
  return eqn.replace(params=params)


def lower_for_cpu(ppermute_p: core.Primitive, lowering: Callable[..., Any]):
  """Lowers what is marked, on CPU, as a collective that has groups.

  Args:
    ppermute_p: the primitive.
    lowering: the rule by which all else is lowered.
  """
  from jax._src.interpreters import mlir  # imports core's users

  def lower(ctx, x, /, **params):
    axes = params['axis_name']
    platforms = ctx.platforms or ctx.module_context.platforms
    if type(axes) is not PartlyReached or 'cpu' not in platforms:
      return lowering(ctx, x, **params)
    aval, = map(core.physical_aval, ctx.avals_in)  # of a key, its words
    gather = _summed if _aborts_at_gathers(ctx) else _gathered
    f = lambda x: _from_source(x, tuple(axes), params['perm'], gather)
    if len(platforms) > 1:
      f = functools.partial(_on_cpu, f, tuple(axes), params['perm'])
    return mlir.lower_fun(f, multiple_results=False)(
        ctx.replace(avals_in=[aval], avals_out=[aval]), x)

  # Not for CPUs alone: where a primitive has a rule of one platform's own, a
  # module for several has a branch at each.
  mlir.register_lowering(ppermute_p, lower)


def _on_cpu(f: Callable, axes: tuple, perm: Sequence[tuple[int, int]], x):
  """`f` of `x` on CPUs, and the permute itself elsewhere."""
  from jax._src.lax import parallel  # it imports this
  from jax._src.lax.control_flow import conditionals
  return conditionals.platform_dependent(
      x, cpu=f, default=lambda x: parallel.ppermute(x, axes, perm))


def _aborts_at_gathers(ctx) -> bool:
  """True if some of the mesh's axes aren't manual, up to 0.6.0."""
  context = ctx.module_context.axis_context
  mesh = getattr(context, 'mesh', None)
  return not release_types.types_can_be_reduced() and mesh is not None and (
      frozenset(context.manual_axes) != frozenset(mesh.axis_names))


def _from_source(x, axes: tuple, perm: Sequence[tuple[int, int]], gather):
  """The value that this device's source holds, or zeros."""
  from jax._src.lax import lax, parallel, slicing  # they import this
  size = math.prod(map(core.get_axis_env().axis_size, axes))
  sources = np.full(size, -1, np.int32)
  for source, target in perm:
    sources[target % size] = source % size
  index = parallel.axis_index(axes)
  source = slicing.dynamic_index_in_dim(lax.asarray(sources), index,
                                        keepdims=False)
  held = slicing.dynamic_index_in_dim(
      gather(x, axes, index), lax.max(source, np.int32(0)), keepdims=False)
  return lax.select(source >= 0, held, lax.full_like(held, 0))


def _gathered(x, axes: tuple, index):
  """The values of all devices along the axes, in a new first dimension."""
  from jax._src.lax import parallel  # imports this
  del index
  return parallel.all_gather(x, axes)


def _summed(x, axes: tuple, index):
  """``_gathered``, as a sum of what each device has in its own place.

  XLA's partitioner for meshes of which some axes aren't manual takes no other
  collective with groups (and aborts, in 0.6.0). Bits are added, as integers:
  what a device holds arrives as it is, be it -0.0 or NaN.
  """
  from jax._src.lax import lax, parallel  # they import this
  dtype = x.dtype
  if dtypes.issubdtype(dtype, np.complexfloating):
    return lax.complex(_summed(lax.real(x), axes, index),
                       _summed(lax.imag(x), axes, index))
  whole = dtypes.issubdtype(dtype, np.integer) or dtype.kind == 'b'
  if not whole:
    bits = np.dtype(f'uint{8 * dtype.itemsize}')
    x = lax.bitcast_convert_type(x, bits)
  elif dtype.itemsize == 1:  # bool, and integers of less than a byte
    x = lax.convert_element_type(x, np.int32)
  size = math.prod(map(core.get_axis_env().axis_size, axes))
  own = lax.broadcasted_iota(np.int32, (size, *x.shape), 0) == index
  every = parallel.psum(
      lax.select(own, lax.broadcast(x, (size,)),
                 lax.full((size, *x.shape), 0, x.dtype)), axes)
  if whole:
    return lax.convert_element_type(every, dtype)
  return lax.bitcast_convert_type(every, dtype)
