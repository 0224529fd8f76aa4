# SPDX-License-Identifier: Apache-2.0
"""Judges the outcomes of a test file: green on mended, red on pristine.

A regression test counts only if it fails on pristine for the reason that its
patch states, and not because a name of our own is missing there.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import fnmatch
import re

from mend.editing.expected_failures import Red, first, unmet
from mend.proof import failure_reasons, pytest_run

_RUNNER = re.compile(r"[\\/](_pytest|pluggy)[\\/]")  # files of what runs tests


@dataclasses.dataclass
class Tally:
  """Counts of outcomes, and the text of each failure."""
  passed: int = 0
  skipped: int = 0
  red: int = 0
  failures: list[str] = dataclasses.field(default_factory=list)

  def __str__(self) -> str:
    counts = ((self.passed, "passed"), (self.red, "red as stated"),
              (self.skipped, "skipped"))
    return ", ".join([*(f"{n} {words}" for n, words in counts if n),
                      f"{len(self.failures)} failed"])

  def add(self, other: Tally) -> None:
    self.passed += other.passed
    self.skipped += other.skipped
    self.red += other.red
    self.failures += other.failures


def tail(text: str, lines: int = 30) -> str:
  """The last lines of a traceback, without what pytest adds to each."""
  kept, theirs = [], False
  for line in text.splitlines():
    if line.startswith("  File "):
      theirs = _RUNNER.search(line) is not None
    elif not line.startswith("    "):
      theirs = False
    if not theirs:
      kept.append(line)
  return "\n".join("    " + line for line in kept[-lines:])


def case_of(test: str, outcome: pytest_run.Outcome) -> str:
  """The case that patterns are matched with."""
  return outcome.case or f"{test}()"


def judge_mended(label: str, outcomes: dict[str, pytest_run.Outcome],
                 reds: Sequence[Red], is_share: bool = False) -> Tally:
  """Judges the mended side: tests pass, regression tests aren't skipped.

  Args:
    label: what was run.
    outcomes: of its tests.
    reds: what names its regression tests, each pattern one or more.
    is_share: whether it is a share of a file's tests, which may all be skipped.
  """
  tally = Tally()
  cases = {test: case_of(test, outcome) for test, outcome in outcomes.items()}
  for test, outcome in outcomes.items():
    skipped = outcome.status == pytest_run.SKIPPED
    if outcome.status == pytest_run.LEFT:
      continue
    if outcome.status == pytest_run.PASSED:
      tally.passed += 1
    elif skipped and not first(cases[test], reds):
      tally.skipped += 1
    else:
      why = "is skipped, though declared red on pristine" if skipped else ""
      tally.failures.append(f"{label}: {test} {why}\n{tail(outcome.text)}")
  if not (tally.passed or tally.failures or is_share and tally.skipped):
    tally.failures.append(f"{label}: no test ran")
  for pattern in (p for r in reds for p in r.tests):
    if not fnmatch.filter(cases.values(), pattern):
      tally.failures.append(f"{label}: red names {pattern!r}, no such test")
  return tally


def judge_pristine(label: str, outcomes: dict[str, pytest_run.Outcome],
                   reds: Sequence[Red]) -> Tally:
  """Judges the pristine side: regression tests fail for the stated reason.

  Each of `reds` must be met by a test.
  """
  tally = Tally()
  for test, outcome in outcomes.items():
    if outcome.status == pytest_run.LEFT:
      continue
    red = first(case_of(test, outcome), reds)
    problem = _problem(outcome, red)
    if problem:
      tally.failures.append(f"{label}: {test} {problem}\n{tail(outcome.text)}")
    elif outcome.status == pytest_run.SKIPPED:
      tally.skipped += 1
    elif red is not None:
      tally.red += 1
    else:
      tally.passed += 1
  cases = [case_of(*each) for each in outcomes.items()]
  for red in unmet(reds, cases):
    tally.failures.append(
        f"{label}: no test has to meet /{red.reason}/: none of "
        f"{', '.join(red.tests)} is left by what stands before it")
  return tally


def _problem(outcome: pytest_run.Outcome, red: Red | None) -> str:
  if red is None:
    if outcome.status == pytest_run.FAILED:
      return "fails on pristine and no `red` at it says so"
    return ""
  if outcome.status != pytest_run.FAILED:
    return f"is declared red, and is {outcome.status} on pristine"
  if not failure_reasons.states(red.reason, outcome.text):
    return f"fails for another reason than /{red.reason}/"
  if not red.api_missing and _only_missing(outcome.text, red.reason):
    return "fails only because one of our own names is missing"
  return ""


def _only_missing(text: str, reason: str) -> bool:
  """True if a test fails because a name is missing, which is not reported."""
  errors = re.findall(
      r"^(?:[\w.]+\.)?(\w*(?:Error|Exception))\b", text, re.M)
  last = errors[-1] if errors else ""
  return (last in ("ImportError", "ModuleNotFoundError", "AttributeError")
          and last not in reason)
