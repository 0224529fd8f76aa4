"""`build.py test`: green on mended, red on pristine, for the stated reason."""

from __future__ import annotations

from collections.abc import Callable, Sequence
import concurrent.futures
import dataclasses
import fnmatch
import functools
import pathlib
import re
import sys
import time

from mend import (bases, checking, jobs, lint, patches, pytest_run, report,
                  reproduce)
from mend.bases import Base
from mend.errors import MendError
from mend.jobs import Job

TEST_LIMIT = 300.0  # seconds for one of our tests
TEST_ENVIRONMENT = {**reproduce.JAX_ENVIRONMENT, "TF_CPP_MIN_LOG_LEVEL": "2"}
# Their time goes into compiling; how fast it runs afterwards is no matter.
_JOB_ENVIRONMENT = {**TEST_ENVIRONMENT, "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
_TOOL_TESTS = "tests/build"


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


def tail(text: str, lines: int = 30) -> str:
  return "\n".join("    " + line for line in text.splitlines()[-lines:])


def run(chosen: Sequence[Base], names: Sequence[str],
        python_version: str | None, only: Sequence[str] | None = None) -> int:
  """Runs everything, or the files and patches in `names`; the exit status.

  With `only`, on wheels that have these patches and no others.
  """
  series = patches.load()
  _refuse_unknown(series, names)
  others: list[Callable[[], Tally]] = []
  if only:
    series = patches.select(series, only)
  else:
    if not names:
      others.append(functools.partial(_project_checks, chosen))
    others += [functools.partial(_tool_test, f) for f in _tool_tests(names)]
  prepare = [functools.partial(jobs.of, series, base, names, python_version)
             for base in chosen]
  total = Tally()
  with jobs.pool() as pool:
    made, done = jobs.submit_in_turn(pool, prepare, others)
    todo = jobs.longest_first(job for f in made for job in f.result())
    rows = run_jobs(pool, todo, total)
    for future in done:
      total.add(future.result())
  return finish(rows, total)


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
                 for job in jobs.of(needed, base, [patch.id], python_version)
                 if job.side == "mended"]
  with jobs.pool() as pool:
    return finish(run_jobs(pool, todo, total), total)


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


def _tool_tests(names: Sequence[str]) -> list[pathlib.Path]:
  files = sorted((bases.ROOT / _TOOL_TESTS).glob("*_test.py"))
  if names:
    given = {(bases.ROOT / n).resolve() for n in names}
    files = [f for f in files if f in given or f.parent in given]
  return files


def _tool_test(file: pathlib.Path) -> Tally:
  label = str(file.relative_to(bases.ROOT))
  tally = judge_mended(label, pytest_run.run_file(
      sys.executable, file, limit=TEST_LIMIT, env={}), ())
  report.say(f"  {label}: {tally.passed} passed, "
             f"{len(tally.failures)} failed")
  return tally


def run_jobs(pool: concurrent.futures.Executor, todo: Sequence[Job],
             total: Tally) -> list[list[str]]:
  sums: dict[tuple[str, str], list[int]] = {}
  order = [base.version for base in bases.all_bases()]

  def one(job: Job) -> tuple[Job, Tally, float]:
    began = time.monotonic()
    outcomes = pytest_run.run_file(job.python, bases.ROOT / job.file,
                                   limit=TEST_LIMIT, env=_JOB_ENVIRONMENT)
    judge = judge_mended if job.side == "mended" else judge_pristine
    tally = judge(job.label, outcomes, job.reds)
    return job, tally, time.monotonic() - began

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
