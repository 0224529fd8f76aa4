# SPDX-License-Identifier: Apache-2.0
"""``auto_axes`` and ``explicit_axes`` in a partly manual ``shard_map``.

Both change the kind of mesh axes for a while: a value within has a type of the
*changed* mesh. Of the axes that a shard_map makes manual none can be changed,
so the default is the others.

What the backward pass keeps of a function within (the residuals) leaves the
shard_map by itself, with a type of the changed mesh, while the shard_map's
types are of its own mesh. So each residual is cast to the shard_map's mesh
where it is made, and back ahead of the jaxpr that uses it, in each rule that
splits a shard_map in two: linearize, partial evaluation, remat.

Without ``jit``, a primitive is evaluated in the body of a shard_map of its own.
There its operands are cast to the types that they have, and its results get
theirs afterwards.

Limits: along an axis that is Auto within, the compiler's layout is not known
when the residual is cast, so the residual is gathered over that axis.

Cost: one look at the mesh of each residual's type; where none is changed,
nothing else.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
import dataclasses
import functools
from typing import Any

from jax._src import core
from jax._src import mesh as mesh_lib
from jax._src import source_info_util
from jax._src import tree_util
from jax._src.mend import axis_types
from jax._src.mend import jaxprs
from jax._src.mend import manual_maps
from jax._src.mend import pages
from jax._src.mend import release_types
from jax._src.mend import releases
from jax._src.mend import traces
from jax._src.named_sharding import NamedSharding
from jax._src.partition_spec import PartitionSpec


def default(mesh: Any, name: str, shardings: Any) -> tuple:
  """The axes that are changed if the caller names none.

  Args:
    mesh: the mesh whose axes are changed.
    name: the function that changes them, of ``jax.sharding``.
    shardings: the layouts of its results, where it takes them.

  Returns:
    The mesh's axes, except those that are Manual.

  Raises:
    ValueError: a layout names an axis that is Manual.
  """
  manual = _of_kind(mesh, 'Manual')
  if not manual:
    return mesh.axis_names
  free = tuple(n for n in mesh.axis_names if n not in manual)
  for spec in tree_util.tree_leaves(shardings):
    spec = getattr(spec, 'spec', spec)
    if isinstance(spec, PartitionSpec) and (
        named := manual_maps.named(spec) & manual):
      raise ValueError(
          f'jax.sharding.{name}: its layout {spec} names {sorted(named)}, '
          'which is Manual in this jax.shard_map. Expected: a spec over the '
          f'axes that are not Manual, {free}. Along a Manual axis a value is '
          "each device's own part already: leave that axis out of the spec." +
          pages.see('meshes.md#automatic-axes-for-a-while'))
  return free


def leaving(residuals: Any) -> Any:
  """Residuals as they leave a shard_map, in the types of its own mesh."""
  mesh = mesh_lib.get_abstract_mesh()
  return [_cast(x, mesh) for x in residuals]


def leaving_each(then: Callable[[Any], Any]) -> Callable[[Any], Any]:
  """A function of one residual, applied after that has been cast."""
  def cast_first(x):
    return then(_cast(x, mesh_lib.get_abstract_mesh()))
  return cast_first


def entering(jaxpr: core.Jaxpr, number: int | None = None) -> core.Jaxpr:
  """A jaxpr that takes residuals in the types of the current mesh.

  Args:
    jaxpr: it takes them in the types in which they were made.
    number: of the first inputs that are looked at; if None, all are.

  Returns:
    A jaxpr that casts them first; itself if there are none.
  """
  mesh = mesh_lib.get_abstract_mesh()
  new = {}
  for v in [*jaxpr.constvars, *jaxpr.invars[:number]]:
    if _is_changed(v.aval, mesh):
      new[v] = jaxprs.new_var(_type_on(v.aval, mesh))
  if not new:
    return jaxpr
  rename = lambda vs: [new.get(v, v) for v in vs]
  casts = [_cast_eqn(outside, v) for v, outside in new.items()]
  return jaxprs.replace_inputs(jaxpr, rename(jaxpr.invars),
                               constvars=rename(jaxpr.constvars),
                               eqns=[*casts, *jaxpr.eqns])


def divided(which: Sequence[bool], known: core.Jaxpr,
            staged: core.Jaxpr) -> tuple[core.Jaxpr, core.Jaxpr]:
  """The two halves of a body, of which the first hands on residuals.

  Args:
    which: for each residual, whether it is handed on by itself.
    known: the first half; these residuals are its last results.
    staged: the second; all residuals are its first arguments.

  Returns:
    Both, with residuals in the types of the current mesh between them.
  """
  mesh = mesh_lib.get_abstract_mesh()
  outs, casts = list(known.outvars), []
  for n in range(len(outs) - sum(which), len(outs)):
    if _is_changed(outs[n].aval, mesh):
      inside, outs[n] = outs[n], jaxprs.new_var(_type_on(outs[n].aval, mesh))
      casts.append(_cast_eqn(inside, outs[n]))
  if casts:
    known = known.replace(outvars=outs, eqns=[*known.eqns, *casts])
  return known, entering(staged, len(which))


def captured(x: Any, aval: Any, mesh: Any) -> Any:
  """An operand that a function with Auto axes captures, cast to its mesh.

  A constant there is an operand of the shard_map as soon as that is traced
  once more, and has a type of the shard_map's mesh then.

  Args:
    x: the operand.
    aval: its type, of another mesh than the current one.
    mesh: the current mesh.
  """
  if mesh._any_axis_explicit:
    return x
  return _cast(x, mesh) if _is_changed(aval, mesh) else x


def on_mesh_of(make: Callable) -> Callable:
  """The function of a type, last, run within the mesh of that type."""
  @functools.wraps(make)
  def on_mesh(*args, **options):
    mesh = options.get('aval', args[-1] if args else None).sharding.mesh
    if not _differ(mesh, mesh_lib.get_abstract_mesh()):
      return make(*args, **options)
    with axis_types.use_abstract_mesh(mesh):
      return make(*args, **options)
  return on_mesh


def on_mesh_of_first(f: Callable) -> Callable:
  """The function of arrays, run within the mesh of the first one's type."""
  def run(x, /, *args, **options):
    mesh = traces.typeof(x).sharding.mesh
    if not _differ(mesh, mesh_lib.get_abstract_mesh()):
      return f(x, *args, **options)
    with axis_types.use_abstract_mesh(mesh):
      return f(x, *(_cast(a, mesh) for a in args), **options)
  return run


