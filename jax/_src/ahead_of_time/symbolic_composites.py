# SPDX-License-Identifier: Apache-2.0
"""Composites of symbolic sizes, in a program that is called (jax#40486).

A call of an exported function replaces its symbolic sizes by numbers. The pass
of XLA that does so follows a call into the function that is called, but not a
composite into its decomposition, which it leaves with sizes unknown: "Error
refining shapes". So before that pass such a composite becomes a call of its
decomposition, which is what a composite means. The exported module keeps it,
for those who read it.

Becomes a call: a composite with an operand or a result of a size unknown; one
whose decomposition has such a size anywhere, or reaches another that has.

Cost: one look at each operation of a module of symbolic sizes, or for several
platforms; a copy of the module where there is such a composite.
"""
from __future__ import annotations

from typing import Any

from jax._src.interpreters import mlir
from jax._src.lib.mlir import ir
from jax._src.lib.mlir.dialects import func as func_dialect

_COMPOSITE = 'stablehlo.composite'
_CALLS = {_COMPOSITE: 'decomposition', 'func.call': 'callee'}


def as_calls(module: ir.Module) -> ir.Module:
  """Makes composites of unknown sizes calls of their decompositions.

  Args:
    module: a module whose sizes are about to be refined.

  Returns:
    The module itself if there are none, or a changed copy.
  """
  if not _composites(module.operation):
    return module
  copy = _copied(module)
  with copy.context:
    unknown = _of_unknown_sizes(copy)
    found = [op for op in _composites(copy.operation)
             if _is_of_unknown_size(op) or _symbol(op) in unknown]
    for op in found:
      _call(op)
  return copy if found else module


def _copied(module: ir.Module) -> ir.Module:
  context = mlir.make_ir_context()
  with context:
    return ir.Module.parse(mlir.module_to_bytecode(module))


def _operations(top: Any) -> list[Any]:
  found = []

  def see(op):
    found.append(op)
    return ir.WalkResult.ADVANCE
  top.walk(see)
  return found


def _composites(top: Any) -> list[Any]:
  return [op for op in _operations(top) if op.name == _COMPOSITE]


def _symbol(op: Any) -> str:
  return ir.FlatSymbolRefAttr(op.attributes[_CALLS[op.name]]).value


def _is_of_unknown_size(op: Any) -> bool:
  return any('?' in str(value.type) for value in (*op.operands, *op.results))


def _of_unknown_sizes(module: ir.Module) -> set[str]:
  """The functions with a value of unknown size in them or in their callees."""
  unknown, calls = set(), []
  for function in module.body.operations:
    name = ir.StringAttr(function.attributes['sym_name']).value
    for op in _operations(function.operation):
      if op.name in _CALLS:
        calls.append((name, _symbol(op)))
      if _is_of_unknown_size(op):
        unknown.add(name)
  while above := {f for f, g in calls if g in unknown} - unknown:
    unknown |= above
  return unknown


def _call(op: Any) -> None:
  with ir.InsertionPoint(op), op.location:
    call = func_dialect.CallOp(
        [r.type for r in op.results], op.attributes['decomposition'],
        list(op.operands))
  for old, new in zip(op.results, call.results):
    old.replace_all_uses_with(new)
  op.erase()
