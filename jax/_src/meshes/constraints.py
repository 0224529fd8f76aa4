# SPDX-License-Identifier: Apache-2.0
"""Shardings over the mesh of outside, in a partly manual region.

``with_sharding_constraint`` and ``reshard`` inside of a ``shard_map`` may be
given a sharding that was made outside, over the mesh as it is there. Inside
some axes of that mesh are Manual. Such a sharding means the same inside, as
long as it names none of these: a constraint leaves the value's type alone, and
what is resharded gets its spec over the current mesh.

A spec that names a manual axis is refused: along that axis the value is each
device's own part already. A sharding over another mesh is left to JAX's rules,
and so is, from 0.8 on, a value that varies over no axis where all axes are
Auto: it was taken before, and has the program that it had. In 0.7 such a value
has a type of no mesh, and keeps it: of the mesh of outside it couldn't vary in
a loop.

Up to 0.6.0 the constraint's own check can't read a mesh with manual axes; the
lowering adds these itself. So there the mesh of outside is what is handed on.

Cost: nothing outside of manual regions.
"""
from __future__ import annotations

from typing import Any

from jax._src.mend import manual_axes
from jax._src import mesh as mesh_lib
from jax._src.mend import axis_types
from jax._src.mend import pages
from jax._src.mend import release_types
from jax._src.named_sharding import NamedSharding

_Auto, _Manual = axis_types.AxisType.Auto, axis_types.AxisType.Manual


def of_outside(aval: Any, sharding: Any) -> bool:
  """True if a value may vary in a region that a sharding was made outside of.

  Args:
    aval: the value's type.
    sharding: what it is constrained by.
  """
  mesh = aval.sharding.mesh
  if mesh.empty and not release_types.varying_types_have_a_mesh():
    return _is_of_outside(sharding, mesh_lib.get_abstract_mesh())
  return bool(manual_axes.varying(aval)) and _is_of_outside(sharding, mesh)


def check(api: str, sharding: Any, aval: Any = None) -> None:
  """Refuses an outer sharding over an axis that is manual here.

  Args:
    api: the public function that it was given to.
    sharding: what the user gave, as a sharding.
    aval: the type of what is placed; one that doesn't vary is left to the
      lowering, which has its own error. None if that doesn't matter.

  Raises:
    ValueError: if its spec names such an axis.
  """
  mesh = mesh_lib.get_abstract_mesh()
  if not mesh._any_axis_manual or not _is_of_outside(sharding, mesh):
    return
  if aval is not None and not manual_axes.varying(aval):
    return
  manual = _manual_axes(mesh)
  for part in sharding.spec:
    for name in part if isinstance(part, tuple) else (part,):
      if name in manual:
        rest = tuple(n for n in mesh.axis_names if n not in manual)
        raise ValueError(
            f'{api} inside of shard_map: expected a spec over the mesh axes '
            f'that are not manual there, {rest}; got {sharding.spec}, which '
            f"names {name!r}. Along {name!r} the value is each device's own "
            'part already: leave that axis out, or place the value outside of '
            'shard_map.' +
            pages.see('meshes.md#placing-inside'))


def inside(api: str, sharding: Any, aval: Any = None) -> Any:
  """A sharding as it is where it is used.

  Args:
    api: the public function that it was given to.
    sharding: what the user gave: a spec, a sharding or anything else.
    aval: the type of what is placed; None if that doesn't matter.

  Returns:
    The sharding over the current mesh, if it is over that mesh with fewer
    manual axes; else what was given.

  Raises:
    ValueError: if its spec names an axis that is manual here.
  """
  mesh = mesh_lib.get_abstract_mesh()
  if not mesh._any_axis_manual or not _is_of_outside(sharding, mesh):
    return sharding
  check(api, sharding)
  types = set(sharding.mesh.abstract_mesh._name_to_type.values())
  if aval is not None and types == {_Auto} and not manual_axes.varying(aval):
    return sharding
  return NamedSharding(mesh, sharding.spec)


def outside(api: str, sharding: Any) -> Any:
  """The reverse, for a constraint before 0.8, which checks no manual axes.

  Args:
    api: the public function that it was given to.
    sharding: what the user gave, as a sharding.

  Returns:
    The sharding over the current mesh as it is where no axis is manual, if it
    is over the current mesh; else what was given.

  Raises:
    ValueError: if its spec names an axis that is manual here.
  """
  mesh = mesh_lib.get_abstract_mesh()
  if isinstance(sharding, NamedSharding) and mesh._any_axis_manual:
    if sharding.mesh == mesh:
      auto = axis_types.retyped(
          mesh, {n: _Auto for n in _manual_axes(mesh)})
      sharding = NamedSharding(auto, sharding.spec,
                               memory_kind=sharding.memory_kind)
    check(api, sharding)
  return sharding


def _manual_axes(mesh) -> set:
  return {name for name, t in mesh._name_to_type.items() if t == _Manual}


def _is_of_outside(sharding, mesh) -> bool:
  """True if a sharding is over a mesh as it is with fewer axes Manual."""
  if not isinstance(sharding, NamedSharding):
    return False
  other = sharding.mesh.abstract_mesh
  return (mesh.shape_tuple == other.shape_tuple and
          _manual_axes(other) < _manual_axes(mesh))
