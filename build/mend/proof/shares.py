# SPDX-License-Identifier: Apache-2.0
"""Shares of a base's jobs, which stand for all of them.

In a run of several bases the newest release has every test, of one with many
parameters every third case. An older one, and one alone, has its minimal
suite, and of the regression tests with one stated reason, one. A release whose
line is proven on others has one of each kind, of each file on one of several
that are alike, and a smoke test one of a file. The plain command has on the
default release every test, of one with many parameters every twelfth case, and
shows one of each kind of its regression tests red on pristine.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence
import dataclasses
import enum

from mend.editing import families, patches
from mend.editing.expected_failures import Red
from mend.proof import environments, jobs, minimal_suite
from mend.proof.jobs import Job
from mend.releases import bases, interpreters
from mend.releases.bases import Base

_ONE = 9999  # of so many: one test
_OF_TWINS = ("replication/control_flow", "varying/loops")
_ALIKE = ("C", "EF")  # lines that the same edits serve, for the most part


class Extent(enum.Enum):
  """The part of its tests that a base has in a run of everything."""
  EVERY = "all of them"
  SAMPLE = "of its regression tests one of each kind"
  SHARED = "those that stand for all; the newest release all of them"
  NEWEST = "the default base all of them, the others a smoke test"


def chosen_for(extent: Extent, series: Sequence[patches.Patch], base: Base,
               chosen: Sequence[Base],
               python_version: str | None) -> list[Job]:
  """The jobs of a base in a run of everything on the bases `chosen`."""
  if extent is Extent.NEWEST and base != tested_whole(chosen):
    others = [b for b in chosen if b != tested_whole(chosen)]
    return smoke(series, base, others.index(base), len(others), python_version)
  found = jobs.for_base(series, base, (), python_version)
  if extent is Extent.EVERY:
    return found
  if extent is Extent.NEWEST:
    return [_whole(job, 12) if job.side == "mended" else
            _with_share(job, f"0/{_ONE}", "0/0", True) for job in found]
  if extent is Extent.SAMPLE or base.proof == "sample" or base.twin_of:
    return sampled(series, found, chosen)
  return shared_out(series, found, chosen)


def tested_whole(chosen: Sequence[Base]) -> Base:
  """The base of `chosen` that a plain run has every test of.

  It is the default one, or the newest where a Python was asked for that the
  default one does not support.
  """
  default = bases.default_base()
  return default if default in chosen else chosen[-1]


def share_of(found: Sequence[Job], number: int, of: int) -> list[Job]:
  """The jobs of the `number`-th of so many machines, counted from 1.

  Whole files, so that what the sides of a file have in common is compiled once.
  """
  files = sorted({job.file for job in found})
  return [job for job in found
          if files.index(job.file) % of == number - 1]


def shared_out(series: Sequence[patches.Patch], found: Sequence[Job],
               chosen: Sequence[Base]) -> list[Job]:
  """The jobs of a base, with tests that stand for all of them.

  They are its minimal suite, which kills all mutants: so the run finds
  whatever all tests would. One of the regression tests with one stated reason
  stands for the others, not the same on a base and the next. In a run of
  several, each file has the latter on one of the bases that the same edits
  serve, for the most part. What is right on pristine, too, runs there on one
  base. What only one base has runs whole, and so does the newest.

  Args:
    series: the patches.
    found: the jobs of one base.
    chosen: all bases of the run.
  """
  having = _bases_of_files(series)
  out = []
  for number, file in enumerate(sorted(having)):
    takers = [b for b in having[file] if b not in chosen or b == _dealt(
        number, _alike(b, [o for o in having[file] if o in chosen]))]
    for job in (job for job in found if job.file == file):
      is_alone = len(having[file]) == 1 and len(chosen) > 1
      if is_alone:
        out.append(_whole(job))
      elif job.base in takers:
        out.append(_thinned(job, takers, len(chosen) > 1))
      elif job.side == "mended" and file in minimal_suite.tests_of(job.base):
        # Not all patterns of regression tests have one here.
        out.append(_with_share(dataclasses.replace(job, reds=()), "0/0",
                               _share_of_others(job)))
  return out


def sampled(series: Sequence[patches.Patch], found: Sequence[Job],
            chosen: Sequence[Base]) -> list[Job]:
  """The jobs of a release whose line is proven in whole on others.

  One regression test of each kind, not the same on a release and the next, on
  both sides: so each patch and each reason is seen there. In a run of several
  such releases that the same edits serve, the files are dealt out among them.

  Args:
    series: the patches.
    found: the jobs of one base.
    chosen: all bases of the run.
  """
  out = []
  for job in (job for job in found if job.reds):
    number = bases.releases().index(job.base)
    having = [b for b in _alike(job.base, chosen) if b.proof == "sample"
              and job.file in jobs.files_of(patches.for_base(series, b), (),
                                            "tests")]
    if not having or _dealt(_place(job.file), having) == job.base:
      out.append(_with_share(job, f"{number}/{_ONE}", "0/0"))
  return out


def _alike(base: Base, among: Sequence[Base]) -> list[Base]:
  """Those of the same line, and of lines that the same edits serve."""
  lines = next((ls for ls in _ALIKE if base.line in ls), base.line)
  return [b for b in among if b.line in lines]


def _dealt(number: int, to: Sequence[Base]) -> Base:
  return to[number % len(to)]


def _place(file: str) -> int:
  """The file's place in its folder, in which a family's files stand."""
  folder = (bases.ROOT / file).parent
  return sorted(p.name for p in folder.glob("*_test.py")).index(
      file.rpartition("/")[2])


def smoke(series: Sequence[patches.Patch], base: Base, number: int, of: int,
          python_version: str | None) -> list[Job]:
  """A smoke test of a base's wheel: a share of the files, one test of each.

  A family's files are dealt out, so that each base has one of each family and
  all bases together have every file.

  Args:
    series: the patches.
    base: the release.
    number: its place among those that have a smoke test.
    of: how many these are.
    python_version: such as "3.12"; None for the oldest that fits.
  """
  mine = patches.for_base(series, base)
  by_family: dict[str, list[str]] = collections.defaultdict(list)
  for file in jobs.files_of(mine, (), "tests"):
    if jobs.reds_of(mine, base, file):
      by_family[families.of(file.removeprefix("tests/"))].append(file)
  taken = [file for found in by_family.values()
           for i, file in enumerate(found) if i % of == number % len(found)]
  if not taken:
    return []
  python = interpreters.for_base(base, python_version, lowest=True)
  made = environments.mended_only(base, series=series, python=python)
  out = []
  for file in taken:
    reds = jobs.reds_of(mine, base, file)
    every = tuple(pattern for red in reds for pattern in red.tests)
    out.append(Job(base, "mended", made, file, reds, kinds=(every,), env=tuple(
        jobs.share_settings([("red", every)], f"{number}/{_ONE}", "0/0"))))
  return out


def of_twin(series: Sequence[patches.Patch], twin: Base,
            python_version: str | None) -> list[Job]:
  """A regression test of loops in shard_map with jax-mend, on a twin.

  Its files are its origin's, which `check` shows, and so are the verdicts of
  their tests. That leaves its own requirements: they must install and run.
  """
  (job, *_) = jobs.live_for_base(series, twin, _OF_TWINS, python_version,
                                 reds_only=True)
  every = tuple(pattern for red in job.reds for pattern in red.tests)
  env = {**dict(job.env), "MEND_SHARE": "0/1",
         **dict(jobs.share_settings([("red", every)], f"0/{_ONE}", "0/0"))}
  return [dataclasses.replace(job, kinds=(every,), env=tuple(env.items()))]


def _thinned(job: Job, having: Sequence[Base], is_of_several: bool) -> Job:
  """The job with a share of its tests; other bases have the other shares."""
  newest = bases.all_bases()[-1]
  is_whole = is_of_several and job.base == newest
  if is_whole and job.side == "mended":
    return _whole(job)
  number = having.index(job.base)
  others = _share_of_others(job, number)
  if is_of_several and job.side == "pristine":
    others = f"{number}/{len(having)}"
  thinned = _with_share(job, f"{number}/{1 if is_whole else _ONE}", others,
                        newest in having)
  return _one_case_in(3, thinned) if is_whole else thinned


def _whole(job: Job, cases: int = 3) -> Job:
  """The job with each of its tests, of one with many cases one in so many."""
  return _one_case_in(cases, _with_share(job, "0/1", "0/1", True))


def _one_case_in(number: int, job: Job) -> Job:
  return dataclasses.replace(job, env=(*job.env, ("MEND_CASES", str(number))))


def _share_of_others(job: Job, number: int = 0) -> str:
  """The share of other tests: one, where the minimal suite has none."""
  kept = job.side == "mended" and minimal_suite.tests_of(job.base).get(job.file)
  return "0/0" if kept else f"{number}/{_ONE}"


def _with_share(job: Job, reds: str, others: str,
                newest_too: bool = False) -> Job:
  """The job with K/N of the tests of each kind, and of other tests."""
  kept: Sequence[str] = ()
  if job.side == "mended":
    kept = minimal_suite.tests_of(job.base).get(job.file, ())
  kinds: dict[str, list[str]] = {}
  lines = []
  for number, red in enumerate(job.reds):
    kind = _kind(number, red, newest_too)
    kinds.setdefault(kind, []).extend(red.tests)
    lines.append((kind, red.tests))
  return dataclasses.replace(
      job, kinds=tuple(map(tuple, kinds.values())), env=(
          *job.env, *jobs.share_settings(lines, reds, others),
          *([("MEND_KEPT", "\n".join(kept))] if kept else ())))


def _kind(number: int, red: Red, newest_too: bool) -> str:
  """One kind a reason where the newest base has it; else one a decorator."""
  newest = bases.all_bases()[-1]
  together = newest_too and (not red.bases or newest.within(red.bases))
  return red.reason if together else str(number)


def _bases_of_files(series: Sequence[patches.Patch]) -> dict[str, list[Base]]:
  """The bases that have each test file."""
  where: dict[str, list[Base]] = collections.defaultdict(list)
  for base in bases.whole():
    mine = patches.for_base(series, base)
    for file in {*jobs.files_of(mine, (), "tests"),
                 *jobs.files_of(mine, (), "unit_tests")}:
      where[file].append(base)
  return where
