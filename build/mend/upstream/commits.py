# SPDX-License-Identifier: Apache-2.0
"""The commits for upstream: what each has passed, and that all apply together.

`export --verify` holds them against upstream's main, and keeps a record for
each patch in `build/upstream_verified.json`. A commit that was changed since
has another digest: nothing is known of it, and it can't be sent. `check` needs
no clone: it applies them to the newest release's sources, with stand-ins of
upstream's test files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
import datetime
import json
import pathlib

from mend.editing import upstream_alone
from mend.editing.patches import Patch
from mend.ground import cache, report
from mend.releases import bases, source
from mend.releases.bases import Base
from mend.trees import checkout as checkouts
from mend.trees import git, sending, stand_ins, tree
from mend.upstream import main_branch

VERIFIED = "build/upstream_verified.json"
_NOBODY = git.Author("Some Body", "some.body@body.example", "1700000000 +0000")
# Each kind of change has lines of its own, as upstream's has.
_LOG = "# Change log\n\n## Unreleased\n\n" + "".join(
    f"* {kind}\n" + "".join(f"  * {kind} {i}.\n" for i in range(4)) + "\n"
    for kind in ("New features", "Changes", "Bug fixes")) + "## Older\n"


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


def verified(root: pathlib.Path = bases.ROOT) -> dict[str, Record]:
  """Patch -> its record."""
  path = root / VERIFIED
  if not path.is_file():
    return {}
  return {patch: Record(**found)
          for patch, found in json.loads(path.read_text("utf-8")).items()}


def record_of(patch: Patch, known: Mapping[str, Record]) -> Record | None:
  """The record of the patch's commit as it is now; None if it has none."""
  found, commit = known.get(patch.id), patch.upstream.commit
  return found if found and commit and found.digest == commit.digest else None


def store(passed: Sequence[tuple[sending.Made, Sequence[str], int]],
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
  commit, date = main_branch.upstreams_commit(checkout)
  found = verified(root)
  for made, tests, red in passed:
    assert made.commit
    found[made.patch] = Record(
        made.commit.digest, commit, date, datetime.date.today().isoformat(),
        made.added + made.removed, len(tests), red,
        released.get(made.patch, ""))
  rows = {p.id: dataclasses.asdict(found[p.id]) for p in series
          if p.id in found}
  (root / VERIFIED).write_text(json.dumps(rows, indent=1) + "\n", "utf-8")


def _outside_tests(patch: Patch) -> Patch:
  """The patch without edits of a test's body, which a stand-in hasn't got."""
  assert patch.upstream.commit
  edits = tuple(e for e in patch.upstream.commit.edits
                if not (e.file.startswith("tests/") and "." in e.scope))
  commit = dataclasses.replace(patch.upstream.commit, edits=edits)
  return dataclasses.replace(
      patch, upstream=dataclasses.replace(patch.upstream, commit=commit))


def check(series: Sequence[Patch], base: Base,
          origin: pathlib.Path | None = None,
          root: pathlib.Path = bases.ROOT) -> tuple[int, list[str]]:
  """Counts the commits, and says what is left out and why.

  Args:
    series: the patches.
    base: the release whose sources are taken.
    origin: these sources; fetched if None.
    root: the folder of the project.
  """
  mine = [p for p in upstream_alone.with_commits(series, root)
          if p.upstream.commit]
  if not mine:
    return 0, []
  files = {e.file for p in mine if p.upstream.commit
           for e in p.upstream.commit.edits}
  origin = origin or source.pristine(base)
  with cache.scratch() as scratch:
    place = scratch / "place"
    for file in sorted(files):
      if (origin / file).is_file():
        tree.write(place / file, tree.read(origin / file))
    stand_ins.write(stand_ins.read(root), place)
    tree.write(place / checkouts.CHANGELOG, _LOG)
    made, left_out = sending.all_made([*map(_outside_tests, mine)], base, place)
    left_out += [f"{m.patch}: its tests in {', '.join(m.without)} have no "
                 "stand-in" for m in made if m.without]
    if made:
      left_out += sending.write(made, base, place, scratch / "out", _NOBODY)[1]
  return len(mine), left_out


def problems(series: Sequence[Patch]) -> list[str]:
  """Says how many commits were tried; what is left out and why."""
  count, left_out = check(series, bases.releases()[-1])
  for line in left_out:
    report.say(f"LEFT OUT: {line}")
  report.say(f"Upstream: {report.plural(count, 'commit')} tried on stand-ins "
             f"of upstream's test files, {len(left_out)} left out.")
  return left_out
