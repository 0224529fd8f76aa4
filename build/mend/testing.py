"""`build.py test`: green on mended, red on pristine, for the stated reason."""

from __future__ import annotations

from collections.abc import Sequence
import concurrent.futures
import dataclasses
import fnmatch
import os
import pathlib
import re
import sys
import time

from mend import (bases, checking, interpreters, lint, patches, pytest_run,
                  report, reproduce, sides)
from mend.bases import Base
from mend.errors import MendError

TEST_LIMIT = 300.0  # seconds for one of our tests
TEST_ENVIRONMENT = {**reproduce.JAX_ENVIRONMENT, "TF_CPP_MIN_LOG_LEVEL": "2"}
_TOOL_TESTS = "tests/build"


@dataclasses.dataclass(frozen=True)
class Job:
  """One test file on one side of one base."""
  base: Base
  side: str  # "mended", "pristine"
  python: pathlib.Path
  file: str
  reds: tuple[patches.Red, ...]
  alone: str = ""  # the patch that is tried with only what it depends on

  @property
  def label(self) -> str:
    alone = f", {self.alone} alone" if self.alone else ""
    return f"{self.file} on {self.side} {self.base.version}{alone}"


@dataclasses.dataclass
class Tally:
  """What was counted, and the text of each failure."""
  passed: int = 0
  skipped: int = 0
  red: int = 0
  failures: list[str] = dataclasses.field(default_factory=list)

  def add(self, other: Tally) -> None:
    self.passed += other.passed
    self.skipped += other.skipped
    self.red += other.red
    self.failures += other.failures


def workers() -> int:
  """As many as the cores that this process may use: taskset limits a run."""
  try:
    cores = len(os.sched_getaffinity(0))
  except AttributeError:  # macOS, Windows
    cores = os.cpu_count() or 1
  return max(1, min(8, cores))


def tail(text: str, lines: int = 30) -> str:
  return "\n".join("    " + line for line in text.splitlines()[-lines:])


def run(chosen: Sequence[Base], names: Sequence[str],
        python_version: str | None, only: Sequence[str] | None = None) -> int:
  """Runs everything, or the files and patches in `names`; the exit status.

  With `only`, on wheels that have these patches and no others.
  """
  series = patches.load()
  _refuse_unknown(series, names)
  total = Tally()
  if only:
    series = patches.select(series, only)
  else:
    if not names:
      total.add(_project_checks(chosen))
    total.add(_tool_tests(names))
  todo = [job for base in chosen
          for job in jobs(series, base, names, python_version)]
  return finish(run_jobs(todo, total), total)


def run_each(chosen: Sequence[Base], names: Sequence[str],
             python_version: str | None) -> int:
  """Each patch alone, with what it depends on: do its own tests pass?"""
  series = patches.load()
  patches.require_known(series, names)
  todo, total = [], Tally()
  for base in chosen:
    for patch in patches.for_base(series, base):
      if not names or patch.id in names:
        needed = patches.with_needed(series, patch.id)
        todo += [dataclasses.replace(job, alone=patch.id)
                 for job in jobs(needed, base, [patch.id], python_version)
                 if job.side == "mended"]
  return finish(run_jobs(todo, total), total)


def finish(rows: Sequence[Sequence[str]], total: Tally) -> int:
  """Prints the table, the failures and the closing line; the exit status."""
  if rows:
    report.say("\n" + report.table(
        ("base", "side", "files", "passed", "of them red", "skipped", "failed"),
        rows))
  for failure in total.failures:
    report.say(f"\nFAILED {failure}")
  report.say(f"\n{total.skipped} skipped.")
  report.say(f"{total.passed} passed, {len(total.failures)} failed")
  return 0 if total.passed and not total.failures else 1


def _refuse_unknown(series: Sequence[patches.Patch],
                    names: Sequence[str]) -> None:
  known = {p.id for p in series}
  for name in names:
    if name not in known and not (bases.ROOT / name).exists():
      raise MendError(f"{name} is no test file and no patch "
                      f"({', '.join(sorted(known))}).", "ls tests")


def _project_checks(chosen: Sequence[Base]) -> Tally:
  """The state of the edits, originality, lint and types, as one test each."""
  total = Tally()
  for name, good in (("check", checking.check(chosen, False) == 0),
                     *lint.results()):
    if good:
      total.passed += 1
    else:
      total.failures.append(f"{name}: see its output above")
  return total


def _tool_tests(names: Sequence[str]) -> Tally:
  files = sorted((bases.ROOT / _TOOL_TESTS).glob("*_test.py"))
  if names:
    given = {(bases.ROOT / n).resolve() for n in names}
    files = [f for f in files if f in given or f.parent in given]
  total = Tally()
  with concurrent.futures.ThreadPoolExecutor(workers()) as pool:
    runs = pool.map(lambda f: pytest_run.run_file(
        sys.executable, f, limit=TEST_LIMIT, env={}), files)
    for file, outcomes in zip(files, runs):
      label = str(file.relative_to(bases.ROOT))
      tally = judge_mended(label, outcomes, ())
      report.say(f"  {label}: {tally.passed} passed, "
                 f"{len(tally.failures)} failed")
      total.add(tally)
  return total


