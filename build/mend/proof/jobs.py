"""The jobs of `build.py test`: test files by base and side, in order.

Two things wait on others than the CPU: the package index, which environments
are made from, and the last test file. So environments are made while the
project's own checks run, and the longest test files are run first.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Sequence
import dataclasses
import enum
import pathlib

from mend.editing import families, patches
from mend.editing.expected_failures import Red
from mend.proof import environments, minimal_suite
from mend.releases import bases, interpreters
from mend.releases.bases import Base

# In a run of several bases the newest release has every test, of one with many
# parameters every other case. An older one, and one alone, has its minimal
# suite, and of the regression tests with one stated reason, one. With jax-mend,
# a tenth: of every other file's regression tests, one in a few.
_LIVE_ONE_IN = 5
_ONE = 9999  # of so many: one test
_ALIKE = "EF"  # lines that the same edits serve, for the most part


class Extent(enum.Enum):
  """How much of its tests a base has in a run of everything."""
  EVERY = "all of them"
  SHARED = "those that stand for all; the newest release all of them"
  NEWEST = "the newest base of the run all of them, the others a smoke test"


@dataclasses.dataclass(frozen=True)
class Job:
  """One test file on one side of one base."""
  base: Base
  side: str  # "mended", "pristine", "live"
  python: pathlib.Path
  file: str
  reds: tuple[Red, ...]
  alone: str = ""  # the patch that is tried with only what it depends on
  newer: str = ""  # the version of a Python that isn't the base's oldest
  env: tuple[tuple[str, str], ...] = ()
  # Of a share of the file's tests: the patterns of which one names one of them.
  kinds: tuple[tuple[str, ...], ...] | None = None

  @property
  def label(self) -> str:
    alone = f", {self.alone} alone" if self.alone else ""
    newer = f", Python {self.newer}" if self.newer else ""
    return f"{self.file} on {self.side} {self.base.version}{alone}{newer}"


def longest_first(jobs: Iterable[Job]) -> list[Job]:
  """Sorts jobs: big files of the mended side first, so no core waits long.

  What they compile, the other sides find compiled.
  """
  size = lambda job: (bases.ROOT / job.file).stat().st_size
  return sorted(jobs, key=lambda job: (job.side != "mended", -size(job)))


def reds_live(series: Sequence[patches.Patch], base: Base,
              python_version: str | None,
              is_of_several: bool = True) -> list[Job]:
  """A tenth of the regression tests with jax-mend, on the newest Python.

  So one run tells both, whether jax-mend mends and whether a Python other than
  the oldest, which the wheel's tests run on, does as well. A run of one base,
  which has fewer of its tests, has half as many.
  """
  newest = None if python_version else interpreters.newer(base)
  version = ".".join(newest[0].split(".")[:2]) if newest else ""
  return [dataclasses.replace(job, newer=version) for job in live_for_base(
      series, base, (), version or python_version,
      reds_only=True)[::2 if is_of_several else 4]]


def chosen_for(extent: Extent, series: Sequence[patches.Patch], base: Base,
               chosen: Sequence[Base],
               python_version: str | None) -> list[Job]:
  """The jobs of a base in a run of everything on the bases `chosen`."""
  if extent is Extent.NEWEST and base != chosen[-1]:
    return smoke(series, base, chosen.index(base), len(chosen) - 1,
                 python_version)
  found = for_base(series, base, (), python_version)
  if extent is Extent.EVERY:
    return found
  if extent is Extent.NEWEST:
    return [_whole(job) for job in found]
  if base.proof == "sample" or base.twin_of:
    return sampled(found)
  return shared_out(series, found, chosen)


def share_of(found: Sequence[Job], number: int, of: int) -> list[Job]:
  """The jobs of the `number`-th of so many machines, counted from 1.

  Whole files, so that what the sides of a file have in common is compiled once.
  """
  files = sorted({job.file for job in found})
  return [job for job in found
          if files.index(job.file) % of == number - 1]


def for_base(series: Sequence[patches.Patch], base: Base, names: Sequence[str],
             python_version: str | None) -> list[Job]:
  """The jobs of a base: every test file of its patches, on both sides."""
  mine = patches.for_base(series, base)
  tests = _files(mine, names, "tests")
  units = _files(mine, names, "unit_tests")
  if not tests and not units:
    return []
  python = interpreters.for_base(base, python_version, lowest=True)
  made = environments.build(base, series=series, python=python)
  found = []
  for file in (*tests, *units):
    reds = _reds(mine, base, file)
    found.append(Job(base, "mended", made.mended, file, reds))
    if file in tests:
      found.append(Job(base, "pristine", made.pristine, file, reds))
  return found


def shared_out(series: Sequence[patches.Patch], found: Sequence[Job],
               chosen: Sequence[Base]) -> list[Job]:
  """The jobs of a base, with tests that stand for all of them.

  They are its minimal suite, which kills all mutants: so the run finds
  whatever all tests would. One of the regression tests with one stated reason
  stands for the others, not the same on a base and the next. The releases
  between the second and the newest are served by the same edits, for the most
  part: in a run of several each file has the latter on one of them. What is
  right on pristine, too, runs there on one base. What only one base has runs
  whole, and so does the newest.

  A base without a minimal suite runs whole, too.

  Args:
    series: the patches.
    found: the jobs of one base.
    chosen: all bases of the run.
  """
  having = _bases_of_files(series)
  alike = [b for b in bases.whole() if b in chosen and b.line in _ALIKE]
  out = []
  for number, file in enumerate(sorted(having)):
    same = [b for b in having[file] if b in alike]
    others = [b for b in same if b != same[number % len(same)]]
    takers = [b for b in having[file] if b not in others]
    for job in (job for job in found if job.file == file):
      is_alone = len(having[file]) == 1 and len(chosen) > 1
      if not minimal_suite.tests_of(job.base):
        out.append(job)
      elif is_alone:
        out.append(_whole(job))
      elif job.base in takers:
        out.append(_thinned(job, takers, len(chosen) > 1))
      elif job.side == "mended" and file in minimal_suite.tests_of(job.base):
        # Not all patterns of regression tests have one here.
        out.append(_with_share(dataclasses.replace(job, reds=()), "0/0",
                               _share_of_others(job)))
  return out


def sampled(found: Sequence[Job]) -> list[Job]:
  """The jobs of a release whose line is proven in whole on others.

  One regression test of each kind, not the same on a release and the next, on
  both sides: so each patch and each reason is seen there.
  """
  out = []
  for job in found:
    number = bases.releases().index(job.base)
    if job.reds:
      out.append(_with_share(job, f"{number}/{_ONE}", "0/0"))
  return out


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
  for file in _files(mine, (), "tests"):
    if _reds(mine, base, file):
      by_family[families.of(file.removeprefix("tests/"))].append(file)
  taken = [file for found in by_family.values()
           for i, file in enumerate(found) if i % of == number % len(found)]
  if not taken:
    return []
  python = interpreters.for_base(base, python_version, lowest=True)
  made = environments.mended_only(base, series=series, python=python)
  out = []
  for file in taken:
    reds = _reds(mine, base, file)
    every = tuple(pattern for red in reds for pattern in red.tests)
    out.append(Job(base, "mended", made, file, reds, kinds=(every,), env=tuple(
        _share([every], f"{number}/{_ONE}", "0/0"))))
  return out


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
  return _one_case_in_two(thinned) if is_whole else thinned


def _whole(job: Job) -> Job:
  """The job with each of its tests, but not with each case of one."""
  return _one_case_in_two(_with_share(job, "0/1", "0/1", True))


def _one_case_in_two(job: Job) -> Job:
  return dataclasses.replace(job, env=(*job.env, ("MEND_CASES", "2")))


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
  kinds = tuple(kind for red in job.reds for kind in _kinds(red, newest_too))
  return dataclasses.replace(job, kinds=kinds, env=(
      *job.env, *_share(kinds, reds, others),
      *([("MEND_KEPT", "\n".join(kept))] if kept else ())))


def _kinds(red: Red, newest_too: bool) -> list[tuple[str, ...]]:
  """The kinds of a red: its patterns, apart where the newest base lacks it."""
  newest = bases.all_bases()[-1]
  if newest_too and (not red.bases or newest.within(red.bases)):
    return [tuple(red.tests)]
  return [(pattern,) for pattern in red.tests]


def _share(kinds: Iterable[Sequence[str]], of_reds: str,
           of_others: str) -> list[tuple[str, str]]:
  """The variables for pytest_outcomes to take K/N of each kind, of others."""
  return [("MEND_REDS", "\n".join(map("\t".join, kinds))),
          ("MEND_REDS_SHARE", of_reds), ("MEND_OTHERS_SHARE", of_others)]


def _bases_of_files(series: Sequence[patches.Patch]) -> dict[str, list[Base]]:
  """The bases that have each test file."""
  where: dict[str, list[Base]] = collections.defaultdict(list)
  for base in bases.whole():
    mine = patches.for_base(series, base)
    for file in {*_files(mine, (), "tests"), *_files(mine, (), "unit_tests")}:
      where[file].append(base)
  return where


def live_for_base(series: Sequence[patches.Patch], base: Base,
                  names: Sequence[str], python_version: str | None,
                  reds_only: bool = False) -> list[Job]:
  """The jobs of a base on a stock jax that jax-mend mends.

  With `reds_only`, the regression tests, whose verdicts tell whether it does.
  """
  mine = patches.for_base(series, base)
  tests = _files(mine, names, "tests")
  if not reds_only:
    tests += _files(mine, names, "unit_tests")
  if not tests:
    return []
  python = environments.with_jax_mend(
      base, series,
      python=interpreters.for_base(base, python_version, lowest=True))
  found = []
  for file in tests:
    reds = _reds(mine, base, file)
    env = environments.jax_mend_settings(python)
    if reds_only:
      env.update(_share((r.tests for r in reds), "0/1", "0/0"),
                 MEND_SHARE=f"0/{_LIVE_ONE_IN}")
    if reds or not reds_only:
      found.append(Job(base, "live", python, file, reds,
                       env=tuple(env.items()), kinds=() if reds_only else None))
  return found


def _reds(mine: Iterable[patches.Patch], base: Base,
          file: str) -> tuple[Red, ...]:
  return tuple(r for p in mine if file in p.tests for r in p.red
               if r.file in ("", file)
               and (not r.bases or base.within(r.bases)))


def _files(series: Sequence[patches.Patch], names: Sequence[str],
           key: str) -> list[str]:
  found: list[str] = []
  for patch in series:
    for file in getattr(patch, key):
      wanted = not names or patch.id in names or any(
          (bases.ROOT / n).resolve() == bases.ROOT / file for n in names)
      if wanted and file not in found:
        found.append(file)
  return found
