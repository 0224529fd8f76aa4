# SPDX-License-Identifier: Apache-2.0
"""The programs of a patch in reproductions/, each of which shows one defect."""

from __future__ import annotations

import ast
from collections.abc import Iterable
import dataclasses
import pathlib

from mend.editing import patches
from mend.ground import repository
from mend.ground.errors import MendError
from mend.releases import bases


@dataclasses.dataclass(frozen=True)
class Reproduction:
  """One defect: a function of a file in reproductions/."""
  patch: str
  bases: str  # the releases that have it
  report: str
  line: str
  function: str
  source: str
  file: str


def collect(series: Iterable[patches.Patch],
            root: pathlib.Path = bases.ROOT) -> list[Reproduction]:
  """Every reproduction of the series, in order, each file once."""
  found, files = [], set()
  for patch in series:
    for file in patch.reproductions:
      if file not in files:
        files.add(file)
        found += _read_file(root / file, patch.id, patch.bases, file)
  return found


def _read_file(path: pathlib.Path, patch: str, releases: str,
               file: str) -> list[Reproduction]:
  text = repository.text(path)
  try:
    tree = ast.parse(text, str(path))
  except (SyntaxError, ValueError) as e:
    raise MendError(f"{file} does not parse: {e}", f"edit {file}") from e
  named = [ast.literal_eval(node.value) for node in tree.body
           if isinstance(node, ast.Assign)
           and getattr(node.targets[0], "id", "") == "REPORT"]
  functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)
               and not node.name.startswith("_")]
  lines = [(ast.get_docstring(f) or "").strip().split("\n")[0]
           for f in functions]
  if len(named) != 1 or not functions or not all(lines):
    raise MendError(
        f"{path.name} is no reproduction: it needs REPORT = \"...\" and public "
        "functions with a docstring.",
        f"edit reproductions/{path.parent.name}/{path.name}")
  return [Reproduction(patch, releases, named[0], line, f.name, text, file)
          for f, line in zip(functions, lines)]
