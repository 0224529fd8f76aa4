# SPDX-License-Identifier: Apache-2.0
"""Axis types of a mesh, however the release spells them.

0.5.3 renamed the enum of what an axis is, and made the context of an abstract
mesh a class of another name; ``axis_types`` was a dict of names by type.
"""
from __future__ import annotations

from typing import Any

from jax._src import mesh

mesh_lib: Any = mesh  # with the names of 0.5.2, too
_EARLY = not hasattr(mesh_lib, 'AxisType')  # up to 0.5.2

if _EARLY:
  AxisType = mesh_lib.AxisTypes
  use_abstract_mesh = mesh_lib.set_abstract_mesh
else:
  AxisType = mesh_lib.AxisType
  use_abstract_mesh = mesh_lib.use_abstract_mesh


def names_of(mesh: Any, kind: Any) -> tuple:
  """The axes of a mesh, in its order, that are of this kind."""
  types = mesh._name_to_type
  return tuple(n for n in mesh.axis_names if types.get(n) == kind)


def retyped(mesh: Any, types: dict) -> Any:
  """An abstract mesh whose axes are of these kinds, by name; others stay."""
  if not _EARLY:
    return mesh.update_axis_types(types)
  by_kind: dict = {}
  for name in mesh.axis_names:
    kind = types.get(name, mesh._name_to_type[name])
    by_kind[kind] = *by_kind.get(kind, ()), name
  return mesh_lib.AbstractMesh(mesh.shape_tuple, axis_types=by_kind)
