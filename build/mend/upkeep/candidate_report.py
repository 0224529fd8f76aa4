# SPDX-License-Identifier: Apache-2.0
"""The report of `check --candidate`, printed or in docs/proof/candidates.md."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import pathlib

from mend.editing import patches
from mend.ground import pages, report
from mend.ground.errors import MendError
from mend.ground.report import Verdict
from mend.proof import environments, judging, pools, pytest_run, testing
from mend.releases import bases, interpreters
from mend.trees import drift
from mend.upkeep import candidate_defects, candidates
from mend.upkeep.candidates import Candidate
from mend.upstream import main_branch

DOCUMENT = main_branch.PAGE
MAIN = ", upstream's main"
_LIMIT = 120.0  # seconds for a test: some deadlock on a pristine release
_HEADER = ("patch", "as on", "edits", "regressions on pristine",
           "guards on pristine", "mended", "verdict")
Outcomes = dict[str, pytest_run.Outcome]


@dataclasses.dataclass(frozen=True)
class Proof:
  """Outcomes of a patch's tests on the mended candidate, counted."""
  passed: int = 0
  left: int = 0  # regressions that fail still
  broken: int = 0  # what passes on pristine and fails here
  differ: int = 0  # guards that fail on both: they expect something else
  units: int = 0  # unit tests that fail

  @property
  def failed(self) -> int:
    return self.left + self.broken + self.differ + self.units

  def problems(self) -> str:
    """The failures by kind, worst first; "" if there are none."""
    named = ((self.broken, "broken by it"), (self.left, "not mended"),
             (self.units, "of its modules"),
             (self.differ, "that pristine fails too"))
    found = [f"{n} {words}" for n, words in named if n]
    return "look at tests: " + ", ".join(found) if found else ""


@dataclasses.dataclass(frozen=True)
class Row:
  """The state of one patch on a candidate: a row of the report."""
  patch: str
  edits: dict[str, int]  # state -> count
  red: tuple[int, int] | None = None  # still failing, of all; None: not run
  mended: Proof | None = None  # None: it is not in the mended one
  detail: str = ""
  base: str = ""  # whose edits were tried
  guards: tuple[int, int] = (0, 0)  # failing on pristine, of all

  @property
  def verdict(self) -> str:
    """The action that the patch needs, worst news first."""
    lost = self.edits.get(drift.GONE, 0)
    if self.red is not None and self.red[1] and not self.red[0]:
      return "upstream has it: retire" + (
          f", after a look at {report.plural(self.guards[0], 'guard')}"
          if self.guards[0] else "")
    if self.edits.get(drift.THERE):
      return "partly there: look"
    if lost:
      return f"port {report.plural(lost, 'edit')}"
    if self.detail:
      return self.detail
    if self.mended is None:
      return "run its tests" if self.red is None else "port what it needs"
    return self.mended.problems() or self._works()

  def _works(self) -> str:
    assert self.red is not None and self.mended is not None
    drifted = self.edits.get(drift.DRIFTED, 0)
    gone = self.red[1] - self.red[0]
    if not self.mended.passed:
      return "no test of its own: as what needs it"
    return "; ".join(["works"] + (
        [f"{gone} of {report.plural(self.red[1], 'regression')} gone upstream"]
        if gone else []) + ([f"review {drifted} drifted"] if drifted else []))

  def cells(self) -> tuple[str, ...]:
    counts = ", ".join(f"{n} {s}" for s, n in self.edits.items()) or "none"
    red, guards = ("not run",) * 2 if self.red is None else (
        f"{n} of {of} fail" if of else "none"
        for n, of in (self.red, self.guards))
    mended = "-" if self.mended is None else (
        f"{self.mended.passed} passed, {self.mended.failed} failed")
    return self.patch, self.base, counts, red, guards, mended, self.verdict


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
  plain = [Row(p.id, _states_of(p, found), base=b) for p, b in origin]
  if not run_tests or not candidate.released or not mine:
    return plain
  good = candidates.applicable(series, base, found)
  made = candidates.trial(candidate, series, good)
  for name, why in made.problems.items():
    report.say(f"BREAKS IMPORT: patch {name}: {why}")
  good = [p for p in good if p.id not in made.problems]
  before = _run(made.pristine, [t for p in mine for t in p.tests])
  after = _run(made.mended, [t for p in good for t in (
      *p.tests, *p.unit_tests)]) if made.mended else {}
  names = {p.id for p in good}
  return [dataclasses.replace(
      row, red=judge_red(patch, before), guards=judge_guards(patch, before),
      mended=judge(patch, before, after)
      if patch.id in names and after else None,
      detail="breaks `import jax`" if patch.id in made.problems else "")
          for row, patch in zip(plain, mine)]


def _states_of(patch: patches.Patch,
               found: Sequence[drift.State]) -> dict[str, int]:
  counts: dict[str, int] = {}
  for state in found:
    if state.edit.patch == patch.id:
      counts[state.state] = counts.get(state.state, 0) + 1
  return counts


def _run(python: pathlib.Path, named: Sequence[str]) -> dict[str, Outcomes]:
  """The outcomes of each test file, by its name."""
  files = list(dict.fromkeys(named))
  with pools.pool() as pool:
    outcomes = pool.map(lambda f: pytest_run.run_file(
        python, bases.ROOT / f, limit=_LIMIT, env=testing.TEST_ENVIRONMENT),
                        files)
    with report.step(f"running {len(files)} test files"):
      return dict(zip(files, outcomes))


