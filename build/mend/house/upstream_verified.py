# SPDX-License-Identifier: Apache-2.0
"""The last run of `export --verify`: what each commit passed, where and when.

`build/upstream_verified.json` has a record for each patch. A commit that was
changed since has another digest: nothing is known of it, and it can't be sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
  """The checks that one commit passed.

  Attributes:
    digest: of the commit that was verified.
    commit: upstream's, that it was verified on.
    date: of that commit.
    run: the day of the run.
    lines: of source, added and removed.
    tests: that it adds or changes.
    red: those of them that fail without its source.
    release: the newest release, if that has the same result; else "".
  """
  digest: str
  commit: str
  date: str
  run: str
  lines: int
  tests: int
  red: int
  release: str = ""


def read(root: pathlib.Path = bases.ROOT) -> dict[str, Record]:
  """Patch -> its record."""
  path = root / FILE
  if not path.is_file():
    return {}
  return {patch: Record(**found)
          for patch, found in json.loads(path.read_text("utf-8")).items()}


def of(patch: Patch, known: Mapping[str, Record]) -> Record | None:
  """The record of the patch's commit as it is now; None if it has none."""
  found, commit = known.get(patch.id), patch.upstream.commit
  return found if found and commit and found.digest == commit.digest else None


def write(passed: Sequence[tuple[sending.Made, Sequence[str], int]],
          released: Mapping[str, str], checkout: pathlib.Path,
          series: Sequence[Patch], root: pathlib.Path = bases.ROOT) -> None:
  """Stores a run, beside what is known of the series' other patches.

  Args:
    passed: the commits, each one's tests, and the number of those red.
    released: patch -> the release that it has passed on, too.
    checkout: what they were verified on.
    series: the patches.
    root: the folder of the project.
  """
  commit, date = upstream_main.upstreams_commit(checkout)
  found = read(root)
  for made, tests, red in passed:
    assert made.commit
    found[made.patch] = Record(
        made.commit.digest, commit, date, datetime.date.today().isoformat(),
        made.added + made.removed, len(tests), red,
        released.get(made.patch, ""))
  rows = {p.id: dataclasses.asdict(found[p.id]) for p in series
          if p.id in found}
  (root / FILE).write_text(json.dumps(rows, indent=1) + "\n", "utf-8")
