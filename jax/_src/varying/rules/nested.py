# SPDX-License-Identifier: Apache-2.0
"""A shard_map over some axes inside of one over others.

Two things go wrong where a value doesn't vary along the outer axes, or varies
along them and is kept for a backward pass:

* What differentiation keeps of the inner shard_map leaves it as an output, with
  a spec that names all axes along which it varies. The outer ones are manual
  already, and can't be split again: the program can't be lowered. The spec is
  of the inner shard_map's own axes (an edit of ``ShapedArray.nospec``, and
  before 0.9.2 wherever such a spec was made).
* Evaluated eagerly, a value that doesn't vary along the outer axes is held
  once, and one that varies is stacked, along a new leading dimension. On the
  way in and out upstream takes all for stacked. Here each is taken for what its
  type says, and an output's type is checked against its spec, as it is when the
  shard_map is staged.

Cost: in eager evaluation, what upstream's conversions cost; else nothing.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax._src import api
from jax._src import core
from jax._src.mend import release_types
from jax._src.mend import releases
from jax._src import shard_map as sm
from jax._src.mesh import use_abstract_mesh
from jax._src.partition_spec import PartitionSpec as P
from jax._src import sharding_impls
from jax._src.util import HashablePartial
from jax._src.varying import origin as varying_origin
from jax._src.varying import types as vt


def own_axes(mesh, axes: vt.Axes) -> tuple:
  """Those of the axes that aren't manual outside, in the mesh's order."""
  return tuple(n for n in mesh.axis_names
               if n in axes and n not in mesh.manual_axes)


def enter(trace, values: Sequence[Any], types: Sequence[Any],
          specs: Sequence[P]) -> list[Any]:
  """Splits values of an eager shard_map over the axes of one inside of it.

  Args:
    trace: the outer shard_map's.
    values: as that trace holds them.
    types: their ``ManualAxisType``s; before 0.10, the axes they vary along.
    specs: the inner shard_map's in_specs.

  Returns:
    The values as the inner shard_map's trace holds them.
  """
  return [_restack(trace, x, _stacked(trace, t), spec, True)
          for x, t, spec in zip(values, types, specs)]


def leave(trace, results, types: Sequence[Any], specs: Sequence[P]):
  """Joins results over the axes of an eager shard_map inside of another.

  Args:
    trace: the outer shard_map's.
    results: a flat tree of values, as the inner trace holds them.
    types: their ``ManualAxisType``s; before 0.10, the axes they vary along.
    specs: the inner shard_map's out_specs.

  Returns:
    A flat tree of the results as the outer trace holds them.

  Raises:
    ValueError: if a result varies along an axis that its spec leaves out.
  """
  if trace.check:
    outside = sm._as_manual_mesh(trace.mesh, trace.manual_axes)
    check = release_types.check_of_out_specs()
    if release_types.out_specs_are_checked_by_type():
      varying_origin.check_eager_types(check, types)(outside, specs, results)
    else:
      check(outside, specs, list(types))
  left = [_restack(trace, x, _stacked(trace, t) - _named(spec), spec, False)
          for x, t, spec in zip(results, types, specs)]
  return results.update(left) if hasattr(results, 'update') else left


def _named(spec: P) -> vt.Axes:
  return sm._spec_to_vma(spec)


def _stacked(trace, mat) -> vt.Axes:
  """The axes that a value is stacked over; all of them with the check off."""
  axes = mat if isinstance(mat, frozenset) else mat.varying
  return axes if trace.check else trace.manual_axes


def _restack(trace, x, outer: vt.Axes, spec: P, inwards: bool):
  """Moves the axes that the spec names between dimensions and the stack.

  Args:
    trace: the outer shard_map's.
    x: a stacked array.
    outer: what it is stacked over outside.
    spec: which dimensions the other axes split.
    inwards: whether to stack over these, or to join them.

  Returns:
    The array, stacked otherwise.
  """
  if not outer | _named(spec):
    return x
  convert = HashablePartial(_convert, trace.mesh, outer, spec, inwards)
  with (core.eval_context(), api.disable_jit(False),
        use_abstract_mesh(trace.mesh.abstract_mesh)):
    return api.jit(convert)(x)


def _convert(mesh, outer: vt.Axes, spec: P, inwards: bool, x):
  inner = outer | _named(spec)
  in_order = lambda axes: tuple(n for n in mesh.axis_names if n in axes)
  ends = P(in_order(outer), *spec), P(in_order(inner))
  source, target = ends if inwards else reversed(ends)
  return sm.shard_map(lambda x: x, in_specs=source, out_specs=target,
                      axis_names=set(inner))(x)


def with_outer(context: Any, outer: Any) -> Any:
  """Returns the context of a nested region, in which the outer's axes stay so.

  Until 0.10.2 the region's own axes alone were manual where its operations are
  lowered, and `lax.axis_index` entered the others once more.

  Args:
    context: of the region, with its own axes.
    outer: the context that it stands in.
  """
  manual: frozenset = getattr(outer, 'manual_axes', frozenset())
  return _NestedContext(
      context.mesh, context.manual_axes | manual) if manual else context


class _NestedContext(sharding_impls.SPMDAxisContext):
  """The context of a region in which some manual axes are an outer region's."""


def sharding_of_callback(ctx: Any, sharding: Any) -> Any:
  """Returns the sharding that a callback on a CPU or GPU is marked with.

  Before 0.10 the partitioner drops a region of axes of size 1, and then ends
  the process: in the region inside, not all axes that the mark needs are
  manual; in jaxlib 0.6.1, not in any region. Without a mark the callback runs
  on each device as well.

  Args:
    ctx: of the lowering.
    sharding: the mark that JAX has chosen, or None.
  """
  context = ctx.module_context.axis_context
  if not isinstance(context, sharding_impls.SPMDAxisContext) or (
      1 not in context.mesh.shape.values()):
    return sharding
  is_dropped = isinstance(context, _NestedContext) or (
      releases.marked_callbacks_abort() and releases.shardy_option().value)
  return None if is_dropped else sharding
