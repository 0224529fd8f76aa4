# SPDX-License-Identifier: Apache-2.0
"""The difference of a suite's outcomes on both wheels, test by test."""

from __future__ import annotations

from collections.abc import Sequence
import fnmatch

from mend.editing import patches
from mend.ground import report
from mend.proof import failure_reasons, judging, pytest_run
from mend.releases.bases import Base

Outcomes = dict[str, pytest_run.Outcome]
KINDS = ("passed", "skipped", "fail on pristine too", "changed on purpose",
         "newly failing")


def rows_of(section: str) -> list[tuple[str, ...]]:
  """The rows of a table that was written before: patches, file, counts."""
  lines = (line.strip().strip("|").split("|") for line in section.splitlines())
  rows = (tuple(cell.strip() for cell in line) for line in lines)
  return [row for row in rows if len(row) == 2 + len(KINDS)
          and all(cell.isdigit() for cell in row[2:])]


def compare(name: str, base: Base, before: Outcomes, after: Outcomes,
            series: Sequence[patches.Patch] = (),
            where: str = "") -> dict[str, int]:
  """Counts the outcomes of one file and prints what the patches changed.

  Args:
    name: the file's name.
    base: the release.
    before: the outcomes on pristine, of those that fail on mended at least.
    after: the outcomes on mended.
    series: the patches, which say what they change on purpose.
    where: what to add to the release where a test is printed.

  Returns:
    The number of tests of each of `KINDS`.
  """
  counts = dict.fromkeys(KINDS, 0)
  for test, outcome in after.items():
    kind = _kind(before.get(test), outcome)
    why = _purpose(f"{name} {test}", outcome.text, base, series)
    if kind == "newly failing" and why:
      kind = "changed on purpose"
      report.say(f"changed on purpose on {base.version}{where}: {name} {test}: "
                 + why)
    elif kind == "newly failing":
      report.say(f"NEWLY FAILING on {base.version}{where}: {name} {test}\n"
                 + judging.tail(outcome.text))
    counts[kind] += 1
  return counts


def _kind(before: pytest_run.Outcome | None,
          after: pytest_run.Outcome) -> str:
  if after.status != pytest_run.FAILED:
    return after.status
  if before is not None and before.status == pytest_run.FAILED:
    return "fail on pristine too"
  return "newly failing"


def _purpose(test: str, failure: str, base: Base,
             series: Sequence[patches.Patch]) -> str:
  """The reason why a patch fails this test of upstream on purpose, or ""."""
  for patch in series:
    for item in patch.supersedes:
      if ((not item.bases or base.within(item.bases))
          and any(fnmatch.fnmatchcase(test, p) for p in item.tests)
          and failure_reasons.states(item.reason, failure)):
        return item.why
  return ""
