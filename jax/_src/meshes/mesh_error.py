# SPDX-License-Identifier: Apache-2.0
"""Errors about an array over another mesh than the context's.

Over Explicit axes an array's type holds its mesh and its placement, and so does
every operation's result, over the mesh of the context. Another mesh's placement
can't be written as one of these in general, and where it can, taking it would
rename the axes of what was placed on purpose. So such arrays are refused, with
or without ``jit``; the error named both meshes, and not what to write.
"""
from __future__ import annotations

from jax._src.mend import pages


def with_next_step(error: ValueError, mesh, aval) -> ValueError:
  """The error about an operand's mesh, which says what to write.

  Args:
    error: what upstream raises.
    mesh: the mesh of the context.
    aval: the operand's type.

  Returns:
    The error; as it is where the context is the inside of a ``shard_map``.
  """
  if mesh._any_axis_manual:
    return error
  return type(error)(
      f"{error}\nExpected an array over the context's mesh, with the axes "
      f'{mesh.axis_names}; got one over the axes '
      f'{aval.sharding.mesh.axis_names}, and over Explicit axes the mesh is '
      "part of an array's type. Place it first, with jax.device_put(x, "
      'NamedSharding(mesh, spec)) over the mesh of the context, or call the '
      'function outside of the context.' +
      pages.see('meshes.md#arrays-over-another-mesh'))
