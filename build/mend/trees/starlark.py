"""Adds source files to the targets of upstream's Bazel files.

A Bazel file reads as Python, so the standard library's parser finds the place
and text is spliced there: nothing else in the file moves.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
import dataclasses
import functools
import re


@dataclasses.dataclass(frozen=True)
class Target:
  """One rule of a Bazel file: its name and where its `srcs` are."""
  name: str
  rule: str
  srcs: ast.expr | None

  def holds(self, file: str) -> bool:
    """True if `srcs` names `file`, literally or by a glob."""
    return self.srcs is not None and any(
        pattern.fullmatch(file) for pattern in _patterns(self.srcs))


@functools.cache  # export asks for the same texts once for each commit
def targets(text: str) -> tuple[Target, ...]:
  """The rules that stand at the top of the file and have a name."""
  found = []
  for node in ast.parse(text).body:
    if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
            and isinstance(node.value.func, (ast.Name, ast.Attribute))):
      continue
    settings = {k.arg: k.value for k in node.value.keywords}
    name = settings.get("name")
    if isinstance(name, ast.Constant):
      found.append(Target(str(name.value), ast.unparse(node.value.func),
                          settings.get("srcs")))
  return tuple(found)


def _patterns(node: ast.expr) -> Iterator[re.Pattern[str]]:
  if isinstance(node, ast.Constant) and isinstance(node.value, str):
    yield glob(node.value)
  elif isinstance(node, (ast.List, ast.Tuple)):
    for item in node.elts:
      yield from _patterns(item)
  elif isinstance(node, ast.BinOp):
    yield from _patterns(node.left)
    yield from _patterns(node.right)
  elif isinstance(node, ast.Call) and ast.unparse(node.func) == "glob":
    include = node.args[:1] + [k.value for k in node.keywords
                               if k.arg == "include"]
    for item in include:
      yield from _patterns(item)


@functools.cache
def glob(pattern: str) -> re.Pattern[str]:
  """A Bazel glob as a regular expression."""
  parts = re.split(r"(\*\*/|\*\*|\*)", pattern)
  kinds = {"**/": "(?:[^/]+/)*", "**": ".*", "*": "[^/]*"}
  return re.compile("".join(kinds.get(p) or re.escape(p) for p in parts))


def add_source(text: str, target: str, file: str) -> str:
  """The Bazel file with `file` in the `srcs` of `target`.

  Raises:
    ValueError: there is no such target with `srcs`.
  """
  for found in targets(text):
    if found.name == target and found.srcs is not None:
      if found.holds(file):
        return text
      listed = _literal_list(found.srcs)
      if listed is None:
        at = _offset(text, found.srcs.end_lineno, found.srcs.end_col_offset)
        return f'{text[:at]} + ["{file}"]{text[at:]}'
      return _insert(text, listed, file)
  raise ValueError(f"no target {target!r} with srcs")


def _literal_list(node: ast.expr) -> ast.List | None:
  """The first list of file names that is not a glob's."""
  if isinstance(node, ast.List):
    return node
  if isinstance(node, ast.BinOp):
    return _literal_list(node.left) or _literal_list(node.right)
  return None


def _insert(text: str, listed: ast.List, file: str) -> str:
  items = [i for i in listed.elts if isinstance(i, ast.Constant)]
  begin = _offset(text, listed.lineno, listed.col_offset)
  end = _offset(text, listed.end_lineno, listed.end_col_offset)
  if listed.lineno == listed.end_lineno:
    line = text[text.rfind("\n", 0, begin) + 1:begin]
    indent = " " * (len(line) - len(line.lstrip()))
    names = sorted([*(str(i.value) for i in items), file])
    body = "".join(f'{indent}    "{name}",\n' for name in names)
    return f"{text[:begin]}[\n{body}{indent}]{text[end:]}"
  later = [i for i in items if str(i.value) > file]
  at = (_offset(text, later[0].lineno, 0) if later
        else text.rfind("\n", 0, end) + 1)
  column = items[0].col_offset if items else 8
  return f'{text[:at]}{" " * column}"{file}",\n{text[at:]}'


def _offset(text: str, line: int | None, column: int | None) -> int:
  lines = text.splitlines(keepends=True)
  before = lines[:(line or 1) - 1]
  # The parser counts bytes of UTF-8 within a line.
  head = lines[(line or 1) - 1].encode()[:column or 0].decode()
  return sum(len(x) for x in before) + len(head)
