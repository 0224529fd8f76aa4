# SPDX-License-Identifier: Apache-2.0
"""Equality and type of ``jax.ShapeDtypeStruct`` inside of shard_map.

Libraries compare structures: is what this function returns like what it was
given (lineax#185, diffrax#765)? Inside of shard_map the structures that
``jax.eval_shape`` makes name the mesh whose axes are Manual there, so none
equalled one that was written down without a mesh.

Two structures are equal where arrays of theirs have the same type: a structure
without a sharding is in the mesh of where it is used, as its type is (below),
and one that states no varying axes is the same on all devices. What counts is
shape, dtype, weak type, layout and kind, a sharding that says more than that
the mesh is Manual, and the axes that a value varies over or awaits a reduction
over. Everybody gets this one relation, JAX's caches, dictionaries, lists and
programs that write `==`. At any one place it is an equivalence, and the hash,
which leaves the mesh out, goes with it. So what a cache holds for a structure
serves for all that are equal to it. Outside of shard_map it is JAX's own.

Why axes count, though libraries could do without: what was made for a structure
that varies isn't right for one that doesn't (a transpose sums over devices for
the second, silently). If one that states no axes were equal to any, equality
weren't transitive, and a dictionary would answer for the one or the other by
which was entered first.

Limits: a structure that was written down isn't equal to one that varies, and
one that doesn't vary not to one that does, as on stock JAX: a loop whose carry
holds a structure that comes to vary is refused, and so are comparisons that
some libraries make (docs/proof/libraries.md). Who means shape and dtype
compares these. A structure of one mesh isn't equal to one without a mesh
elsewhere.

A type that was noted inside of shard_map can be met outside: a callback that
was made there runs on the host, on one device's values (equinox's noinline
transposes in one). There nothing varies.

A type that varies is in a mesh. ``jax.eval_shape`` writes none down where some
axes of the mesh are Auto, and nor do people; then it is the mesh of where the
structure is used. Without one, `jnp.searchsorted`, `interp`, `digitize` and
`histogram` were refused in a shard_map over some of the axes.
"""
from __future__ import annotations

from jax._src import core
from jax._src import mesh as mesh_lib
from jax._src.mend import manual_axes
from jax._src.named_sharding import NamedSharding
from jax._src.partition_spec import PartitionSpec as P


def equal(a, b) -> bool:
  """True if arrays of two structures have the same type, at this place."""
  return key(a) == key(b) and _mesh(a) == _mesh(b)


def at_current_mesh(aval: core.AbstractValue) -> core.AbstractValue:
  """A type that was noted somewhere, as it is at this place.

  Args:
    aval: the type of an argument.

  Returns:
    The type; without varying axes and Manual mesh outside of any shard_map.
  """
  if (not isinstance(aval, core.ShapedArray)
      or not aval.sharding.mesh._any_axis_manual
      or aval.sharding.mesh.explicit_axes
      or mesh_lib.get_abstract_mesh()._any_axis_manual):
    return aval
  return core.ShapedArray(aval.shape, aval.dtype, weak_type=aval.weak_type,
                          memory_space=aval.memory_space)


def typed(aval: core.ShapedArray, sharding, /, **axes) -> core.AbstractValue:
  """The type of a structure.

  Args:
    aval: the type by shape and dtype alone.
    sharding: the structure's, or None.
    **axes: over which axes it varies, or None, by JAX's name for that.

  Returns:
    The type, in the mesh of this place if the structure has none and varies.
  """
  said, = axes.values()
  if sharding is not None or not manual_axes.stated(said):
    return core.update_aval_with_sharding(aval, sharding, **axes)
  mesh = mesh_lib.get_abstract_mesh()
  if not mesh._any_axis_manual:
    return aval
  # A structure's sharding tells its memory, too; this one isn't its.
  return aval.update(sharding=NamedSharding(mesh, P(*[None] * aval.ndim)),
                     **{manual_axes.FIELD: said})


def key(structure) -> tuple:
  """The fields of a ``jax.ShapeDtypeStruct``, without a mere Manual mesh."""
  s, axes = structure, getattr(structure, manual_axes.FIELD)
  return (s.shape, s.dtype, None if _is_mesh(s.sharding) else s.sharding,
          s._dll, s.weak_type, s.is_ref,
          axes if manual_axes.stated(axes) else None)


def _is_mesh(sharding) -> bool:
  """True if a sharding says no more than which mesh is Manual."""
  return (isinstance(sharding, NamedSharding)
          and sharding.mesh._any_axis_manual
          and not sharding.mesh.explicit_axes
          and sharding.memory_kind in (None, 'device')
          and sharding.spec == P(*[None] * len(sharding.spec)))


def _mesh(structure):
  """A structure's abstract mesh; None if its sharding has no mesh."""
  sharding = structure.sharding
  if sharding is None:
    return mesh_lib.get_abstract_mesh()
  if isinstance(sharding, NamedSharding):
    return sharding.mesh.abstract_mesh
  return None
