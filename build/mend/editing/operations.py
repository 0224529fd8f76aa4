# SPDX-License-Identifier: Apache-2.0
"""The operations of a patch: what each makes of a pristine source.

An operation is given the source and an edit, and says which spans give way to
which text.
"""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import functools
import re
import textwrap

from ast_grep_py import SgNode
from mend.editing import syntax
from mend.editing.edit import Edit

Spans = list[tuple[int, int, str]]  # start, stop, new text


class Source:
  """A text with its syntax tree."""

  def __init__(self, text: str):
    self.text = text
    self.module = syntax.parse(text)

  def line_start(self, index: int) -> int:
    return self.text.rfind("\n", 0, index) + 1

  def line_end(self, index: int) -> int:
    at = self.text.find("\n", index)
    return len(self.text) if at < 0 else at

  def indent(self, index: int) -> str:
    """The white space before `index`, which must open its line."""
    before = self.text[self.line_start(index):index]
    if before.strip():
      raise syntax.NotFound("a statement at the start of a line")
    return before

  def holder(self, edit: Edit) -> SgNode:
    if not edit.scope:
      return self.module
    return syntax.find_definition(self.module, edit.scope, edit.n)


@functools.cache
def parsed(text: str) -> Source:
  """The text's tree; `check` and `export` ask for the same ones repeatedly."""
  return Source(text)


def _block(code: str, indent: str) -> str:
  return textwrap.indent(textwrap.dedent(code).strip("\n"), indent)


def _inline(code: str, column: str) -> str:
  lines = textwrap.dedent(code).strip().splitlines()
  return ("\n" + column).join(lines)


def _add_import(source: Source, edit: Edit) -> Spans:
  if edit.in_order and (near := _where_sorted(source, edit.code.strip())):
    node, at = near, source.line_end(syntax.end(near))
    if syntax.import_key(node.text()) > syntax.import_key(edit.code):
      at = source.line_start(syntax.start(node))
      return [(at, at, _block(edit.code, "") + "\n")]
    return [(at, at, "\n" + _block(edit.code, ""))]
  last = syntax.last_leading_import(source.module)
  if last is None:
    raise syntax.NotFound("no import at the module's start")
  at = source.line_end(syntax.end(last))
  return [(at, at, "\n" + _block(edit.code, ""))]


def _drop_import(source: Source, edit: Edit) -> Spans:
  node = syntax.find(source.module, syntax.Selector.parse(edit.value))
  if len(syntax.bound_by_import(node)) > 1:
    raise syntax.NotFound("an import of that name alone")
  begin, end = (source.line_start(syntax.start(node)),
                source.line_end(syntax.end(node)))
  # With the line end before it: what others add after it stays.
  return [(begin - 1, end, "") if begin else (begin, end + 1, "")]


def _where_sorted(source: Source, code: str) -> SgNode | None:
  """The import that a new one stands after, or before if it sorts first.

  Of those of its package; None where there is none of it.
  """
  wanted = syntax.import_key(code)
  near = [n for n in syntax.leading_imports(source.module)
          if syntax.import_key(n.text())[0] == wanted[0]]
  before = [n for n in near if syntax.import_key(n.text()) <= wanted]
  return before[-1] if before else near[0] if near else None


def _append(source: Source, edit: Edit) -> Spans:
  at = len(source.text)
  gap = "" if source.text.endswith("\n") else "\n"
  return [(at, at, gap + "\n" + _block(edit.code, "") + "\n")]


def _insert(source: Source, edit: Edit) -> Spans:
  if edit.at:
    return _insert_at(source, edit)
  selector = syntax.Selector.parse(edit.before or edit.after)
  node = syntax.statement_of(syntax.find(source.holder(edit), selector))
  indent = source.indent(syntax.start(node))
  if edit.before:
    at = source.line_start(syntax.start(node))
    return [(at, at, _block(edit.code, indent) + "\n")]
  at = source.line_end(syntax.end(node))
  return [(at, at, "\n" + _block(edit.code, indent))]


