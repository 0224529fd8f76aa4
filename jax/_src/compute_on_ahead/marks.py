# SPDX-License-Identifier: Apache-2.0
"""Puts the compute type on every operation of `compute_on` (jax#27825).

The base marks what a lowering rule returns. An operation that a rule emits on
the way (the square within `x ** 3`, the call of a rule that is lowered out of
line) stayed unmarked, so the compiler may run it on the device, with a transfer
there and back. Here the rule's results are followed back to its operands, and
what lies between is marked too.

Bodies are marked like what is around them: the base already does so for those
of loops, branches, sorts, scatters and `argmax`, whose bodies are jaxprs, and
not for `jnp.sum`, whose body its rule emits. Not marked: constants, which
compute nothing and may be shared with operations outside; and what is neither
StableHLO nor CHLO nor a call.

Cost: each operation is seen once for each rule that it is emitted under, and
only where a compute type is set. Elsewhere there is no call for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from jax._src.lib.mlir import ir

_ATTRIBUTES = 'mhlo.frontend_attributes'
_NOT_COMPUTING = ('stablehlo.constant', 'stablehlo.return')


def marked(ctx: Any, op: Any) -> Any:
  """Marks an operation that its rule emits, for the sake of effects alone.

  What has no results is not found from the rule's results.

  Args:
    ctx: the rule's context.
    op: an IR operation, or a view of one.

  Returns:
    `op`.
  """
  eqn_ctx = ctx.jaxpr_eqn_ctx
  if eqn_ctx is not None and eqn_ctx.compute_type is not None:
    mark(op, eqn_ctx.compute_type)
  return op


def mark_between(compute_type: str, inputs: Any, outputs: Any) -> None:
  """Marks the operations that make `outputs` of `inputs`.

  Args:
    compute_type: a valid compute type.
    inputs: IR values, in any nesting of sequences; nothing is marked beyond.
    outputs: IR values, likewise.
  """
  done = set(_values(inputs))
  todo = list(_values(outputs))
  while todo:
    value = todo.pop()
    if value in done:
      continue
    done.add(value)
    if isinstance(value.owner, ir.Block):
      continue
    op = value.owner.operation
    if op.name in _NOT_COMPUTING:
      continue
    _mark_with_bodies(op, compute_type)
    todo.extend(op.operands)


def mark(op: Any, compute_type: str) -> None:
  """Marks one operation, and keeps the attributes that it has.

  Args:
    op: an IR operation, or a view of one.
    compute_type: a valid compute type.
  """
  op = op.operation
  present = {}
  if _ATTRIBUTES in op.attributes:
    attributes: Any = ir.DictAttr(op.attributes[_ATTRIBUTES])
    present = {a.name: a.attr for a in attributes}
  op.attributes[_ATTRIBUTES] = ir.DictAttr.get(
      {**_attributes(compute_type), **present})


def _mark_with_bodies(op: Any, compute_type: str) -> None:
  todo = [op]
  while todo:
    op = todo.pop()
    if not _computes(op):
      continue
    mark(op, compute_type)
    todo.extend(inner.operation for region in op.regions
                for block in region.blocks for inner in block.operations)


def _computes(op: Any) -> bool:
  dialect = op.name.partition('.')[0]
  return (dialect in ('stablehlo', 'chlo') and op.name not in _NOT_COMPUTING
          or op.name == 'func.call')


def _attributes(compute_type: str) -> dict[str, Any]:
  from jax._src.interpreters import mlir  # pylint: disable=g-import-not-at-top
  stream = compute_type.partition(':')[2]
  if stream:
    return {'_xla_stream_annotation': ir.StringAttr.get(stream),
            'inlineable': ir.StringAttr.get('false')}
  name = mlir.map_compute_type(compute_type)
  return {'_xla_compute_type': ir.StringAttr.get(name)}


def _values(tree: Any) -> Iterable[ir.Value]:
  if isinstance(tree, ir.Value):
    yield tree
  elif isinstance(tree, (list, tuple, ir.OpResultList)):
    for item in tree:
      yield from _values(item)
