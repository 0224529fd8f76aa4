# SPDX-License-Identifier: Apache-2.0
"""Stand-ins of upstream's test files: the places of edits, in their order.

A source distribution has no tests. `export --verify` writes down, of each test
file that a commit edits, the names that the edits look for, in the order of the
checkout (`build/upstream_places.json`): names only, no line of upstream's. From
these, `check` makes files in which the set of commits has its places, applied
each alone and one after another, without a clone.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
import json
import pathlib

from mend.editing import sendable
from mend.editing.edit import Edit
from mend.ground.errors import MendError
from mend.releases import bases
from mend.trees import tree

FILE = "build/upstream_places.json"
Places = dict[str, list[str]]  # file -> "import NAME", "CLASS", "CLASS.METHOD"


def found_in(checkout: pathlib.Path,
             commits: Iterable[sendable.Commit]) -> Places:
  """The places of the commits' edits in a checkout's test files."""
  wanted: dict[str, set[str]] = {}
  for commit in commits:
    for edit in commit.edits:
      if edit.file.startswith("tests/"):
        wanted.setdefault(edit.file, set()).update(_named(edit))
  return {file: [n for n in _names((checkout / file).read_text("utf-8"))
                 if n in names or n.split(".")[0] in names and "." not in n]
          for file, names in sorted(wanted.items())
          if (checkout / file).is_file()}


def _named(edit: Edit) -> list[str]:
  """The names that an edit looks for."""
  found = [edit.scope] if edit.scope else []
  for selector in (edit.value, edit.before, edit.after):
    kind, _, name = selector.partition(":")
    if kind == "def":
      found.append(f"{edit.scope}.{name}".lstrip("."))
    elif kind == "import":
      found.append(f"import {name}")
  return found


def _names(text: str) -> list[str]:
  """The names that a module imports, and of its classes and their methods."""
  found = []
  for node in ast.parse(text).body:
    if isinstance(node, (ast.Import, ast.ImportFrom)):
      found += [f"import {alias.name}" for alias in node.names]
    elif isinstance(node, ast.ClassDef):
      found.append(node.name)
      found += [f"{node.name}.{f.name}" for f in node.body
                if isinstance(f, ast.FunctionDef)]
  return found


def write(places: Mapping[str, Sequence[str]], folder: pathlib.Path) -> None:
  """Makes the files, of empty classes and tests."""
  for file, names in places.items():
    lines = [n for n in names if n.startswith("import ")]
    for name in names:
      if not name.startswith("import "):
        lines += _stub(name, name in {n.partition(".")[0] for n in names
                                      if "." in n})
    tree.write(folder / file, "\n".join([*lines, ""]))


def _stub(name: str, has_methods: bool) -> list[str]:
  _, _, method = name.partition(".")
  if method:
    return [f"  def {method}(self):", f"    return {method!r}", ""]
  return ["", "", f"class {name}:", ""] + ([] if has_methods else ["  pass"])


def read(root: pathlib.Path = bases.ROOT) -> Places:
  """The stored places.

  Raises:
    MendError: there are none.
  """
  path = root / FILE
  if not path.is_file():
    raise MendError(f"There is no {FILE}.", "build.py export --verify=CHECKOUT "
                    "--output_path=DIR writes it")
  return json.loads(path.read_text("utf-8"))


def store(places: Places, root: pathlib.Path = bases.ROOT) -> None:
  (root / FILE).write_text(json.dumps(places, indent=1) + "\n", "utf-8")