def _insert_at(source: Source, edit: Edit) -> Spans:
  holder = source.holder(edit)
  body = syntax.named(syntax.field(holder, "body"))
  indent = source.indent(syntax.start(body[0]))
  if edit.at == "end":
    at = source.line_end(syntax.end(body[-1]))
    return [(at, at, "\n" + _block(edit.code, indent))]
  doc = syntax.docstring(holder)
  if doc is not None:
    at = source.line_end(syntax.end(doc))
    return [(at, at, "\n" + _block(edit.code, indent))]
  at = source.line_start(syntax.start(body[0]))
  return [(at, at, _block(edit.code, indent) + "\n")]


def _quoted(doc: str, indent: str) -> str:
  lines = textwrap.dedent(doc).strip().splitlines()
  tail = "\n" + indent if len(lines) > 1 else ""
  rest = [(indent + line).rstrip() for line in lines[1:]]
  body = "\n".join([lines[0], *rest])
  return f'{indent}"""{body}{tail}"""'


def _replace_body(source: Source, edit: Edit) -> Spans:
  holder = source.holder(edit)
  block = syntax.field(holder, "body")
  old_doc = syntax.docstring(holder)
  def_indent = source.text[source.line_start(syntax.start(holder)):
                           syntax.start(holder)]
  indent = " " * len(def_indent) + "  "
  parts = [_quoted(edit.doc, indent)] if edit.doc else []
  parts.append(_block(edit.code, indent))
  if old_doc is not None and not edit.doc:
    begin = syntax.end(old_doc)
  else:
    colons = [c for c in holder.children() if c.text() == ":"]
    begin = syntax.end(colons[-1])
    rest = source.text[begin:source.line_end(begin)]
    if rest.strip().startswith("#"):
      begin += len(rest)
  return [(begin, syntax.end(block), "\n" + "\n".join(parts))]


def _replace_docstring(source: Source, edit: Edit) -> Spans:
  holder = source.holder(edit)
  old = syntax.docstring(holder)
  first = old or syntax.named(syntax.field(holder, "body"))[0]
  at = source.line_start(syntax.start(first))
  text = _quoted(edit.doc, source.indent(syntax.start(first)))
  return [(at, syntax.end(old), text)] if old else [(at, at, text + "\n")]


def _called(source: Source, edit: Edit) -> SgNode:
  return syntax.find(source.holder(edit), syntax.Selector.parse(edit.call))


def _replace_call(source: Source, edit: Edit) -> Spans:
  function = syntax.field(_called(source, edit), "function")
  return [(syntax.start(function), syntax.end(function), edit.code.strip())]


def _around(node: SgNode, code: str) -> Spans:
  head, tail = code.split("{}")
  begin, stop = syntax.start(node), syntax.end(node)
  return [(begin, begin, head), (stop, stop, tail)]


def _wrap_call(source: Source, edit: Edit) -> Spans:
  code = edit.code.strip()
  return _around(_called(source, edit), code if "{}" in code else code + "({})")


def _replace_value(source: Source, edit: Edit) -> Spans:
  selector = syntax.Selector.parse(edit.value)
  node = syntax.find(source.holder(edit), selector)
  if node.kind() == "return_statement":
    value = syntax.named(node)[0]
  else:
    value = syntax.field(
        node, "value" if node.kind() == "keyword_argument" else "right")
  if "{}" in edit.code:
    return _around(value, edit.code.strip())
  column = " " * (syntax.start(value) - source.line_start(syntax.start(value)))
  return [(syntax.start(value), syntax.end(value), _inline(edit.code, column))]


def _replace_statement(source: Source, edit: Edit) -> Spans:
  node = syntax.statement_of(
      syntax.find(source.holder(edit), syntax.Selector.parse(edit.value)))
  indent = source.indent(syntax.start(node))
  begin = source.line_start(syntax.start(node))
  end = source.line_end(syntax.end(node))
  code = _block(edit.code, indent)
  return [(begin, end if code else end + 1, code)]


