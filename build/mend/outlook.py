"""What `check --candidate` prints, and writes to docs/candidates.md."""

from __future__ import annotations

from collections.abc import Sequence
import concurrent.futures
import dataclasses
import fnmatch
import pathlib

from mend import (bases, candidates, docs, drift, patches, pytest_run, report,
                  testing)
from mend.bases import Base
from mend.candidates import Candidate

DOCUMENT = "docs/candidates.md"
_LIMIT = 60.0  # seconds for a test: some deadlock on a pristine release
_HEADER = ("patch", "as on", "edits", "regressions on pristine", "mended",
           "verdict")
Outcomes = dict[str, pytest_run.Outcome]


@dataclasses.dataclass(frozen=True)
class Row:
  """How one patch stands on a candidate."""
  patch: str
  edits: dict[str, int]  # state -> count
  red: tuple[int, int] | None = None  # still failing, of all; None: not run
  mended: tuple[int, int] | None = None  # passed, failed
  detail: str = ""
  base: str = ""  # whose edits were tried

  @property
  def verdict(self) -> str:
    """What to do about the patch, worst news first."""
    lost = self.edits.get(candidates.GONE, 0)
    if self.red is not None and self.red[1] and not self.red[0]:
      return "upstream has it: retire"
    if self.edits.get(candidates.THERE):
      return "partly there: look"
    if lost:
      return f"port {lost} edit{'s' * (lost > 1)}"
    if self.detail:
      return self.detail
    if self.mended is None:
      return "run its tests" if self.red is None else "port what it needs"
    if self.mended[1]:
      return f"{self.mended[1]} tests to look at"
    if not self.mended[0]:
      return "no test ran"
    drifted = self.edits.get(candidates.DRIFTED, 0)
    return f"works; review {drifted} drifted" if drifted else "works"

  def cells(self) -> tuple[str, ...]:
    counts = ", ".join(f"{n} {s}" for s, n in self.edits.items()) or "none"
    red = "not run" if self.red is None else (
        f"{self.red[0]} of {self.red[1]} fail" if self.red[1] else "none")
    mended = "-" if self.mended is None else (
        f"{self.mended[0]} passed, {self.mended[1]} failed")
    return self.patch, self.base, counts, red, mended, self.verdict


def rows(series: Sequence[patches.Patch], candidate: Candidate,
         run_tests: bool) -> list[Row]:
  """One row for each patch that is for a base next to the candidate."""
  base = candidate.base
  origin = candidates.adapted(series, candidate)
  series = mine = [p for p, _ in origin]
  found = candidates.states(series, candidate)
  for state in found:
    if state.state != drift.EXACT:
      report.say(f"{state.state.upper()}: {state.edit.label}"
                 + (f": {state.detail}" if state.detail else ""))
  plain = [Row(p.id, _count(p, found), base=b) for p, b in origin]
  if not run_tests or not candidate.released or not mine:
    return plain
  good = candidates.applicable(series, base, found)
  made = candidates.sides(candidate, series, good)
  for name, why in made.problems.items():
    report.say(f"BREAKS IMPORT: patch {name}: {why}")
  good = [p for p in good if p.id not in made.problems]
  before = _run(made.pristine, mine)
  after = _run(made.mended, good) if made.mended else {}
  names = {p.id for p in good}
  return [dataclasses.replace(
      row, red=_red(patch, base, before),
      mended=_mended(patch, after) if patch.id in names and after else None,
      detail="breaks `import jax`" if patch.id in made.problems else "")
          for row, patch in zip(plain, mine)]


def _count(patch: patches.Patch,
           found: Sequence[drift.State]) -> dict[str, int]:
  counts: dict[str, int] = {}
  for state in found:
    if state.edit.patch == patch.id:
      counts[state.state] = counts.get(state.state, 0) + 1
  return counts


def _run(python: pathlib.Path,
         series: Sequence[patches.Patch]) -> dict[str, Outcomes]:
  """The outcomes of every regression test file of the patches."""
  files = list(dict.fromkeys(t for p in series for t in p.tests))
  with concurrent.futures.ThreadPoolExecutor(testing.workers()) as pool:
    outcomes = pool.map(lambda f: pytest_run.run_file(
        python, bases.ROOT / f, limit=_LIMIT, env=testing.TEST_ENVIRONMENT),
                        files)
    with report.step(f"running {len(files)} test files"):
      return dict(zip(files, outcomes))


def _red(patch: patches.Patch, base: Base,
         outcomes: dict[str, Outcomes]) -> tuple[int, int]:
  """How many of the regression tests still fail, of how many."""
  wanted = [name for red in patch.red
            if not red.bases or base.within(red.bases) for name in red.tests]
  found = [outcome for file in patch.tests
           for test, outcome in outcomes.get(file, {}).items()
           if any(fnmatch.fnmatchcase(test, name) for name in wanted)
           or test == pytest_run.COLLECTING]
  failing = sum(o.status == pytest_run.FAILED for o in found)
  return failing, len(found)


def _mended(patch: patches.Patch,
            outcomes: dict[str, Outcomes]) -> tuple[int, int]:
  found = [o.status for file in patch.tests
           for o in outcomes.get(file, {}).values()]
  return found.count(pytest_run.PASSED), found.count(pytest_run.FAILED)


def check(named: Sequence[str], run_tests: bool, write: bool) -> int:
  """Prints a table for each candidate; 0 if every edit is exact."""
  series = patches.load()
  good = True
  for name in named:
    candidate = candidates.find(name)
    report.say(f"\njax {candidate.base.version} ({name}):")
    found = rows(series, candidate, run_tests)
    text = section(candidate, found)
    report.say("\n" + text)
    if write:
      docs.write_section(DOCUMENT, "candidates", text)
    good = good and bool(found) and all(
        set(r.edits) <= {drift.EXACT} for r in found)
  return 0 if good else 1


def section(candidate: Candidate, found: Sequence[Row]) -> str:
  """The heading, the counts and the table of one candidate."""
  sums: dict[str, int] = {}
  for row in found:
    for state, n in row.edits.items():
      sums[state] = sums.get(state, 0) + n
  works = sum(r.verdict.startswith("works") for r in found)
  counts = ", ".join(f"{n} {s}" for s, n in sorted(sums.items()))
  ran = any(r.red is not None for r in found)
  said = f"{works} work as they are" if ran else "their tests were not run"
  return (f"## jax {candidate.base.version}\n\n{len(found)} patches are for "
          f"it; {said}. Edits: {counts or 'none'}.\n\n"
          + report.table(_HEADER, [r.cells() for r in found]))
