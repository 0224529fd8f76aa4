# SPDX-License-Identifier: Apache-2.0
"""The last run of mutation testing: its date, and what it looked at.

A run of all patches with `--write` notes, for each patch, a digest of its edits
and of the names of its modules in `build/mutation_run.json`. An edit or module
that came later has been removed by no mutant: `check` bears with that for a
month, counted to the newest commit, and until the next release of Mend.
"""

from __future__ import annotations

from collections.abc import Sequence
import datetime
import hashlib
import pathlib

from mend.editing.patches import Patch
from mend.ground import report
from mend.releases import bases
from mend.trees import git
import msgspec

FILE = "build/mutation_run.json"
_DAYS = 31
COMMAND = "python3 build/build.py test --mutation --write"


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


def note(series: Sequence[Patch], root: pathlib.Path = bases.ROOT) -> None:
  """Notes that all mutants of the series have been run today."""
  run = Run(datetime.date.today().isoformat(), bases.release(),
            {p.id: digest(p) for p in series if p.edits or p.modules})
  text = msgspec.json.format(msgspec.json.encode(run), indent=1)
  (root / FILE).write_bytes(text + b"\n")


def unseen(series: Sequence[Patch], run: Run) -> list[str]:
  """The patches with an edit or module that the run hasn't looked at."""
  return [p.id for p in series if (p.edits or p.modules)
          and run.patches.get(p.id) != digest(p)]


def is_old(run: Run, today: str) -> bool:
  """True if a run is older than a month, or than a release of Mend."""
  age = (datetime.date.fromisoformat(today)
         - datetime.date.fromisoformat(run.date)).days
  return age > _DAYS or run.release < bases.release()


def good(series: Sequence[Patch], root: pathlib.Path = bases.ROOT) -> bool:
  """True if the last run is new enough for what it hasn't looked at."""
  run = msgspec.json.decode((root / FILE).read_bytes(), type=Run)
  today = git.commit_of(root)[1] or run.date
  late, old = unseen(series, run), is_old(run, today)
  for name in late if old else ():
    report.say(f"NO MUTANT: {name} has changed since {run.date}; {COMMAND}")
  report.say(f"Mutation testing: of {run.date}, {len(series)} patches looked "
             f"at, {len(late)} changed since" + (", too long ago." if old else
                                                 "."))
  return bool(series) and not (late and old)
