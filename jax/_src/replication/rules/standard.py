# SPDX-License-Identifier: Apache-2.0
"""Check rules of primitives that only compute: a type for each output.

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

from jax._src.replication.rules import unmapped

refuse_unmapped = unmapped.refuse_partly_mapped


def per_output(out_rep, num_outs: int) -> list:
  """Returns one type per output, given the types or one that all share."""
  if out_rep is None or isinstance(out_rep, set):
    return [out_rep] * num_outs
  return out_rep
