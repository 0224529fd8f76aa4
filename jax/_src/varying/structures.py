# Copyright 2026 The Mend Authors.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     https://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""Equality and type of ``jax.ShapeDtypeStruct`` inside of shard_map.

Libraries compare structures: is what this function returns like what it was
given (lineax#185, diffrax#765)? Inside of shard_map the structures that
``jax.eval_shape`` makes also hold the mesh whose axes are Manual there, and the
axes that a value varies over, so none equals one that was written down, and two
of the same shape and dtype may differ. Here both are left out of equality and
hash. What stays: a sharding over axes that are Explicit, and axes over which a
value awaits a reduction (unreduced, reduced).

Caches are keyed by structures too: JAX's own, by static arguments or in the
auxiliary data of pytrees, and those of programs and libraries, a dictionary or
``functools.lru_cache``. What was made for a structure that varies isn't right
for one that doesn't: a transpose sums over devices for the second. So where two
structures differ in no more than what is left out, the call stack tells who
asks. Where anybody writes `==`, JAX's checks of pytrees included, it is left
out; what looks a key up compares while it executes a call, a subscript or
`in`, and then nothing is left out. Equal structures, and those that differ in
something else, which is to say nearly all, cost no look at the stack.

Limits: a program that searches a list by `==` takes the two for one; and one
that compares by a function in C (`operator.eq`) for two.

Hashes leave the same out, so that equal structures have equal hashes for all.

A type that was noted inside of shard_map can be met outside: a callback that
was made there runs on the host, on one device's values (equinox's noinline
transposes in one). There nothing varies.

A type that varies is in a mesh. ``jax.eval_shape`` writes none down where some
axes of the mesh are Auto, and nor do people; then it is the mesh of where the
structure is used. Without one, `jnp.searchsorted`, `interp`, `digitize` and
`histogram` were refused in a shard_map over some of the axes.
"""
from __future__ import annotations

import dis
import sys

from jax._src import core
from jax._src import mesh as mesh_lib
from jax._src.named_sharding import NamedSharding
from jax._src.partition_spec import PartitionSpec as P


def equal(a, b) -> bool:
  """Whether two structures are the same, but for what shard_map adds."""
  if key(a) != key(b):
    return False
  return _added(a) == _added(b) or not _looked_up()


def here(aval: core.AbstractValue) -> core.AbstractValue:
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


def typed(aval: core.ShapedArray, sharding, mat=None) -> core.AbstractValue:
  """The type of a structure.

  Args:
    aval: the type by shape and dtype alone.
    sharding: the structure's, or None.
    mat: over which axes it varies, or None.

  Returns:
    The type, in the mesh of this place if the structure has none and varies.
  """
  if sharding is not None or mat is None or mat.empty:
    return core.update_aval_with_sharding(aval, sharding, mat=mat)
  mesh = mesh_lib.get_abstract_mesh()
  if not mesh._any_axis_manual:
    return aval
  # A structure's sharding tells its memory, too; this one isn't its.
  return aval.update(sharding=NamedSharding(mesh, P(*[None] * aval.ndim)),
                     manual_axis_type=mat)


def key(structure) -> tuple:
  """What equality and hash of a ``jax.ShapeDtypeStruct`` count."""
  s = structure
  return (s.shape, s.dtype, _outer(s.sharding), s._dll, s.weak_type, s.is_ref,
          _reductions(s.manual_axis_type))


def _added(structure) -> tuple:
  return structure.sharding, structure.manual_axis_type


def _outer(sharding):
  """A sharding, as far as the Explicit axes of a mesh go."""
  if not isinstance(sharding, NamedSharding):
    return sharding
  mesh = sharding.mesh
  if not mesh._any_axis_manual:
    return sharding
  if not mesh.explicit_axes:
    return None
  sizes = tuple((a, mesh.shape[a]) for a in mesh.explicit_axes)
  return sizes, sharding.spec, sharding.memory_kind


def _reductions(axes):
  if axes is None or not (axes.unreduced or axes.reduced):
    return None
  return (axes.unreduced, axes.reduced, getattr(axes, 'unreduced_kind', None))


def _looked_up() -> bool:
  """Whether a look-up in some cache compares its keys.

  What calls a comparison executes an `==` or `!=`, or it looks a key up. A key
  may compare what it holds by functions of its own, so all comparisons that are
  under way count. JAX's functions on pytrees compare auxiliary data in calls,
  and have no cache.
  """
  frame, below = sys._getframe(2), ''
  while frame is not None:
    if (below == '__eq__' and
        frame.f_globals.get('__name__') != 'jax._src.tree_util' and
        dis.opname[frame.f_code.co_code[frame.f_lasti]] != 'COMPARE_OP'):
      return True
    frame, below = frame.f_back, frame.f_code.co_name
  return False
