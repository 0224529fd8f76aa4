# SPDX-License-Identifier: Apache-2.0
"""Reads the targets of upstream's Bazel files, and adds to their lists.

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
  """One rule of a Bazel file: its name and where its lists are.

  Attributes:
    name: of the target.
    rule: that makes it.
    lists: the expressions of its settings, by name.
    last: the line of the rule's last character.
  """
  name: str
  rule: str
  lists: dict[str, ast.expr]
  last: int

  @property
  def srcs(self) -> ast.expr | None:
    return self.lists.get("srcs")

  def holds(self, file: str) -> bool:
    """True if `srcs` names `file`, literally or by a glob."""
    if self.srcs is None or self.names(file):
      return self.srcs is not None
    return any(p.fullmatch(file) for p in _patterns(self.srcs)) and not any(
        p.fullmatch(file) for p in _excluded(self.srcs))

  def names(self, file: str) -> bool:
    """True if `srcs` names `file` by no glob."""
    return self.srcs is not None and file in _literals(self.srcs)

  def strings(self, setting: str) -> list[str]:
    """All strings in a setting; those of a `select` or a call, too."""
    node = self.lists.get(setting)
    return [] if node is None else [
        n.value for n in ast.walk(node)
        if isinstance(n, ast.Constant) and isinstance(n.value, str)]


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
      found.append(Target(
          str(name.value), ast.unparse(node.value.func),
          {k: v for k, v in settings.items() if k}, node.end_lineno or 0))
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


def _literals(node: ast.expr) -> list[str]:
  """The file names in an expression that no call takes."""
  if isinstance(node, ast.BinOp):
    return _literals(node.left) + _literals(node.right)
  return [str(i.value) for i in getattr(node, "elts", ())
          if isinstance(i, ast.Constant)]


def _excluded(node: ast.expr) -> Iterator[re.Pattern[str]]:
  for call in ast.walk(node):
    if isinstance(call, ast.Call) and ast.unparse(call.func) == "glob":
      for k in call.keywords:
        if k.arg == "exclude":
          yield from _patterns(k.value)


@functools.cache
def glob(pattern: str) -> re.Pattern[str]:
  """A Bazel glob as a regular expression."""
  parts = re.split(r"(\*\*/|\*\*|\*)", pattern)
  kinds = {"**/": "(?:[^/]+/)*", "**": ".*", "*": "[^/]*"}
  return re.compile("".join(kinds.get(p) or re.escape(p) for p in parts))


@dataclasses.dataclass
class Additions:
  """Items and rules that one Bazel file gets.

  Attributes:
    items: (target, setting) -> items of that list.
    rules: target -> the rules that stand below it; "" for the file's end.
  """
  items: dict[tuple[str, str], list[str]] = dataclasses.field(
      default_factory=dict)
  rules: dict[str, list[str]] = dataclasses.field(default_factory=dict)

  def item(self, target: str, setting: str, item: str) -> None:
    mine = self.items.setdefault((target, setting), [])
    if item not in mine:
      mine.append(item)

  def rule(self, after: str, rule: str) -> None:
    self.rules.setdefault(after, []).append(rule)


def added(text: str, more: Additions) -> str:
  """The Bazel file with all additions.

  Raises:
    ValueError: there is no such target, or it has no such setting.
  """
  by_name = {t.name: t for t in targets(text)}
  splices: list[tuple[int, int, str]] = []
  for (name, setting), items in more.items.items():
    target = by_name.get(name)
    if target and setting == "deps" and setting not in target.lists:
      splices.append(_new_setting(text, target, setting, items))
    elif target is None or setting not in target.lists:
      raise ValueError(f"no target {name!r} with {setting}")
    else:
      there = {*target.strings(setting)} if setting == "deps" else ()
      new = [i for i in items if i not in there and not target.holds(i)]
      splices += _inserted(text, target.lists[setting], new) if new else []
  for name, rules in more.rules.items():
    last = by_name[name].last if name else None
    lines = text.splitlines(keepends=True)
    at = len("".join(lines[:last]).rstrip("\n"))
    splices.append((at, at, "".join(f"\n\n{r.strip()}" for r in sorted(
        rules))))
  return _spliced(text, splices)


def _spliced(text: str, splices: list[tuple[int, int, str]]) -> str:
  out, position = [], 0
  for begin, end, new in sorted(splices):
    out += [text[position:begin], new]
    position = end
  return "".join([*out, text[position:]])


def _new_setting(text: str, target: Target, setting: str,
                 items: list[str]) -> tuple[int, int, str]:
  """The last setting of a rule that doesn't have it."""
  lines = text.splitlines(keepends=True)
  end = len("".join(lines[:target.last]).rstrip()) - 1  # its bracket
  begin = len(text[:end].rstrip())
  comma = "" if text[begin - 1] == "," else ","
  body = "".join(f'        "{i}",\n' for i in sorted(items, key=order))
  return begin, end, f"{comma}\n    {setting} = [\n{body}    ],\n"


def _inserted(text: str, node: ast.expr,
              new: list[str]) -> list[tuple[int, int, str]]:
  """The splices that put new items into a list, each in its place."""
  listed = _literal_list(node)
  if listed is None:
    at = _offset(text, node.end_lineno, node.end_col_offset)
    said = ", ".join(f'"{i}"' for i in sorted(new, key=order))
    return [(at, at, f" + [{said}]")]
  items = [i for i in listed.elts if isinstance(i, ast.Constant)]
  begin = _offset(text, listed.lineno, listed.col_offset)
  end = _offset(text, listed.end_lineno, listed.end_col_offset)
  if listed.lineno == listed.end_lineno:
    line = text[text.rfind("\n", 0, begin) + 1:begin]
    indent = " " * (len(line) - len(line.lstrip()))
    names = sorted([*(str(i.value) for i in items), *new], key=order)
    body = "".join(f'{indent}    "{name}",\n' for name in names)
    return [(begin, end, f"[\n{body}{indent}]")]
  column = " " * (items[0].col_offset if items else 8)
  found: dict[int, str] = {}
  for item in sorted(new, key=order):
    later = [i for i in items if order(str(i.value)) > order(item)]
    at = (_offset(text, later[0].lineno, 0) if later
          else text.rfind("\n", 0, end) + 1)
    found[at] = found.get(at, "") + f'{column}"{item}",\n'
  return [(at, at, said) for at, said in found.items()]


def order(item: str) -> tuple[bool, bool, str]:
  """Key of Bazel's formatter: a package's own labels, then others'."""
  return item.startswith("@"), item.startswith("//"), item


def _literal_list(node: ast.expr) -> ast.List | None:
  """The first list that is not a call's."""
  if isinstance(node, ast.List):
    return node
  if isinstance(node, ast.BinOp):
    return _literal_list(node.left) or _literal_list(node.right)
  return None


def _offset(text: str, line: int | None, column: int | None) -> int:
  lines = text.splitlines(keepends=True)
  before = lines[:(line or 1) - 1]
  # The parser counts bytes of UTF-8 within a line.
  head = lines[(line or 1) - 1].encode()[:column or 0].decode()
  return sum(len(x) for x in before) + len(head)