# Without jit.


def evaluated(process: Callable) -> Callable:
  """The rule of shard_map's eager trace for a primitive.

  A primitive is bound in the body of a shard_map of its own, over the same
  mesh. If types are of the changed mesh, its operands are cast to their types
  first, and its results get theirs afterwards.

  Args:
    process: ``ShardMapTrace.process_primitive``.
  """
  @functools.wraps(process)
  def rule(trace, primitive, tracers, params):
    if len(trace.manual_axes) == len(trace.amesh.axis_names):
      return process(trace, primitive, tracers, params)
    mesh, now = _mesh_of(trace), mesh_lib.get_abstract_mesh()
    avals = [traces.typeof(t) for t in tracers]
    inner = [v.aval for j in core.jaxprs_in_params(params) for v in j.outvars]
    meshes = [a.sharding.mesh for a in (*avals, *inner)
              if isinstance(a, core.ShapedArray)]
    meshes += [getattr(params.get('dst_sharding'), 'mesh', now), now]
    if (not any(_differ(m.abstract_mesh, mesh) for m in meshes) or
        primitive in releases.shard_map_module().eager_rules):
      return process(trace, primitive, tracers, params)
    types = tuple(a if isinstance(a, core.ShapedArray) and
                  not a.sharding.mesh.empty else now for a in avals)
    outs = process(trace, _Within(primitive, now, types), tracers, params)
    found = primitive.abstract_eval(*avals, **params)[0]
    for out, aval in (zip(outs, found) if primitive.multiple_results else
                      [(outs, found)]):
      if _is_changed(aval, mesh):
        out.sharding_inside = aval.sharding
        traces.set_type(out, out.aval.update(sharding=aval.sharding))
    return outs
  return rule


