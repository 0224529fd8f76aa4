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
"""What the check rule of a primitive that computes from its operands gives.

Its outputs are replicated where every operand is. A constant, whose type is
None, is replicated everywhere and says nothing; a primitive with several
outputs and constant operands only has as many constant outputs ("'NoneType'
object is not iterable" in ``jacrev``, ``hessian`` and ``random.orthogonal``).

Operands may have different types. The rewrite casts them to one type, but the
check also runs on what ``vmap`` and ``jvp`` of a ``shard_map`` made of the
rewritten program, where a batched ``cond`` is a ``select`` and a new tangent
is a constant.
"""
from __future__ import annotations

from jax._src import core


def refuse_unmapped(prim, in_rep) -> None:
  """Raises where a value that vmap maps over a mesh axis meets one that isn't.

  The rewrite came before ``vmap(..., spmd_axis_name=)`` and knows nothing of
  that axis, so no sum over it would be in the gradient of the other value.

  Raises:
    ValueError: in ``vmap(..., spmd_axis_name=)``, if the operands differ so.
  """
  names = core.get_axis_env().spmd_axis_names
  if names and len({frozenset(names.intersection(r)) for r in in_rep
                    if r is not None}) > 1:
    raise ValueError(
        f'jax.vmap with spmd_axis_name {tuple(names)} of shard_map: expected '
        f'operands of {prim} that are all mapped or all not, got '
        f'replication types {in_rep}. Map the others, too, for instance with '
        'jax.numpy.broadcast_to, or pass check_rep=False.')


def per_output(out_rep, num_outs: int) -> list:
  """Returns one type per output, given the types or one that all share."""
  if out_rep is None or isinstance(out_rep, set):
    return [out_rep] * num_outs
  return out_rep