def _append_item(source: Source, node: SgNode, code: str) -> Spans:
  items = syntax.named(node)
  if not items:
    return [(syntax.end(node) - 1, syntax.end(node) - 1, code)]
  at = syntax.end(items[-1])
  trailing = re.match(r"\s*,", source.text[at:syntax.end(node)])
  if trailing:
    return [(at + trailing.end(), at + trailing.end(), f" {code},")]
  return [(at, at, f", {code}")]


def _add_argument(source: Source, edit: Edit) -> Spans:
  arguments = syntax.field(_called(source, edit), "arguments")
  return _append_item(source, arguments, edit.code.strip())


def _add_parameter(source: Source, edit: Edit) -> Spans:
  parameters = syntax.field(source.holder(edit), "parameters")
  items = syntax.named(parameters)
  if items and items[-1].text().startswith("**"):
    at = syntax.start(items[-1])
    return [(at, at, edit.code.strip() + ", ")]
  return _append_item(source, parameters, edit.code.strip())


def _add_member(source: Source, edit: Edit) -> Spans:
  holder = source.holder(edit)
  if holder.kind() == "class_definition":
    if edit.after:
      node = syntax.statement_of(
          syntax.find(holder, syntax.Selector.parse(edit.after)))
      at = source.line_end(syntax.end(node))
      indent = source.indent(syntax.start(node))
      return [(at, at, "\n\n" + _block(edit.code, indent))]
    ((at, _, text),) = _insert_at(source, dataclasses.replace(edit, at="end"))
    return [(at, at, "\n" + text)]
  display = syntax.field(holder, "right")
  if display.kind() not in ("list", "tuple", "dictionary", "set"):
    raise syntax.NotFound(f"a list, tuple, dict or set, found {display.kind()}")
  return _append_item(source, display, edit.code.strip())


def _decorate(source: Source, edit: Edit) -> Spans:
  node = syntax.statement_of(source.holder(edit))
  indent = source.indent(syntax.start(node))
  at = source.line_start(syntax.start(node))
  return [(at, at, _block(edit.code, indent) + "\n")]


def _wrap_definition(source: Source, edit: Edit) -> Spans:
  """Binds a module's function, or a class's, to what `code` makes of it."""
  outer, _, _ = edit.scope.rpartition(".")
  if outer:
    holder = syntax.find_definition(source.module, outer, None)
    if "." in outer or holder.kind() != "class_definition":
      raise syntax.NotFound("a function of the module, or of a class in it")
  code = f"{edit.scope} = {edit.code.strip()}({edit.scope})"
  return _append(source, dataclasses.replace(edit, code=code))


def add_text(text: str, edit: Edit) -> Spans:
  found = list(re.finditer(edit.after, text, re.MULTILINE))
  if len(found) != 1:
    places = ", ".join(str(text.count("\n", 0, m.start()) + 1) for m in found)
    raise syntax.NotFound(f"{len(found)} matches of {edit.after!r}"
                          + (f", in lines {places}" if found else ""))
  at = text.find("\n", found[0].end())
  at = len(text) if at < 0 else at
  return [(at, at, "\n" + edit.code.strip("\n"))]


OPERATIONS: dict[str, Callable[[Source, Edit], Spans]] = {
    "add_import": _add_import, "append": _append, "insert": _insert,
    "replace_body": _replace_body, "replace_docstring": _replace_docstring,
    "replace_call": _replace_call, "wrap_call": _wrap_call,
    "replace_value": _replace_value, "add_argument": _add_argument,
    "add_parameter": _add_parameter, "add_member": _add_member,
    "decorate": _decorate, "around": _wrap_definition,
    "replace_statement": _replace_statement, "drop_import": _drop_import,
}
