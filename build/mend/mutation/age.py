# SPDX-License-Identifier: Apache-2.0
"""The last run of mutation testing: its date, and what it looked at.

A run with `--write` notes, for each patch, a digest of its edits and of the
names of its modules in `build/mutation_run.json`. An edit or module that came
later has been removed by no mutant: `check` bears with twelve such patches and
of each family with a quarter, until the next release of Mend.
"""

from __future__ import annotations

import collections
from collections.abc import Collection, Sequence
import datetime
import hashlib
import pathlib

from mend.editing.patches import Patch
from mend.ground import report
from mend.releases import bases
import msgspec

FILE = "build/mutation_run.json"
_MOST = 12  # patches
_OF_FAMILY = 4  # one in so many, or one
# Between them these releases have 527 of the 563 edits.
COMMAND = ("python3 build/build.py test --mutation --since --write "
           "--base=0.5.3,0.6.0,0.9.2,0.12.0.1")


class Run(msgspec.Struct):
  """A run of mutation testing on all patches.

  Attributes:
    date: of its end, as 2026-11-26.
    release: of Mend, by number.
    patches: the digest of each patch.
  """
  date: str
  release: int
  patches: dict[str, str]


def digest(patch: Patch) -> str:
  """Digests what mutants remove: a patch's edits, and its modules' names."""
  parts = [f"{e.file} {e.op} {e.scope} {e.bases} {e.code}" for e in patch.edits]
  text = "\n".join((*sorted(parts), *sorted(patch.modules)))
  return hashlib.sha256(text.encode()).hexdigest()[:8]


def note(series: Sequence[Patch], names: Collection[str] = (),
         root: pathlib.Path = bases.ROOT) -> None:
  """Notes that mutants have been run today: of some patches, or of all."""
  seen = {p.id: digest(p) for p in series if p.edits or p.modules}
  run = Run(datetime.date.today().isoformat(), bases.release(), seen)
  if names:
    run = last(root)
    run.patches = {name: seen[name] if name in names else noted
                   for name in seen
                   if (noted := run.patches.get(name, "")) or name in names}
  text = msgspec.json.format(msgspec.json.encode(run), indent=1)
  (root / FILE).write_bytes(text + b"\n")


def last(root: pathlib.Path = bases.ROOT) -> Run:
  """The last run."""
  return msgspec.json.decode((root / FILE).read_bytes(), type=Run)


def unseen(series: Sequence[Patch], run: Run) -> list[str]:
  """The patches with an edit or module that the run hasn't looked at."""
  return [p.id for p in series if (p.edits or p.modules)
          and run.patches.get(p.id) != digest(p)]


def too_late(series: Sequence[Patch], run: Run) -> list[str]:
  """The patches to run, so that `check` goes on passing; none if it does.

  Those of a family that has more than its share, and all where these are many
  or Mend has a newer release.
  """
  late = unseen(series, run)
  if len(late) > _MOST or run.release < bases.release():
    return late
  family = lambda name: name.partition("/")[0]
  sizes = collections.Counter(family(p.id) for p in series)
  mine = collections.Counter(map(family, late))
  return [name for name in late if mine[family(name)] > max(
      1, sizes[family(name)] // _OF_FAMILY)]


def good(series: Sequence[Patch], root: pathlib.Path = bases.ROOT) -> bool:
  """True if the last run has looked at enough of what there is now."""
  run = last(root)
  late, now = unseen(series, run), too_late(series, run)
  for name in now:
    report.say(f"NO MUTANT: {name} has changed since {run.date}; {COMMAND}")
  report.say(f"Mutation testing: of {run.date}, {len(series)} patches looked "
             f"at, {len(late)} changed since"
             + (f", too many: {COMMAND}" if now else "."))
  return bool(series) and not now
