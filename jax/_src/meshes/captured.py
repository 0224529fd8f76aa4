# SPDX-License-Identifier: Apache-2.0
"""Arrays over Explicit mesh axes that a ``shard_map`` captures.

The function that is mapped may use an array of outside. It sees the array
whole, as it does where the axes are Auto: what is captured has no spec that
splits it. Its type must become one of inside, where the axes are Manual:

* ahead of the shard_map the array is gathered along the axes that it makes
  manual, by a ``reshard`` in the trace that the array belongs to (so the
  gradient comes back as the array is laid out);
* at the operation that uses it a second ``reshard`` changes the type alone.
  Along axes that stay Explicit the array keeps its spec.

Both happen where a primitive is bound, where ``jit`` looks at its arguments,
and in the few functions that read an array's type beforehand. What calls a
jaxpr keeps the array's type of outside, as the jaxpr has it, and the operations
inside of the jaxpr change it. Limits: an array that is handed to a scan, a
branch or a derivative as it came, as an operand, and is split over an axis that
is now manual, is refused; so is a region within which the mesh has other axes.

Up to 0.6.0 the change of type is a primitive of its own (``mesh_cast``), put in
where values are made canonical.

Cost: nothing where all arrays are of the current mesh; else two equations a
use, which XLA merges.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax._src import config
from jax._src import core
from jax._src.mend import releases
from jax._src.mend import traces
from jax._src import mesh as mesh_lib
from jax._src.mend import axis_types
from jax._src.mend import foreign
from jax._src.mend import pages
from jax._src.mend import release_types
from jax._src.named_sharding import NamedSharding
from jax._src.partition_spec import PartitionSpec

_EARLY = not release_types.shardings_update()  # up to 0.6.0

# What is typed by its arguments before these are bound, and sums of cotangents
# that are still to be of the type of outside. (What ``bind`` leaves alone by
# itself, such as a scan, isn't named.)
_LEFT_ALONE = frozenset({'remat2', 'add_any'})


def enter(primitive: core.Primitive | None, x: Any, aval, mesh) -> tuple:
  """An operand as it is inside of a ``shard_map``.

  Args:
    primitive: what is bound; None if it is no primitive.
    x: the operand.
    aval: its type.
    mesh: the mesh inside.

  Returns:
    The operand and its type, changed if it is one over Explicit axes of the
    mesh outside.

  Raises:
    NotImplementedError: if the operand was handed on as it came, and is split.
  """
  if not _is_inside_of(mesh, aval.sharding.mesh):
    return x, aval
  if _is_evaluated_now(x):
    if mesh._any_axis_explicit:
      raise NotImplementedError(_NOT_NOW.format(aval.str_short()) +
                                pages.see('meshes.md#captured-arrays'))
    return x, aval
  spec = _spec_inside(aval.sharding.spec, mesh)
  inside = NamedSharding(mesh, spec)
  if primitive is not None and foreign.name_of(primitive) in _LEFT_ALONE:
    return x, aval.update(sharding=inside)
  if spec != aval.sharding.spec:
    x = _gathered(x, aval, NamedSharding(aval.sharding.mesh, spec))
  x = _type_changed(x, inside)
  return x, traces.typeof(x)


_NOT_NOW = (
    'jax.ensure_compile_time_eval: in a jax.shard_map over some axes of a mesh '
    'of which others are Explicit, an array from outside of it was used. '
    'Expected: numbers and numpy arrays. Got: an array of type {}. Compute '
    'what depends on it outside of the shard_map, or pass it as an argument.'
)


def _is_evaluated_now(x: Any) -> bool:
  """True of an array under ``jax.ensure_compile_time_eval``.

  It can't be cast: a cast would be evaluated at once, of the same array. JAX's
  error says what to do.
  """
  return (config.eager_constant_folding.value
          and not isinstance(x, core.Tracer))


def arguments(values: Sequence[Any], avals: Sequence[Any]) -> tuple:
  """The arguments of ``jit``, and their types, as they are inside."""
  mesh = mesh_lib.get_abstract_mesh()
  if not mesh._any_axis_manual or not any(
      isinstance(a, core.ShapedArray) and a.sharding.mesh._any_axis_explicit
      for a in avals):
    return values, avals
  entered = [enter(None, x, a, mesh) if isinstance(a, core.ShapedArray)
             else (x, a) for x, a in zip(values, avals)]
  return [x for x, _ in entered], tuple(a for _, a in entered)


def array(x: Any) -> Any:
  """An array as it is inside, for functions that read its type themselves."""
  aval = getattr(x, 'aval', None)
  if (isinstance(aval, core.ShapedArray) and
      aval.sharding.mesh._any_axis_explicit):
    (x,), _ = arguments([x], [aval])
  return x


def arrays(values: Sequence[Any]) -> Sequence[Any]:
  """The arguments of a function, as they are inside."""
  if not mesh_lib.get_abstract_mesh()._any_axis_manual:
    return values
  return list(map(array, values))


def layout(x: Any, sharding: Any) -> Any:
  """A layout that was asked for by the type outside, for an array inside.

  Args:
    x: the array, as ``array`` gives it.
    sharding: by the type that it had before; None for no layout.
  """
  aval = getattr(x, 'aval', None)
  if sharding is None or not isinstance(aval, core.ShapedArray):
    return sharding
  mesh = aval.sharding.mesh
  if not mesh._any_axis_explicit:
    return None
  return sharding_inside(sharding, mesh)


def sharding_inside(sharding, mesh):
  """Puts a sharding over the mesh of the inside, if it says the same there.

  Args:
    sharding: as a function made it from its argument's type, of a mesh that has
      Explicit or only Auto axes. Of the latter it names none.
    mesh: that of the inside.
  """
  outside = sharding.mesh.abstract_mesh
  if outside is mesh:  # the usual case
    return sharding
  if (not _is_inside_of(mesh, outside) and not _is_inside_of_auto(mesh, outside)
      or
      sharding.spec != core.modify_spec_for_auto_manual(sharding.spec, mesh)):
    return sharding
  return NamedSharding(mesh, sharding.spec)


def leaves(context, sharding) -> bool:
  """True if a cast, within a shard_map, is to the type of outside.

  A transposed cast is. Up to 0.6.0 it is lowered as a constraint, which is none
  of the inside: there XLA ends the process.

  Args:
    context: what is manual where the cast is lowered.
    sharding: that of the type that it gives.
  """
  manual = set(getattr(context, 'manual_axes', ()))
  return (sharding.mesh._any_axis_explicit and
          not manual <= _manual_axes(sharding.mesh))


def stated(ctx, mesh, manual_axes, values):
  """Results of a ``shard_map``, in the layouts that their types state.

  Where axes are left to the partitioner it may split a result further. With
  jaxlib 0.7.0 it then ends the process where the result is resharded, as the
  cotangent of a captured array is.

  Args:
    ctx: of the lowering.
    mesh: that of the shard_map.
    manual_axes: those that are manual inside.
    values: the results as lowered.
  """
  from jax._src.interpreters import mlir  # it imports core, too
  if manual_axes == frozenset(mesh.axis_names):
    return values
  return [mlir.lower_with_sharding_in_types(ctx, v, a)
          if a.sharding.mesh._any_axis_explicit else v
          for v, a in zip(values, ctx.avals_out)]


def same(a, b) -> bool:
  """True if two shardings are one, of outside and of inside of a shard_map."""
  return a.spec == b.spec and (_is_inside_of(a.mesh, b.mesh) or
                               _is_inside_of(b.mesh, a.mesh))


def _is_inside_of(inside, outside) -> bool:
  """True if a mesh is another one, with more axes Manual."""
  return (outside.axis_names == inside.axis_names and
          outside.axis_sizes == inside.axis_sizes and
          outside._any_axis_explicit and
          _manual_axes(outside) < _manual_axes(inside))


def _is_inside_of_auto(inside, outside) -> bool:
  """True if a mesh of Auto axes became another one, with Manual axes.

  What the array of such a mesh is inside, ``bind`` knows.
  """
  return (outside.axis_names == inside.axis_names and
          outside.axis_sizes == inside.axis_sizes and
          set(axis_types.names_of(outside, axis_types.AxisType.Auto)) ==
          set(outside.axis_names) and not inside._any_axis_explicit)


def _spec_inside(spec, mesh):
  """A spec without the axes that are not Explicit in a mesh."""
  manual = _manual_axes(mesh)
  given = tuple(getattr(spec, '_partitions', spec))  # axes to sum are beside
  parts = []
  for part in given:  # up to 0.6.2 the first of several spoke for all of them
    names = part if isinstance(part, tuple) else (part,)
    kept = tuple(n for n in names if n not in manual)
    parts.append(part if kept == names else kept or None)
  if _EARLY:  # 0.5.1 compares 'x' with ('x',) as they are written
    return PartitionSpec(*(p[0] if isinstance(p, tuple) and len(p) == 1 else p
                           for p in parts))
  if parts != list(given):
    kinds = {k: getattr(spec, k) for k in ('unreduced', 'reduced')
             if hasattr(spec, k)}
    spec = PartitionSpec(*parts, **kinds)
  return core.modify_spec_for_auto_manual(spec, mesh)


def _manual_axes(mesh) -> set:
  return set(axis_types.names_of(mesh, axis_types.AxisType.Manual))


def _gathered(x, aval, sharding):
  """The array in the layout `sharding`, made where the array belongs to."""
  trace = core.eval_trace
  if isinstance(x, core.Tracer):
    trace = x._trace
    if not aval.sharding.mesh._any_axis_manual and _is_inside(trace):
      raise NotImplementedError(
          'jax.shard_map: an array over an Explicit mesh axis was captured and '
          'handed to a transformation inside as an operand. Expected: an array '
          f'that is not split over {aval.sharding.mesh.axis_names}, or one '
          f'that an operation inside made. Got: {aval.str_short(True)}. '
          'Capture it in the inner function instead, or pass it to shard_map '
          'as an argument.' +
          pages.see('meshes.md#captured-arrays'))
  with (core.set_current_trace(trace),
        axis_types.use_abstract_mesh(aval.sharding.mesh)):
    return _reshard(x, sharding)


def _is_inside(trace) -> bool:
  """True if a trace is of what a shard_map maps."""
  for each in traces.enclosing(trace):
    frame = getattr(each, 'frame', None)
    debug = getattr(frame, 'debug_info', None)
    mesh = getattr(frame, 'mesh', None)
    if (isinstance(each, releases.shard_map_module().ShardMapTrace) or
        getattr(debug, 'traced_for', None) == 'shard_map' or
        # Up to 0.9 some traces, such as a rule's, don't know what is around.
        mesh is not None and mesh._any_axis_manual):
      return True
  return False


def _type_changed(x, sharding):
  mesh_cast_p = release_types.mesh_cast_p()  # there reshard is of one mesh
  if mesh_cast_p is not None:
    return mesh_cast_p.bind(x, dst_sharding=sharding)
  return _reshard(x, sharding)


def _reshard(x, sharding):
  from jax._src import pjit  # it imports core, which imports this
  return pjit.reshard(x, sharding)
