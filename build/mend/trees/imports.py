# SPDX-License-Identifier: Apache-2.0
"""The modules imported by a Python text, by their names in it.

Read by tree-sitter: upstream's text can be of a newer Python than this one.
"""

from __future__ import annotations

from collections.abc import Iterator
import functools
import re

from ast_grep_py import SgNode
from mend.editing import syntax

_IMPORTS = ("import_statement", "import_from_statement")

_ANYWHERE = re.compile(
    r"^ *((?:from [\w.]+ import (?:\([^)]*\)|[^(\n]+))|import [\w.][^\n]*)",
    re.MULTILINE)


@functools.cache  # export asks for the same texts once for each commit
def at_import(text: str) -> tuple[str, ...]:
  """The names that a module imports when it is imported itself.

  Imports in functions come later, and those for type checkers alone never.

  Args:
    text: of the module, or of a part of it.

  Returns:
    Dotted names: of `from a import b`, `a.b`.
  """
  return tuple(name for node in _statements(syntax.parse(text))
               for name in names(node.text()))


def _statements(node: SgNode) -> Iterator[SgNode]:
  for child in node.children():
    if child.kind() in _IMPORTS:
      yield child
    elif child.kind() == "if_statement" and "TYPE_CHECKING" in syntax.field(
        child, "condition").text():
      continue
    elif child.kind() not in ("function_definition", "lambda"):
      yield from _statements(child)


def names(statement: str) -> list[str]:
  """The dotted names of one import statement."""
  said = re.sub(r"#.*|[()\\]", " ", statement)
  found = re.match(r"\s*from\s+([\w.]+)\s+import\s+(.*)", said, re.DOTALL)
  if found:
    return [f"{found[1]}.{part.split()[0]}" for part in found[2].split(",")
            if part.strip()]
  return [part.split()[0] for part in said.split("import", 1)[1].split(",")
          if part.strip()]


@functools.cache
def names_in(text: str) -> tuple[str, ...]:
  """The names of all imports of a text, wherever they stand."""
  return tuple(name for said in _ANYWHERE.findall(text)
               for name in names(said))
