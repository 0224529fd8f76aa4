# SPDX-License-Identifier: Apache-2.0
"""The last run of `export --verify`: what each commit passed, where and when.

`build/upstream_verified.json` has a record for each patch. A commit that was
changed since has another digest: nothing is known of it, and it can't be sent.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import datetime
import json
import pathlib

from mend.editing.patches import Patch
from mend.house import upstream_main
from mend.releases import bases
from mend.trees import sending

FILE = "build/upstream_verified.json"


@dataclasses.dataclass(frozen=True)
class Record:
  """What one commit passed.

  Attributes:
    digest: of the commit that was verified.
    commit: upstream's, that it was verified on.
    date: of that commit.
    run: the day of the run.
    lines: of source, added and removed.
    tests: that it adds or changes.
    red: those of them that fail without its source.
  """
  digest: str
  commit: str
  date: str
  run: str
  lines: int
  tests: int
  red: int


def read(root: pathlib.Path = bases.ROOT) -> dict[str, Record]:
  """Patch -> its record."""
  path = root / FILE
  if not path.is_file():
    return {}
  return {patch: Record(**found)
          for patch, found in json.loads(path.read_text("utf-8")).items()}


def of(patch: Patch, known: dict[str, Record]) -> Record | None:
  """The record of the patch's commit as it is now; None if it has none."""
  found, commit = known.get(patch.id), patch.upstream.commit
  return found if found and commit and found.digest == commit.digest else None


class Keeper:
  """Takes down a run, commit by commit; `write` stores it."""

  def __init__(self, checkout: pathlib.Path):
    self._on = upstream_main.upstreams_commit(checkout)
    self._run = datetime.date.today().isoformat()
    self._found: dict[str, Record] = {}

  def keep(self, made: sending.Made, tests: int, red: int) -> None:
    assert made.commit
    self._found[made.patch] = Record(
        made.commit.digest, *self._on, self._run, made.added + made.removed,
        tests, red)

  def write(self, series: Sequence[Patch],
            root: pathlib.Path = bases.ROOT) -> None:
    """Stores what was kept, beside what is known of the series' others."""
    found = {**read(root), **self._found}
    rows = {p.id: dataclasses.asdict(found[p.id]) for p in series
            if p.id in found}
    (root / FILE).write_text(json.dumps(rows, indent=1) + "\n", "utf-8")