def called(process: Callable) -> Callable:
  """The rule of shard_map's eager trace for a function with derivative rules.

  Its operands have types already, which may be of the changed mesh.

  Args:
    process: ``process_custom_jvp_call`` or ``process_custom_vjp_call``.
  """
  @functools.wraps(process)
  def rule(trace, primitive, fun, /, *rules, **options):
    if not _differ(mesh_lib.get_abstract_mesh(), _mesh_of(trace)):
      return process(trace, primitive, fun, *rules, **options)
    with core.set_current_trace(trace):
      return fun.call_wrapped(*rules[-1])
  return rule


def typed(aval: Any, tracer: Any) -> Any:
  """The type of a value without ``jit``, where it is made when asked for."""
  sharding = vars(tracer).get('sharding_inside')
  return aval if sharding is None else aval.update(sharding=sharding)


def _mesh_of(trace: Any) -> Any:
  """The mesh of the types within an eager shard_map."""
  return axis_types.retyped(
      trace.amesh, {n: axis_types.AxisType.Manual for n in trace.manual_axes})


@dataclasses.dataclass(frozen=True)
class _Within:
  """A primitive that is bound within a mesh, to operands of these types.

  Attributes:
    primitive: it.
    mesh: the mesh.
    types: of each operand; or a mesh, of an operand whose type has none.
  """
  primitive: core.Primitive
  mesh: Any
  types: tuple

  def __getattr__(self, name: str) -> Any:
    return getattr(self.primitive, name)

  def bind(self, /, *args, **params):
    outer = mesh_lib.get_abstract_mesh()
    args = [_cast(x, a) if isinstance(a, mesh_lib.AbstractMesh) else
            _cast(x, a.sharding.mesh, a.sharding)
            for x, a in zip(args, self.types)]
    with axis_types.use_abstract_mesh(self.mesh):
      outs = self.primitive.bind(*args, **params)
    return tree_util.tree_map(lambda x: _cast(x, outer), outs)


# Meshes, types and casts.


def _of_kind(mesh: Any, kind: str) -> frozenset:
  return frozenset(axis_types.names_of(
      mesh, getattr(axis_types.AxisType, kind)))


def _differ(a: Any, b: Any) -> bool:
  """True if two meshes are one, except that axes are Explicit in one only."""
  return (a is not b and
          (a._any_axis_explicit or b._any_axis_explicit) and  # seldom
          not a.empty and not b.empty and
          a.axis_names == b.axis_names and a.axis_sizes == b.axis_sizes and
          bool(manual := _of_kind(a, 'Manual')) and
          manual == _of_kind(b, 'Manual') and
          _of_kind(a, 'Explicit') != _of_kind(b, 'Explicit'))


def _is_changed(aval: Any, mesh: Any) -> bool:
  return isinstance(aval, core.ShapedArray) and _differ(
      aval.sharding.mesh, mesh)


def _sharding_on(aval: core.ShapedArray, mesh: Any) -> NamedSharding:
  return NamedSharding(
      mesh, core.modify_spec_for_auto_manual(aval.sharding.spec, mesh))


def _type_on(aval: Any, mesh: Any) -> core.ShapedArray:
  return aval.update(sharding=_sharding_on(aval, mesh))


def _cast(x: Any, mesh: Any, sharding: NamedSharding | None = None) -> Any:
  """A value whose type is of a mesh, there of a sharding if one is given."""
  aval = traces.typeof(x)
  if not _is_changed(aval, mesh):
    return x
  primitive, params = release_types.cast_to_mesh()
  return primitive.bind(
      x, dst_sharding=sharding or _sharding_on(aval, mesh), **params)


def _cast_eqn(x: core.Atom, out: Any) -> core.JaxprEqn:
  primitive, params = release_types.cast_to_mesh()
  return core.new_jaxpr_eqn(
      [x], [out], primitive, dict(params, dst_sharding=out.aval.sharding),
      core.no_effects, source_info_util.current())
