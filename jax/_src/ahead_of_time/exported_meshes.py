# SPDX-License-Identifier: Apache-2.0
"""Exported shardings on a mesh with other axis names (jax#21314).

What is exported runs on other devices, of another process, whose mesh has names
of its own. `Exported.in_shardings_jax(mesh)` made shardings for any such mesh
while it was given them by the compiler's partition, which has no names; since
JAX 0.9 it keeps NamedShardings, and asked for the same names. Names are mapped
by position here: the i-th axis of the mesh stands for the i-th of the one that
was exported for, if the sizes and types of the axes are the same.

Limits: a mesh that splits or joins axes is refused, as upstream.

Cost: a comparison of tuples; where names differ, one look at a PartitionSpec.
"""
from __future__ import annotations

from typing import Any

from jax._src.named_sharding import NamedSharding


def by_position(sharding: NamedSharding | None, mesh: Any
                ) -> NamedSharding | None:
  """Renames the axes of a sharding to those of another mesh.

  Args:
    sharding: that of an argument or a result, over the exported mesh.
    mesh: the mesh that a sharding is asked for, or None.

  Returns:
    The sharding over the abstract mesh of `mesh`, if that has the same axes
    under other names; otherwise `sharding` itself.
  """
  if sharding is None or mesh is None:
    return sharding
  old, new = sharding.mesh, mesh.abstract_mesh
  if (old.axis_names == new.axis_names or old.axis_sizes != new.axis_sizes or
      old.axis_types != new.axis_types):
    return sharding
  names = dict(zip(old.axis_names, new.axis_names))

  def renamed(entry):
    if isinstance(entry, tuple):
      return tuple(names[n] for n in entry)
    return names[entry] if isinstance(entry, str) else entry

  spec = sharding.spec
  return sharding.update(mesh=new, spec=spec.update(
      partitions=[renamed(entry) for entry in spec],
      unreduced=frozenset(names[n] for n in spec.unreduced),
      reduced=frozenset(names[n] for n in spec.reduced)))
