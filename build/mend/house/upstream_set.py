# SPDX-License-Identifier: Apache-2.0
"""The commits for upstream as a set: each has its places, and all apply.

Held against the newest release's sources with stand-ins of upstream's test
files, which needs no clone. `export --verify` holds them against upstream's
main.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import pathlib

from mend.editing import patches, upstream_alone
from mend.ground import cache, report
from mend.releases import bases, source
from mend.releases.bases import Base
from mend.trees import checkout, git, sending, stand_ins, tree

_NOBODY = git.Author("Some Body", "some.body@body.example", "1700000000 +0000")
# Each kind of change has lines of its own, as upstream's has.
_LOG = "# Change log\n\n## Unreleased\n\n" + "".join(
    f"* {kind}\n" + "".join(f"  * {kind} {i}.\n" for i in range(4)) + "\n"
    for kind in ("New features", "Changes", "Bug fixes")) + "## Older\n"


def _outside_tests(patch: patches.Patch) -> patches.Patch:
  """The patch without edits of a test's body, which a stand-in hasn't got."""
  assert patch.upstream.commit
  edits = tuple(e for e in patch.upstream.commit.edits
                if not (e.file.startswith("tests/") and "." in e.scope))
  commit = dataclasses.replace(patch.upstream.commit, edits=edits)
  return dataclasses.replace(
      patch, upstream=dataclasses.replace(patch.upstream, commit=commit))


def check(series: Sequence[patches.Patch], base: Base,
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
    tree.write(place / checkout.CHANGELOG, _LOG)
    made, left_out = sending.all_made([*map(_outside_tests, mine)], base, place)
    left_out += [f"{m.patch}: its tests in {', '.join(m.without)} have no "
                 "stand-in" for m in made if m.without]
    if made:
      left_out += sending.write(made, base, place, scratch / "out", _NOBODY)[1]
  return len(mine), left_out


def problems(series: Sequence[patches.Patch]) -> list[str]:
  """Says how many commits were tried; what is left out and why."""
  count, left_out = check(series, bases.releases()[-1])
  for line in left_out:
    report.say(f"LEFT OUT: {line}")
  report.say(f"Upstream: {report.plural(count, 'commit')} tried on stand-ins "
             f"of upstream's test files, {len(left_out)} left out.")
  return left_out
