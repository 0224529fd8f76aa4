# SPDX-License-Identifier: Apache-2.0
"""Reading and changing the varying axes in a type, on every base release.

A value's type in a ``shard_map`` with the check on holds V(x), the set of
manual mesh axes along which x may differ between devices. How a release spells
it, ``mend.manual_axes`` knows; the modules that compute with these sets import
this one.
"""
from __future__ import annotations

from collections.abc import Sequence
import contextlib
import functools
from typing import Any

from jax._src import config
from jax._src import core
from jax._src.mend import foreign
from jax._src.mend import jaxprs
from jax._src.mend import manual_axes
from jax._src.mend.manual_axes import Axes, NO_AXES
from jax._src.mend import release_types
from jax._src.mend import releases
from jax._src.mend import trace_key
from jax._src.mend import traces
from jax._src import mesh as mesh_lib
from jax._src.named_sharding import NamedSharding
from jax._src import tree_util
from jax._src.varying import context
from jax._src.varying import reduced

typeof, is_ref = traces.typeof, traces.is_ref_type
open_jaxpr, reclose = jaxprs.open_jaxpr, jaxprs.reclose
written = jaxprs.written
varying, axes_of_array = manual_axes.varying, manual_axes.axes_of_array
vary_alike = manual_axes.vary_alike


promote_carries = trace_key.option(
    config.bool_state, 'jax_shard_map_promote_carries', True,
    'Inside shard_map with the check on, let loop carries and branch outputs '
    'that start replicated become varying where the program makes them so. '
    'False restores the refusal of such programs, so that every promotion '
    'must be written out with pcast or pvary.')

# What types hold: axes alone, or what is reduced and unreduced along them too.
CAN_BE_REDUCED = manual_axes.CAN_BE_REDUCED
_auto_pcast = releases.auto_pcast()
_check = releases.check_option()
_config: Any = config  # with an option of 0.6.0


if releases.axes_are_optional():
  def checking() -> bool:
    """True if types hold varying axes in the current trace."""
    return _check.value and _config.varying_axes_in_types.value
else:
  def checking() -> bool:
    """True if types hold varying axes in the current trace."""
    return _check.value


def promoting() -> bool:
  """True if types may be promoted without an annotation."""
  return checking() and promotes_where_checked()


def promotes_where_checked() -> bool:
  """``promoting``, where it is known that types hold varying axes."""
  return promote_carries.value and (_auto_pcast is None or _auto_pcast.value)


_ARRAYS = frozenset({core.ShapedArray})
_COLLECTIVES = frozenset({core.NamedAxisEffect})


def any_ref(avals: Sequence[Any]) -> bool:
  if _ARRAYS.issuperset(map(type, avals)):  # most are, and have many operands
    return False
  for aval in avals:
    if hasattr(aval, 'inner_aval'):
      return True
  return False


def has_refs(jaxpr: core.Jaxpr) -> bool:
  """True if the jaxpr makes or uses refs."""
  return are_of_refs(jaxpr.effects)


def are_of_refs(effects: Any) -> bool:
  """True if one of the effects is a ref's."""
  if _COLLECTIVES.issuperset(map(type, effects)):  # mostly
    return False
  for effect in effects:
    if isinstance(effect, _effects_of_refs()):
      return True
  return False


@functools.cache
def _effects_of_refs() -> tuple[type, ...]:
  from jax._src.state import types as state  # imports core, which imports this
  return core.InternalMutableArrayEffect, state.RefEffect


def uses_refs(eqn: core.JaxprEqn) -> bool:
  """True if the equation takes or makes a ref."""
  return (any(is_ref(v.aval) for v in eqn.invars)
          or any(is_ref(v.aval) for v in eqn.outvars))


def copy_ref_steps(aval) -> list[tuple[core.Primitive, dict[str, Any]]]:
  """The primitives, with parameters, that put a ref's content in a new ref."""
  from jax._src.state import primitives  # is imported later than this module
  make: dict[str, Any] = dict(memory_space=aval.memory_space, kind=aval.kind)
  if releases.refs_can_be_pinned():
    make['pin'] = False
  return [(primitives.get_p, dict(tree=tree_util.tree_structure(()))),
          (core.pvary_p, {}), (core.ref_p, make)]


def declared(structure) -> Axes | None:
  """The axes that a ``ShapeDtypeStruct`` declares; None of anything else.

  It says ``vma`` since 0.6.2, and ``manual_axis_type`` since 0.10.
  """
  return (manual_axes.declared(structure)
          if isinstance(structure, release_types.structure_class()) else None)


