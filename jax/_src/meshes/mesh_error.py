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
"""Errors about an array's mesh that is not that of the context.

Over Explicit axes an array's type holds its mesh and its placement, and so does
every operation's result, over the mesh of the context. Another mesh's placement
can't be written as one of these in general, and where it can, taking it would
rename the axes of what was placed on purpose. So such arrays are refused, with
or without ``jit``; the error named both meshes, and not what to write.
"""
from __future__ import annotations


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
      'function outside of the context.')
