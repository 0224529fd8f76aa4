# SPDX-License-Identifier: Apache-2.0
"""The jobs of `build.py test`: test files by base and side, in order.

To list them builds nothing. Two things wait on others than the CPU: the package
index, which environments are made from, and the last test file. So environments
are made while the project's own checks run, and the longest test files are run
first.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Sequence
import dataclasses
import functools
import pathlib

from mend.editing import patches
from mend.editing.expected_failures import Red
from mend.ground import report
from mend.ground.report import Verdict
from mend.proof import environments
from mend.releases import bases, interpreters
from mend.releases.bases import Base

WHOLE = "all tests"
_LIVE_ONE_IN = 5  # files, of which the regression tests run with jax-mend


@dataclasses.dataclass(frozen=True)
class Job:
  """One test file on one side of one base.

  Attributes:
    base: the release.
    side: "mended", "pristine" or "live".
    environment: is made when its Python is first asked for.
    file: from the project's root.
    reds: the tests that fail on pristine.
    alone: the family or patch that is tried with only what it depends on.
    newer: the version of a Python that isn't the base's oldest.
    env: more environment variables.
    only_red: whether only `reds` are run.
    case: of each test only this case, modulo their number; None for all.
    one_guard: whether of the tests that aren't `reds` only one is run.
    but: patterns of the cases that are left out.
  """
  base: Base
  side: str
  environment: environments.Lazy
  file: str
  reds: tuple[Red, ...]
  alone: str = ""
  newer: str = ""
  env: tuple[tuple[str, str], ...] = ()
  only_red: bool = False
  case: int | None = None
  one_guard: bool = False
  but: tuple[str, ...] = ()

  @property
  def extent(self) -> str:
    """The tests of the file that it runs, in words."""
    tests = "regression tests" if self.only_red else "tests"
    if self.one_guard and not self.only_red:
      return "one case of its regression tests, and one other test"
    if self.case is not None:
      return f"one case of its {tests}"
    return f"its {tests}" if self.only_red else WHOLE

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


def makers(todo: Iterable[Job]) -> list[Callable[[], pathlib.Path]]:
  """Functions that make the environments of some jobs, each once."""
  return [functools.partial(getattr, lazy, "python") for lazy in
          {id(job.environment): job.environment for job in todo}.values()]


def listed(todo: Sequence[Job], tools: Sequence[pathlib.Path]) -> Verdict:
  """Says what would run, of the patches and of the tool."""
  for job in todo:
    report.say(f"{job.label}: {job.extent}")
  for file in tools:
    report.say(f"{file.relative_to(bases.ROOT)}: {WHOLE}")
  if not todo and not tools:
    return Verdict("nothing would run.", "python3 build/build.py test --list")
  counts = collections.Counter(job.extent for job in todo)
  return Verdict(
      f"{len(todo)} test files on a side of a release: " + ", ".join(
          f"{n} {what}" for what, n in counts.items())
      + f"; and {len(tools)} of the tool's.")


def settings(job: Job) -> dict[str, str]:
  """The environment variables that a job's share of the tests is told by.

  build/probes/pytest_outcomes.py reads them.
  """
  found = dict(job.env)
  if job.side == "live":
    found.update(environments.jax_mend_settings(job.environment.python))
  if job.only_red or job.case is not None:
    found["MEND_REDS"] = "\n".join(p for red in job.reds for p in red.tests)
  if job.only_red:
    found["MEND_ONLY_RED"] = "1"
  if job.but:
    found["MEND_BUT"] = "\n".join(job.but)
  if job.case is not None:
    found["MEND_CASE"] = str(job.case)
  if job.one_guard:
    found["MEND_ONE_GUARD"] = "1"
  return found


def reds_live(series: Sequence[patches.Patch], base: Base,
              python_version: str | None) -> list[Job]:
  """Regression tests of some files with jax-mend, on the newest Python.

  So one run tells both, whether jax-mend mends and whether a Python other than
  the oldest, which the wheel's tests run on, does as well.
  """
  newest = None if python_version else interpreters.newer(base)
  version = ".".join(newest[0].split(".")[:2]) if newest else ""
  return [dataclasses.replace(job, newer=version, only_red=True)
          for job in live_for_base(series, base, (), version or python_version)
          if job.reds][::_LIVE_ONE_IN]


def for_base(series: Sequence[patches.Patch], base: Base, names: Sequence[str],
             python_version: str | None) -> list[Job]:
  """The jobs of a base: every test file of its patches, on both sides."""
  mine = patches.for_base(series, base)
  tests = files_of(mine, names, "tests")
  units = files_of(mine, names, "unit_tests")
  mended, pristine = environments.lazy(base, series, python_version)
  found = []
  for file in (*tests, *units):
    reds = reds_of(mine, base, file)
    found.append(Job(base, "mended", mended, file, reds))
    if file in tests:
      found.append(Job(base, "pristine", pristine, file, reds))
  return found


def live_for_base(series: Sequence[patches.Patch], base: Base,
                  names: Sequence[str],
                  python_version: str | None) -> list[Job]:
  """The jobs of a base on a stock jax that jax-mend mends."""
  mine = patches.for_base(series, base)
  made = environments.lazy_live(base, series, python_version)
  return [Job(base, "live", made, file, reds_of(mine, base, file))
          for file in (*files_of(mine, names, "tests"),
                       *files_of(mine, names, "unit_tests"))]


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