def jobs(series: Sequence[patches.Patch], base: Base, names: Sequence[str],
          python_version: str | None) -> list[Job]:
  """Every test file of the base's patches, on both sides."""
  mine = patches.for_base(series, base)
  tests = _files(mine, names, "tests")
  units = _files(mine, names, "unit_tests")
  if not tests and not units:
    return []
  python = interpreters.for_base(base, python_version, lowest=True)
  made = sides.of(base, series=series, python=python)
  jobs = []
  for file in (*tests, *units):
    reds = tuple(r for p in mine if file in p.tests for r in p.red
                 if not r.bases or base.within(r.bases))
    jobs.append(Job(base, "mended", made.mended, file, reds))
    if file in tests:
      jobs.append(Job(base, "pristine", made.pristine, file, reds))
  return jobs


def _files(series: Sequence[patches.Patch], names: Sequence[str],
           key: str) -> list[str]:
  found = []
  for patch in series:
    for file in getattr(patch, key):
      wanted = not names or patch.id in names or any(
          (bases.ROOT / n).resolve() == bases.ROOT / file for n in names)
      if wanted and file not in found:
        found.append(file)
  return found


def run_jobs(todo: Sequence[Job], total: Tally) -> list[list[str]]:
  sums: dict[tuple[str, str], list[int]] = {}
  order = [base.version for base in bases.all_bases()]

  def one(job: Job) -> tuple[Job, Tally, float]:
    began = time.monotonic()
    outcomes = pytest_run.run_file(job.python, bases.ROOT / job.file,
                                   limit=TEST_LIMIT, env=TEST_ENVIRONMENT)
    judge = judge_mended if job.side == "mended" else judge_pristine
    tally = judge(job.label, outcomes, job.reds)
    return job, tally, time.monotonic() - began

  with concurrent.futures.ThreadPoolExecutor(workers()) as pool:
    futures = [pool.submit(one, job) for job in todo]
    for i, future in enumerate(concurrent.futures.as_completed(futures), 1):
      job, tally, took = future.result()
      report.say(f"[{i}/{len(todo)}] {job.label}: {tally.passed} passed, "
                 f"{len(tally.failures)} failed ({took:.0f} s)")
      total.add(tally)
      row = sums.setdefault((job.base.version, job.side), [0] * 5)
      for k, n in enumerate((1, tally.passed, tally.red, tally.skipped,
                             len(tally.failures))):
        row[k] += n
  return [[*key, *(str(n) for n in row)] for key, row in sorted(
      sums.items(), key=lambda item: (order.index(item[0][0]), item[0][1]))]


def _red_for(test: str, reds: Sequence[patches.Red]) -> patches.Red | None:
  for red in reds:
    if any(fnmatch.fnmatchcase(test, pattern) for pattern in red.tests):
      return red
  return None


def judge_mended(label: str, outcomes: dict[str, pytest_run.Outcome],
                 reds: Sequence[patches.Red]) -> Tally:
  """Every test passes; a regression test must not be skipped."""
  tally = Tally()
  for test, outcome in outcomes.items():
    skipped = outcome.status == pytest_run.SKIPPED
    if outcome.status == pytest_run.PASSED:
      tally.passed += 1
    elif skipped and not _red_for(test, reds):
      tally.skipped += 1
    else:
      why = "is skipped, though declared red on pristine" if skipped else ""
      tally.failures.append(f"{label}: {test} {why}\n{tail(outcome.text)}")
  if not tally.passed and not tally.failures:
    tally.failures.append(f"{label}: no test ran")
  for red in reds:
    for pattern in red.tests:
      if not fnmatch.filter(outcomes, pattern):
        tally.failures.append(f"{label}: red names {pattern!r}, no such test")
  return tally


def judge_pristine(label: str, outcomes: dict[str, pytest_run.Outcome],
                   reds: Sequence[patches.Red]) -> Tally:
  """Regression tests fail for the stated reason, all others pass."""
  tally = Tally()
  for test, outcome in outcomes.items():
    red = _red_for(test, reds)
    problem = _problem(outcome, red)
    if problem:
      tally.failures.append(f"{label}: {test} {problem}\n{tail(outcome.text)}")
    elif outcome.status == pytest_run.SKIPPED:
      tally.skipped += 1
    else:
      tally.passed += 1
      tally.red += red is not None
  return tally


def _problem(outcome: pytest_run.Outcome, red: patches.Red | None) -> str:
  if red is None:
    if outcome.status == pytest_run.FAILED:
      return "fails on pristine and no [[red]] of its patch says so"
    return ""
  if outcome.status != pytest_run.FAILED:
    return f"is declared red, and is {outcome.status} on pristine"
  if not re.search(red.reason, outcome.text, re.DOTALL):
    return f"fails for another reason than /{red.reason}/"
  if not red.api_missing and _only_missing(outcome.text, red.reason):
    return "fails only because one of our own names is missing"
  return ""


def _only_missing(text: str, reason: str) -> bool:
  """Whether the failure is that a name is not there, and the report is not."""
  errors = re.findall(
      r"^(?:[\w.]+\.)?(\w*(?:Error|Exception))\b", text, re.M)
  last = errors[-1] if errors else ""
  return (last in ("ImportError", "ModuleNotFoundError", "AttributeError")
          and last not in reason)
