# SPDX-License-Identifier: Apache-2.0
"""The search for an edit's code in a source that may have it already.

Both are compared as trees: whole statements, arguments, members or values,
token by token, so that neither white space nor a comment hides that upstream
has taken an edit, and short code does not match within other code by chance.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
import dataclasses
import textwrap

from ast_grep_py import SgNode
from mend.editing import syntax
from mend.editing.edit import Edit
from mend.editing.operations import Source

Tokens = tuple[str, ...]
_STATEMENTS = ("append", "insert", "replace_body")


def already_there(source: Source, edit: Edit) -> bool:
  """True if the place that `edit` names has its code.

  An import at a module's start says nothing: others may import the same.

  Raises:
    syntax.NotFound: the definition is not there, or the value or call that
      the code would be in.
  """
  if edit.op == "add_text":
    return _lines_within(edit.code, source.text)
  if edit.op in ("add_import", "drop_import"):
    return False
  if edit.op == "around":
    code = f"{edit.scope} = {edit.code.strip()}({edit.scope})"
    return _has_statements(source.module,
                           dataclasses.replace(edit, code=code))
  holder = source.holder(edit)
  if edit.op == "replace_docstring":
    doc = syntax.docstring(holder)
    return doc is not None and (
        doc.text().strip("\"'").split() == edit.doc.split())
  if edit.op in _STATEMENTS or (
      edit.op == "add_member" and holder.kind() == "class_definition"):
    return _has_statements(holder, edit)
  wanted = [tokens(part) for part in edit.code.split("{}")]
  if edit.op == "wrap_call" and len(wanted) == 1:
    wanted = [(*wanted[0], "("), (")",)]
  return any(_fits(wanted, node) for node in _places(source, holder, edit))


def tokens(code: str | SgNode) -> Tokens:
  """The leaves of the syntax tree, comments left out."""
  return tuple(_leaves(syntax.parse(textwrap.dedent(code).strip())
                       if isinstance(code, str) else code))


def _leaves(node: SgNode) -> Iterator[str]:
  inner = [] if node.kind() == "string" else node.children()
  if node.kind() != "comment" and not inner and node.text().strip():
    yield node.text()
  for child in inner:
    yield from _leaves(child)


def _fits(wanted: Sequence[Tokens], node: SgNode) -> bool:
  """True if the node is the code, or, with a `{}`, more within it."""
  found = tokens(node)
  if len(wanted) == 1:
    return found == wanted[0]
  head, tail = wanted
  return (len(found) > len(head) + len(tail) and found[:len(head)] == head
          and found[len(found) - len(tail):] == tail)


def _places(source: Source, holder: SgNode, edit: Edit) -> Iterable[SgNode]:
  """The nodes that would be the edit's code, if it were there."""
  if edit.op == "decorate":
    return [c for c in _outer(holder).children() if c.kind() == "decorator"]
  if edit.op == "add_parameter":
    return syntax.named(syntax.field(holder, "parameters"))
  if edit.op == "add_member":
    return syntax.named(syntax.field(holder, "right"))
  if edit.op in ("replace_call", "wrap_call"):  # the call has another name now
    calls = [n for n in syntax.walk(holder) if n.kind() == "call"]
    return calls if edit.op == "wrap_call" else [
        syntax.field(n, "function") for n in calls]
  node = syntax.find(holder, syntax.Selector.parse(edit.call or edit.value))
  if edit.op == "replace_value":
    if node.kind() == "return_statement":
      return syntax.named(node)[:1]
    return [syntax.field(
        node, "value" if node.kind() == "keyword_argument" else "right")]
  return syntax.named(syntax.field(node, "arguments"))  # add_argument


def _outer(node: SgNode) -> SgNode:
  """A definition with its decorators; any other node as it is."""
  parent = node.parent()
  if parent is not None and parent.kind() == "decorated_definition":
    return parent
  return node


def _has_statements(scope: SgNode, edit: Edit) -> bool:
  """True if the code's statements stand one after another in some block."""
  code = textwrap.dedent(edit.code)
  wanted = [tokens(s) for s in syntax.named(syntax.parse(code))]
  if scope.kind() == "module":
    blocks = [scope]
  elif edit.before or edit.after:  # the statement may be in an inner block
    blocks = [n for n in syntax.walk(scope) if n.kind() == "block"]
  else:
    blocks = [syntax.field(scope, "body")]
  for block in blocks:
    found = syntax.named(block)
    if any(all(map(_is, found[i:], wanted))
           for i in range(len(found) - len(wanted) + 1)):
      return bool(wanted)
  return False


def _is(node: SgNode, wanted: Tokens) -> bool:
  """True if the node has these leaves; most differ in the first already."""
  return (node.text().startswith(wanted[:1] or "")
          and tokens(node) == wanted)


def _lines_within(code: str, text: str) -> bool:
  wanted = code.strip("\n").splitlines()
  found = text.splitlines()
  return any(found[i:i + len(wanted)] == wanted
             for i in range(len(found) - len(wanted) + 1))
