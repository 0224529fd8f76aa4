# SPDX-License-Identifier: Apache-2.0
"""The test files that each release runs, and how much of each.

Every test of a file runs on the newest release that has the file, and one case
of each test on one release of two other lines; `Extent` names the exceptions.
"""

from __future__ import annotations

import collections
from collections.abc import Collection, Mapping, Sequence
import dataclasses
import enum

from mend.editing import patches
from mend.proof import jobs
from mend.proof.jobs import Job
from mend.releases import bases
from mend.releases.bases import Base

_ONE_IN = 3  # lines other than the newest, of which a file runs on one
_OF_TWINS = ("replication/control_flow", "varying/loops")


class Extent(enum.Enum):
  """The rule of a run of everything."""
  WHOLE = "every test on every release"
  CHANGE = "every test on the newest release, one case of each on two lines"
  PLAIN = "one case of each regression test, and one other test of each file"


@dataclasses.dataclass(frozen=True)
class Run:
  """A run of everything.

  Attributes:
    extent: its rule.
    chosen: its releases, oldest first.
    python_version: such as "3.12"; None for the oldest that fits.
    touched: the ids of the patches that the change touches.
  """
  extent: Extent
  chosen: Sequence[Base]
  python_version: str | None = None
  touched: Collection[str] = ()


def jobs_of(run: Run, series: Sequence[patches.Patch]) -> list[Job]:
  """The jobs of all releases in a run of everything."""
  if run.extent is Extent.PLAIN:
    return [job for base in run.chosen for job in _plain(jobs.for_base(
        series, base, (), run.python_version))]
  if run.extent is Extent.WHOLE or len(run.chosen) == 1:
    return [job for base in run.chosen for job in jobs.for_base(
        series, base, (), run.python_version)]
  having = _bases_of_files(series)
  return [job for base in run.chosen
          for job in _of_change(run, series, base, having)]


def _of_change(run: Run, series: Sequence[patches.Patch], base: Base,
               having: Mapping[str, Sequence[Base]]) -> list[Job]:
  touched = {f for p in patches.for_base(series, base) if p.id in run.touched
             for f in (*p.tests, *p.unit_tests)}
  out = []
  for job in jobs.for_base(series, base, (), run.python_version):
    if base == having[job.file][-1]:
      out.append(job)
    elif base == _taker(job, [b for b in having[job.file][:-1]
                              if b.line == base.line]):
      if job.file in touched:
        out.append(job)
      elif job.side == "mended" and _has_in_its_third(base, job):
        out.append(one_case(job))
  return out


def newest_having(names: Sequence[str]) -> tuple[Base, ...]:
  """For each name, the default release, or else the newest that has it."""
  series, default = patches.load(), bases.default_base()
  having = lambda base, name: any(
      jobs.files_of(patches.for_base(series, base), [name], kind)
      for kind in ("tests", "unit_tests"))
  found = {next((b for b in (default, *reversed(bases.all_bases()))
                 if having(b, name)), default) for name in names}
  return tuple(b for b in bases.all_bases() if b in found)


def share_of(found: Sequence[Job], number: int, of: int) -> list[Job]:
  """The jobs of the `number`-th of so many machines, counted from 1.

  Whole files, so that what the sides of a file have in common is compiled once.
  """
  files = sorted({job.file for job in found})
  return [job for job in found
          if files.index(job.file) % of == number - 1]


def one_case(job: Job, only_red: bool = False) -> Job:
  """The job with one case of each test; other releases have other cases."""
  return dataclasses.replace(
      job, only_red=only_red or job.side == "pristine",
      case=bases.releases().index(job.base))


def of_twin(series: Sequence[patches.Patch], twin: Base,
            python_version: str | None) -> list[Job]:
  """The regression tests of loops in shard_map with jax-mend, on a twin.

  Its files are its origin's, which `check` shows, and so are the verdicts of
  their tests. That leaves its own requirements: they must install and run.
  """
  (job, *_) = jobs.live_for_base(series, twin, _OF_TWINS, python_version)
  return [one_case(job, only_red=True)]


def _place(job: Job) -> int:
  """The place of a job's file in its folder.

  By it, files are dealt out: so each line, and each of its releases, has some
  of each family, and a new file moves no other family's.
  """
  folder, _, name = job.file.rpartition("/")
  return sorted(p.name for p in (bases.ROOT / folder).glob(
      "*_test.py")).index(name)


def _has_in_its_third(base: Base, job: Job) -> bool:
  lines = [*dict.fromkeys(b.line for b in bases.all_bases())]
  return (_place(job) + lines.index(base.line)) % _ONE_IN == 0


def _taker(job: Job, having: Sequence[Base]) -> Base:
  """The one of a line's releases that has a file in its share."""
  return having[_place(job) // _ONE_IN % len(having)]


def _bases_of_files(series: Sequence[patches.Patch]) -> dict[str, list[Base]]:
  """The releases that have each test file, oldest first; no twins."""
  where: dict[str, list[Base]] = collections.defaultdict(list)
  for base in bases.all_bases():
    mine = patches.for_base(series, base)
    for file in (*jobs.files_of(mine, (), "tests"),
                 *jobs.files_of(mine, (), "unit_tests")):
      where[file].append(base)
  return where


def _plain(found: Sequence[Job]) -> list[Job]:
  """The part that a newcomer waits for; on pristine, regression tests only."""
  return [dataclasses.replace(one_case(job), one_guard=True) for job in found
          if job.reds or job.side != "pristine"]
