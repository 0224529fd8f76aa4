# SPDX-License-Identifier: Apache-2.0
"""An edit on a pristine source gives splices.

Every edit is located on the pristine source, so that patches don't depend on
each other's text; two that touch the same text are refused (see splice.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import dataclasses
import functools

from ast_grep_py import SgNode
from mend.editing import operations, splice, syntax
from mend.editing.edit import Edit
from mend.editing.operations import Source
from mend.editing.splice import Splice


@dataclasses.dataclass(frozen=True)
class Located:
  """The place of an edit: its splices, the upstream text it relies on."""
  splices: tuple[Splice, ...]
  context: str


@functools.cache
def locate(source: Source, edit: Edit) -> Located:
  """The splices of `edit` on a pristine source.

  Raises:
    syntax.NotFound: the place does not exist or is not unique, or the
      definition's parameters are not those that the edit expects.
  """
  if edit.op == "add_text":
    spans, context = operations.add_text(source.text, edit), ""
  else:
    holder = source.holder(edit)
    if edit.takes is not None:
      takes = syntax.parameter_names(holder)
      if takes != list(edit.takes):
        raise syntax.NotFound(f"parameters {takes}, wanted {list(edit.takes)}")
    spans = operations.OPERATIONS[edit.op](source, edit)
    context = _context(source, edit, holder)
  return Located(
      tuple(Splice(a, b, text, edit.label, edit.patch)
            for a, b, text in spans), context)


def _context(source: Source, edit: Edit, holder: SgNode) -> str:
  """The upstream text whose change should make a person look again."""
  if edit.scope:
    return syntax.signature(holder) if edit.needs_signature else holder.text()
  if edit.selector:
    node = syntax.find(holder, syntax.Selector.parse(edit.selector))
    return syntax.statement_of(node).text()
  return ""


def apply(source: Source, todo: Sequence[Edit],
          refuse: Callable[[Edit, syntax.NotFound], Exception],
          ) -> tuple[str, tuple[Splice, ...]]:
  """The text with all edits made, and the splices that made it.

  Args:
    source: a pristine file.
    todo: its edits; insertions at one place keep their order.
    refuse: the error for an edit that has no place, or more than one.

  Raises:
    splice.Overlap: two edits touch the same text.
  """
  splices: list[Splice] = []
  for edit in todo:
    try:
      splices += locate(source, edit).splices
    except syntax.NotFound as e:
      raise refuse(edit, e) from e
  return splice.apply(source.text, splices), tuple(splices)
