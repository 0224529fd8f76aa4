# SPDX-License-Identifier: Apache-2.0
"""Mutants of a mended tree: each lacks one edit or one registration.

An edit is left out by making all others of its file; a registration, by
cutting it out of our module: an entry of a table at the module's top, a
primitive in a call or loop that registers several (another of them stands
there twice then), or the statement where it registers one.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import pathlib
import re

from mend.editing import patches, placing, splice
from mend.editing.edit import Edit
from mend.trees import tree

# The first and last node that are cut, and the node that stands in: `pass`
# where it is the statement itself, another item of the same sequence, or None.
_Cut = tuple[ast.AST, ast.AST, ast.AST | None]


@dataclasses.dataclass(frozen=True)
class Mutant:
  """A mended tree without one edit or registration.

  Attributes:
    label: what it lacks, for people.
    patch: the id of the patch that this is of.
    file: the one file that differs.
    text: the mutant's text of it.
    kind: "edit" or "registration", which is left out.
  """
  label: str
  patch: str
  file: str
  text: str
  kind: str


def generate(result: tree.Result, series: Sequence[patches.Patch],
             source: pathlib.Path) -> list[Mutant]:
  """Makes all mutants of a mended tree.

  Args:
    result: the tree.
    series: the patches that it was made with.
    source: the pristine tree.
  """
  mine = [p for p in series if p.id in result.patches]
  found = []
  for patch in mine:
    found += [m for edit in placing.placed(patch, result.base, source)
              if (m := _without_edit(result, edit, source)) is not None]
  for file, text in result.added.items():
    owners = [p.id for p in mine if file in p.modules]
    if owners:
      found += [Mutant(f"{file}:{line} {what}", owners[0], file, left,
                       "registration")
                for line, what, left in _registrations(text)
                if not _enters_nothing(file, what, result.added)]
  return found


def _enters_nothing(file: str, what: str, added: Mapping[str, str]) -> bool:
  """True if a package names a rule module in vain, or for the order alone.

  Only other bases have it; or it stands in rules/, named without that folder,
  enters its rules as it is imported, and another of our modules imports it.
  """
  package, _, name = file.rpartition("/")
  if name != "__init__.py" or not re.fullmatch(r"'[\w.]+'", what):
    return False
  module = what.strip("'").replace(".", "/")
  itself = f"{package}/rules/{module}.py"
  if itself not in added:
    return f"{package}/{module}.py" not in added
  imported = re.compile(rf"\bimport {module}\b")
  return any(imported.search(text) for path, text in added.items()
             if path.startswith(f"{package}/rules/") and path != itself)


def _without_edit(result: tree.Result, edit: Edit,
                  source: pathlib.Path) -> Mutant | None:
  """The mutant; None for an import that other edits use, or don't any more."""
  if edit.op == "drop_import":
    return None
  spans = result.splices.get(edit.file, ())
  others = [s for s in spans if s.owner != edit.label]
  if len(others) == len(spans):
    return None  # optional, and not made
  if edit.op == "add_import":
    name = edit.code.split()[-1]
    if any(re.search(rf"\b{re.escape(name)}\b", s.text) for s in others):
      return None
  text = splice.apply(tree.read(source / edit.file), others)
  return Mutant(edit.label.removeprefix("patch "), edit.patch, edit.file, text,
                "edit")


def _registrations(text: str) -> Iterator[tuple[int, str, str]]:
  """The line, the source and the module without it, of each registration."""
  raw = text.encode()
  starts = [0]
  for line in raw.splitlines(keepends=True):
    starts.append(starts[-1] + len(line))

  def span(first: ast.AST, last: ast.AST) -> tuple[int, int]:
    return (starts[first.lineno - 1] + first.col_offset,  # type: ignore
            starts[last.end_lineno - 1] + last.end_col_offset)  # type: ignore

  for first, last, instead in _nodes(ast.parse(text).body):
    start, stop = span(first, last)
    what = " ".join(raw[start:stop].decode().split())
    if instead is None:  # an item of a dict, and the comma after it
      comma = re.match(rb"\s*,", raw[stop:])
      stop += comma.end() if comma else 0
      left = b""
    else:
      left = b"pass" if instead is first else raw[slice(*span(instead,
                                                             instead))]
    yield first.lineno, what[:60], (raw[:start] + left + raw[stop:]).decode()  # type: ignore


def _nodes(body: Sequence[ast.stmt]) -> Iterator[_Cut]:
  for node in body:
    if isinstance(node, (ast.If, ast.Try, ast.With)):
      yield from _nodes(node.body)
    elif isinstance(node, ast.For):
      yield from _each(_items(node.iter)) or [(node, node, node)]
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
      several = [a for a in node.value.args if _is_primitive(a)]
      yield from _each(several) or [(node, node, node)]
    elif isinstance(node, ast.Assign) and isinstance(
        node.targets[0], ast.Subscript):
      yield node, node, node
    elif isinstance(node, ast.Assign) and getattr(
        node.targets[0], "id", "").strip("_").isupper():
      yield from _entries(node.value)


def _entries(value: ast.expr) -> Iterator[_Cut]:
  """The entries of a table: of a dict, a fromkeys, or a tuple of names."""
  if isinstance(value, ast.Dict):
    for key, item in zip(value.keys, value.values):
      if key is None:
        yield from _entries(item)
      else:
        yield key, item, None
  elif isinstance(value, ast.Call) and ast.unparse(
      value.func) == "dict.fromkeys":
    yield from _entries(value.args[0])
  else:
    yield from _each([i for i in _items(value) if isinstance(i, ast.Constant)
                      and isinstance(i.value, str)])


def _each(items: Sequence[ast.expr]) -> list[_Cut]:
  """A cut of each of several items; another of them stands in for it."""
  if len(items) < 2:
    return []
  return [(item, item, items[i - 1]) for i, item in enumerate(items)]


def _items(value: ast.expr) -> list[ast.expr]:
  return value.elts if isinstance(value, (ast.Tuple, ast.List, ast.Set)) else []


def _is_primitive(value: ast.expr) -> bool:
  name = getattr(value, "attr", getattr(value, "id", ""))
  return name.endswith("_p")