def with_varying(aval, axes: Axes):
  """A type, varying along exactly ``axes``."""
  if not isinstance(aval, core.ShapedArray):
    if varying(aval) == axes or not is_ref(aval):
      return aval
    return aval.update(inner_aval=with_varying(aval.inner_aval, axes))
  if axes_of_array(aval) == axes:
    return aval
  if release_types.varying_types_have_a_mesh():
    # A literal's mesh is empty, and a captured value's can be an outer one.
    within = axes.issubset(aval.sharding.mesh.manual_axes)
    mesh = None if within else mesh_lib.get_abstract_mesh()
    return _varying_along(aval, axes, mesh)
  axes = _possible(aval, axes)
  mesh = aval.sharding.mesh
  captured = axes and not mesh.empty and not mesh.manual_axes
  return _varying_along(aval, axes,
                        mesh_lib.get_abstract_mesh() if captured else None)


@functools.lru_cache(maxsize=4096)
def _varying_along(aval, axes: Axes, mesh):
  if mesh is not None:
    aval = aval.update(sharding=NamedSharding(mesh, aval.sharding.spec))
  return manual_axes.with_axes(aval, axes)


def _possible(aval, axes: Axes) -> Axes:
  """Those of ``axes`` that a type can have.

  Up to 0.7.2 what a nested shard_map captures keeps the mesh that it was made
  under, with axes that only the inner shard_map has to itself; it can't be
  cast to vary along these, and no cotangent of it is of their kind. What comes
  from outside of all of them gets the current mesh with a cast, as anything
  does later.
  """
  if (not isinstance(aval, core.ShapedArray)
      or release_types.varying_types_have_a_mesh()):
    return axes
  mesh = aval.sharding.mesh
  return axes.intersection(mesh.manual_axes) if mesh.manual_axes else axes


def promotable(aval, axes: Axes) -> bool:
  """True if a value of this type can be cast to vary along ``axes`` too."""
  return varying(aval) <= axes and castable(aval, axes)


def castable(aval, axes: Axes) -> bool:
  """``promotable``, of axes that the value varies along and others."""
  if not isinstance(aval, core.ShapedArray):
    return False
  if not CAN_BE_REDUCED:
    return True
  # What is unreduced over an axis can't vary along it.
  return axes.isdisjoint(manual_axes.unreduced(aval))


def predicates_agreeing() -> contextlib.AbstractContextManager[None]:
  """While predicates are taken to be the same on all devices, as JAX does."""
  return context.replacing('predicates_agree', True)


def nontrivial(axes: Axes) -> Axes:
  """Those of the axes along which there is more than one device.

  What varies over the others only is the same on all devices: no two diverge at
  such a predicate. The sizes are those of the current mesh, or, where it lacks
  an axis, of what else binds its name; one that isn't known counts as several.
  """
  if not axes or context.keyed.value.predicates_agree:
    return NO_AXES
  mesh = mesh_lib.get_abstract_mesh()
  for axis in axes:
    if axis in mesh.manual_axes:
      size = mesh.shape[axis]
    else:
      size = core.get_axis_env().axis_sizes.get(axis)
    if size == 1:
      axes = axes - {axis}
  return axes


def ordered(axes: Axes) -> tuple:
  """The axes in the mesh's order, the order of upstream's own casts."""
  names = mesh_lib.get_abstract_mesh().axis_names
  return (*[a for a in names if a in axes],
          *sorted(axes.difference(names), key=str))


def is_mapped(x) -> bool:
  """True if a vmap that is being traced maps over this value."""
  return any(getattr(t, 'batch_dim', None) is not None
             for t in traces.layers(x))


def cast(x, axes: Axes):
  """Promotes the value ``x`` to vary along ``axes`` as well as its own."""
  aval = typeof(x)
  missing = _possible(aval, axes - varying(aval))
  if CAN_BE_REDUCED and missing and reduced.concerns(aval):
    for prim, part in reduced.steps(aval, missing):
      x = prim.bind(x, axes=ordered(part))
    return x
  return core.pvary(x, ordered(missing)) if missing else x


def cast_params(axes: Axes) -> dict[str, Any]:
  """The parameters of the cast primitive for a promotion along ``axes``."""
  params: dict[str, Any] = dict(axes=ordered(axes))
  if release_types.casts_take_groups():
    params['axis_index_groups'] = None
  return params


# A variable of the type that it is given.
new_var = jaxprs.new_var
# The name by which rules know a primitive; no rule knows another library's.
name_of = foreign.name_of
