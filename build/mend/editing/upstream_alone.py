# SPDX-License-Identifier: Apache-2.0
"""Reads `patches/upstream/`: commits for upstream of what a patch has at once.

The fork's mend of a kind of defect can be one patch, where upstream mends place
after place. A file has one such commit, as an `[upstream]` table has it, and
the patch that it is `of`. `upstream/NAME` is its id.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import functools
import pathlib

from mend.editing import families, sendable
from mend.editing.patches import Patch
from mend.ground.errors import MendError
from mend.releases import bases

FOLDER = "patches/upstream"


def with_commits(series: Sequence[Patch],
                 root: pathlib.Path = bases.ROOT) -> list[Patch]:
  """The series, and after it the commits of the folder, as patches.

  Raises:
    MendError: a file is no commit, or its patch is not in the series.
  """
  files = sorted((root / FOLDER).glob("*.toml"))
  return [*series, *(_read(file, series, root) for file in files)]


def _read(file: pathlib.Path, series: Sequence[Patch],
          root: pathlib.Path) -> Patch:
  name = f"upstream/{file.stem}"

  def refuse(problem: str) -> MendError:
    return MendError(f"{name}: {problem}", f"edit {FOLDER}/{file.name}")

  data = bases.read_toml(file)
  of = data.pop("of", None)
  patch = next((p for p in series if p.id == of), None)
  if patch is None:
    raise refuse(f"it is of {of!r}, wanted a patch of the series")
  imports = functools.partial(families.implied_imports, families.load(root),
                              root=root)
  found = sendable.read(name, {"sendable": True, **data}, refuse, imports)
  return dataclasses.replace(patch, id=name, edits=(), upstream=found)
