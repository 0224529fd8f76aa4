# SPDX-License-Identifier: Apache-2.0
"""The programs of a patch in reproductions/, each of which shows one defect."""

from __future__ import annotations

from collections.abc import Iterable
import dataclasses
import pathlib

from mend.editing import patches
from mend.editing.live_modules import module_of_live
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
    report, functions = module_of_live("backend").reported(text)
  except (SyntaxError, ValueError) as e:
    raise MendError(f"{file} does not parse: {e}", f"edit {file}") from e
  if not report or not functions or not all(line for _, line in functions):
    raise MendError(
        f"{path.name} is no reproduction: it needs REPORT = \"...\" and public "
        "functions with a docstring.",
        f"edit reproductions/{path.parent.name}/{path.name}")
  return [Reproduction(patch, releases, report, line, function, text, file)
          for function, line in functions]