def require_landed(patch: patches.Patch, version: str) -> None:
  """Runs a patch's regression tests on a release as upstream made it.

  Raises:
    MendError: one fails, or none ran: upstream hasn't got it.
  """
  base = candidates.release(version)
  python = environments.pristine_only(base, interpreters.for_base(base))
  failing, ran = judge_red(patch, _run(python, patch.tests))
  if failing or not ran:
    raise MendError(
        f"jax {version} hasn't got patch {patch.id}: {failing} of "
        f"{report.plural(ran, 'regression')} fail there, unpatched.",
        "name the release that has it: --landed=V")
  report.say(f"jax {version}, unpatched: {report.plural(ran, 'regression')} "
             "of the patch pass.")


def _is_red(patch: patches.Patch, file: str, test: str,
            outcome: pytest_run.Outcome) -> bool:
  return test == pytest_run.COLLECTING or any(
      red.file in ("", file) and red.names(judging.case_of(test, outcome))
      for red in patch.red)


def _failing(found: Sequence[pytest_run.Outcome]) -> tuple[int, int]:
  ran = [o.status for o in found if o.status != pytest_run.SKIPPED]
  return ran.count(pytest_run.FAILED), len(ran)


def judge_red(patch: patches.Patch,
              outcomes: dict[str, Outcomes]) -> tuple[int, int]:
  """Counts the failing and the run regression tests."""
  return _failing([o for file in patch.tests
                   for test, o in outcomes.get(file, {}).items()
                   if _is_red(patch, file, test, o)])


def judge_guards(patch: patches.Patch,
                 outcomes: dict[str, Outcomes]) -> tuple[int, int]:
  """Counts the guards, which pass on all bases: failing, and run."""
  return _failing([o for file in patch.tests
                   for test, o in outcomes.get(file, {}).items()
                   if not _is_red(patch, file, test, o)])


def judge(patch: patches.Patch, before: dict[str, Outcomes],
          after: dict[str, Outcomes]) -> Proof:
  """Judges a patch's tests on mended by their outcomes on pristine."""
  kinds: list[str] = []
  for file in (*patch.tests, *patch.unit_tests):
    for test, outcome in after.get(file, {}).items():
      was = before.get(file, {}).get(test)
      if outcome.status == pytest_run.PASSED:
        kinds.append("passed")
      elif outcome.status == pytest_run.FAILED:
        kinds.append(_failure(patch, file, test, outcome, was))
        report.say(f"FAILS, {kinds[-1]}: {file} {test}\n"
                   + judging.tail(outcome.text, 8))
  return Proof(**{kind: kinds.count(kind) for kind in dict.fromkeys(kinds)})


def _failure(patch: patches.Patch, file: str, test: str,
             outcome: pytest_run.Outcome,
             was: pytest_run.Outcome | None) -> str:
  """The attribute of `Proof` that counts a test failing on mended."""
  if file in patch.unit_tests:
    return "units"
  if was is not None and was.status == pytest_run.PASSED:
    return "broken"
  return "left" if _is_red(patch, file, test, outcome) else "differ"


def check(named: Sequence[str], run_tests: bool, write: bool,
          run_programs: bool = False) -> Verdict:
  """Prints a table for each candidate, and whether all edits and tests hold.

  Args:
    named: releases, or source trees.
    run_tests: of a release, its tests, unpatched and mended.
    write: also into the pages.
    run_programs: the reports' programs, unpatched.
  """
  series = patches.load()
  open_rows = looked_at = 0
  for name in named:
    candidate = candidates.find(name)
    report.say(f"\njax {candidate.base.version} ({name}):")
    found = rows(series, candidate, run_tests)
    text = section(candidate, found)
    if not candidate.released:
      main_branch.note(candidate.source)
    report.say("\n" + text)
    if run_programs:
      defects = candidate_defects.run(candidate, series)
      candidate_defects.announce(candidate, defects, write)
    if write:
      pages.write_section(bases.ROOT / DOCUMENT, "candidates", text,
                          MAIN if MAIN in text else "")
    looked_at += len(found)
    open_rows += sum(not set(r.edits) <= {drift.EXACT}
                     or bool(r.mended and r.mended.failed) for r in found)
  if open_rows or not looked_at:
    return Verdict(f"{open_rows} of {looked_at} patches need a look.",
                   "the verdicts above say at what; docs/patches.md says how")
  return Verdict(f"{looked_at} patches hold as they are.")


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
  shown = [r for r in found if ran or not set(r.edits) <= {drift.EXACT}]
  commit, date = ("", "") if candidate.released else (
      main_branch.upstreams_commit(candidate.source))
  head = f"## jax {candidate.base.version}" + (
      f"{MAIN}\n\n{main_branch.named(commit, date)}" if commit else "\n")
  return (f"{head}\n{len(found)} patches are for it; {said}. Edits: "
          f"{counts or 'none'}."
          + ("" if ran else " The table has the patches with other than exact "
             "edits.") + "\n\n"
          + report.table(_HEADER, [r.cells() for r in shown]))
