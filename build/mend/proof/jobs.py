# SPDX-License-Identifier: Apache-2.0
"""The jobs of `build.py test`: test files by base and side, in order.

Two things wait on others than the CPU: the package index, which environments
are made from, and the last test file. So environments are made while the
project's own checks run, and the longest test files are run first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
import dataclasses
import pathlib

from mend.editing import patches
from mend.editing.expected_failures import Red
from mend.proof import environments
from mend.releases import bases, interpreters
from mend.releases.bases import Base

# With jax-mend, a tenth: of every other file's regression tests, one in a few.
_LIVE_ONE_IN = 5


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


def for_base(series: Sequence[patches.Patch], base: Base, names: Sequence[str],
             python_version: str | None) -> list[Job]:
  """The jobs of a base: every test file of its patches, on both sides."""
  mine = patches.for_base(series, base)
  tests = files_of(mine, names, "tests")
  units = files_of(mine, names, "unit_tests")
  if not tests and not units:
    return []
  python = interpreters.for_base(base, python_version, lowest=True)
  made = environments.build(base, series=series, python=python)
  found = []
  for file in (*tests, *units):
    reds = reds_of(mine, base, file)
    found.append(Job(base, "mended", made.mended, file, reds))
    if file in tests:
      found.append(Job(base, "pristine", made.pristine, file, reds))
  return found


def share_settings(reds: Iterable[tuple[str, Sequence[str]]], of_reds: str,
                   of_others: str) -> list[tuple[str, str]]:
  """The variables for pytest_outcomes to take a share of a file's tests.

  Args:
    reds: kind and patterns of red tests, in the order in which they count.
    of_reds: the share of the tests of each kind, "K/N".
    of_others: that of the tests of no kind.
  """
  lines = ("\t".join([kind, *patterns]) for kind, patterns in reds)
  return [("MEND_REDS", "\n".join(lines)),
          ("MEND_REDS_SHARE", of_reds), ("MEND_OTHERS_SHARE", of_others)]


def live_for_base(series: Sequence[patches.Patch], base: Base,
                  names: Sequence[str], python_version: str | None,
                  reds_only: bool = False) -> list[Job]:
  """The jobs of a base on a stock jax that jax-mend mends.

  With `reds_only`, the regression tests, whose verdicts tell whether it does.
  """
  mine = patches.for_base(series, base)
  tests = files_of(mine, names, "tests")
  if not reds_only:
    tests += files_of(mine, names, "unit_tests")
  if not tests:
    return []
  python = environments.with_jax_mend(
      base, series,
      python=interpreters.for_base(base, python_version, lowest=True))
  found = []
  for file in tests:
    reds = reds_of(mine, base, file)
    env = environments.jax_mend_settings(python)
    if reds_only:
      env.update(share_settings([("red", r.tests) for r in reds], "0/1", "0/0"),
                 MEND_SHARE=f"0/{_LIVE_ONE_IN}")
    if reds or not reds_only:
      found.append(Job(base, "live", python, file, reds,
                       env=tuple(env.items()), kinds=() if reds_only else None))
  return found


def reds_of(mine: Iterable[patches.Patch], base: Base,
          file: str) -> tuple[Red, ...]:
  """The red tests of a file on a base, in the order in which they count."""
  return tuple(r for p in mine if file in p.tests for r in p.red
               if r.file in ("", file)
               and (not r.bases or base.within(r.bases)))


def files_of(series: Sequence[patches.Patch], names: Sequence[str],
           key: str) -> list[str]:
  found: list[str] = []
  for patch in series:
    for file in getattr(patch, key):
      wanted = not names or patch.id in names or any(
          (bases.ROOT / n).resolve() == bases.ROOT / file for n in names)
      if wanted and file not in found:
        found.append(file)
  return found
