# SPDX-License-Identifier: Apache-2.0
"""`build.py export --verify`: upstream's checks of each commit that is sent.

Each commit is applied by `git am` to a copy of the checkout, alone; then all of
them, one after another: there all of upstream's files are held against their
types, and for one commit those that it changes. A test that a commit adds is
one that is collected with it and not without it, or whose code it changes.
Without the commit's source one at least must fail, the others are guards; with
it all pass. The program of a commit's report prints what the report says
without the commit, and not with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import pathlib

from mend.editing import sendable
from mend.ground import cache, report
from mend.ground.report import Verdict
from mend.trees import bazel_graph, build_files, sending
from mend.upkeep import copies, upstream_checks
from mend.upkeep.upstream_checks import Errors, Finding, Tools

# A commit, its tests, and the number of those red without its source.
Passed = tuple[sending.Made, tuple[str, ...], int]


@dataclasses.dataclass(frozen=True)
class Row:
  """A commit's findings, its tests, and those red without its source."""
  file: str
  findings: tuple[Finding, ...]
  tests: tuple[str, ...]
  red: int = 0

  @property
  def good(self) -> bool:
    return all(f.good for f in self.findings)


def _added(copy: copies.Copy, before: set[str],
           files: Sequence[str]) -> tuple[Finding, list[str]]:
  """The collection of the changed test files; its new and changed tests."""
  if not files:
    return Finding("collection", 0, "tests"), []
  ids, why = upstream_checks.collected(copy.tools, copy.folder, files)
  problems = [why] if why else [f"{t} is gone" for t in before - {*ids}]
  new = [i for i in ids if i not in before]
  for file in files:
    new += upstream_checks.changed_tests(
        copy.was(file), (copy.folder / file).read_text(encoding="utf-8"),
        [i for i in ids if i in before and i.startswith(f"{file}::")])
  if not new:
    problems.append("it adds or changes no test")
  return Finding("collection", len(ids), "tests", tuple(problems)), new


def judged(red: Mapping[str, str], green: Mapping[str, str]) -> Finding:
  """The verdict on added tests: one at least red without, all green with.

  Args:
    red: test -> its outcome without the commit's source.
    green: with it.
  """
  problems = [f"{test}: {status} with the source"
              for test, status in green.items()
              if status != upstream_checks.PASSED]
  failing = [t for t, status in red.items()
             if status in (upstream_checks.FAILED, upstream_checks.DIED)]
  if red and not failing:
    problems.append("no test fails without the source")
  guards = len(red) - len(failing)
  return Finding("red to green", len(failing), "tests" + (
      f" and {report.plural(guards, 'guard')}" if guards else ""),
                 tuple(problems))


def guarding(green: Mapping[str, str]) -> Finding:
  """The verdict on a commit of tests alone: all pass."""
  return Finding("guards", len(green), "tests", tuple(
      f"{test}: {status}" for test, status in green.items()
      if status != upstream_checks.PASSED))


def _reported(copy: copies.Copy, report_: sendable.Report | None) -> str | None:
  """Runs the report's program in the copy; None without a report."""
  if report_ is None:
    return None
  return upstream_checks.printed(copy.tools, copy.folder, report_.program,
                                 report_.xla_flags)


def described(report_: sendable.Report, before: str, after: str) -> Finding:
  """The verdict on a report, by what its program prints without and with."""
  problems = []
  if report_.output not in before:
    problems.append(f"without the commit it prints {before[-300:]!r}")
  if report_.output in after:
    problems.append("with the commit it prints the same")
  return Finding("report", 1, "program", tuple(problems))


def _verified(copy: copies.Copy, file: pathlib.Path, made: sending.Made,
              after: Sequence[pathlib.Path]) -> Row:
  commit = made.commit
  assert commit
  copy.start(after)
  before_said = _reported(copy, made.report)
  tests = [n for n in _files(file) if _is_test_file(n)]
  before = copy.before(tests)
  types = copy.types([n for n in _files(file) if (copy.folder / n).is_file()])
  copy.apply(file)
  changed = copy.changed()
  collection, new = _added(copy, before, tests)
  findings = [
      upstream_checks.ruff(copy.tools, copy.folder, changed),
      upstream_checks.licence(copy.tools, copy.folder, changed),
      upstream_checks.lines(copy.folder, copy.diff()),
      collection]
  if made.report:
    findings.append(described(made.report, before_said or "",
                              _reported(copy, made.report) or ""))
  if commit.guard:
    green = upstream_checks.outcomes(copy.tools, copy.folder, new)
    return Row(file.name, (*findings, guarding(green)), tuple(new))
  findings.append(upstream_checks.types(types, copy.types(changed), changed))
  verdict = _red_to_green(copy, new)
  return Row(file.name, (*findings, verdict), tuple(new), verdict.count)


def _red_to_green(copy: copies.Copy, tests: Sequence[str]) -> Finding:
  """Runs the tests without the applied commit's source, and with it."""
  copy.take_source_away()
  red = upstream_checks.outcomes(copy.tools, copy.folder, tests)
  copy.put_back()
  return judged(red, upstream_checks.outcomes(copy.tools, copy.folder, tests))


def on_release(commits: Mapping[str, sending.Made], folder: pathlib.Path,
               passed: Sequence[Passed], copy: copies.Copy) -> list[str]:
  """The patches of whose commits the tests are red to green there as well.

  Args:
    commits: file -> the commit in it, as made for that release.
    folder: of the files.
    passed: what has passed on the checkout.
    copy: the checkout with the release's sources.
  """
  tests, good = {made.patch: ids for made, ids, _ in passed}, []
  for file, made in commits.items():
    with report.step(f"{made.patch} on the newest release"):
      copy.start(copies.needed(made, commits, folder))
      copy.apply(folder / file)
      assert made.commit
      ids = tests[made.patch]
      found = guarding(upstream_checks.outcomes(
          copy.tools, copy.folder, ids)) if made.commit.guard else (
              _red_to_green(copy, ids))
    for problem in found.problems:
      report.say(f"ON THE NEWEST RELEASE: {made.patch}: {problem}")
    good += [made.patch] if found.good else []
  return good


def _files(file: pathlib.Path) -> list[str]:
  """The files that a commit changes."""
  found = []
  for line in file.read_text(encoding="utf-8").splitlines():
    if line.startswith("diff --git a/"):
      found.append(line.split(" b/")[-1])
  return found


def _is_test_file(name: str) -> bool:
  return name.startswith("tests/") and name.endswith("_test.py")


def _together(copy: copies.Copy, files: Sequence[pathlib.Path],
              tests: Sequence[str], types: Errors) -> Row:
  """All commits one after another, and all their tests."""
  copy.start()
  for file in files:
    copy.apply(file)
  green = upstream_checks.outcomes(copy.tools, copy.folder, tests)
  problems = tuple(f"{test}: {status}" for test, status in green.items()
                   if status != upstream_checks.PASSED)
  changed = copy.changed()
  findings = [upstream_checks.ruff(copy.tools, copy.folder, changed),
              Finding("tests", len(green), "tests", problems)]
  if upstream_checks.typed(changed):
    findings.append(upstream_checks.types(
        types, upstream_checks.type_errors(copy.tools, copy.folder), changed))
  return Row(f"all {len(files)}, one after another", tuple(findings),
             tuple(tests))


def verify_series(folder: pathlib.Path, names: Sequence[str],
                  checkout: pathlib.Path,
                  tools: Tools | None = None) -> Verdict:
  """Makes those of upstream's checks that a fork's whole series must pass.

  All commits are applied, one after another. Their tests must collect under
  upstream's own pytest; they are run by `build.py test`. Copyright lines and
  types are the fork's own.

  Args:
    folder: of the commits' files.
    names: of the files, in order.
    checkout: a clean git checkout of upstream's.
    tools: upstream's; installed as the checkout pins them if None.
  """
  tools = tools or upstream_checks.tools(checkout)
  with cache.scratch() as scratch, report.step("the whole series"):
    copy = copies.Copy(checkout, scratch, tools)
    before = _targets(copy.folder)
    for name in names:
      copy.apply(folder / name)
    changed = copy.changed()
    tests = [n for n in changed if _is_test_file(n)]
    ids, why = upstream_checks.collected(tools, copy.folder, tests)
    row = Row(f"the series of {len(names)}", (
        upstream_checks.ruff(tools, copy.folder, changed),
        upstream_checks.lines(copy.folder, copy.diff()),
        upstream_checks.circles(before, _targets(copy.folder)),
        Finding("collection", len(ids), f"tests in {len(tests)} files",
                (why,) if why else ())), ())
  _say(row)
  if not row.good:
    return Verdict("upstream's tools refuse the series.",
                   "see the lines that begin with WRONG above")
  return Verdict(f"{report.plural(len(names), 'commit')} pass ruff, Bazel's "
                 f"graph and upstream's collection of tests: {folder}")


def _targets(folder: pathlib.Path) -> bazel_graph.Graph:
  return bazel_graph.Targets(build_files.found_in(folder),
                             lambda name: (folder / name).is_file()).graph


def verify(folder: pathlib.Path, commits: Mapping[str, sending.Made],
           checkout: pathlib.Path, tools: Tools | None = None,
           keep: Callable[[list[Passed]], None] | None = None,
           ) -> Verdict:
  """Makes upstream's checks of commits that were written for a checkout.

  Args:
    folder: of the commits' files.
    commits: file -> the commit in it, in order.
    checkout: a clean git checkout of upstream's.
    tools: upstream's; installed as the checkout pins them if None.
    keep: is called with what each commit that passes alone has passed, if all
      pass together.
  """
  tools = tools or upstream_checks.tools(checkout)
  files = [folder / name for name in commits]
  rows: list[Row] = []
  with cache.scratch() as scratch:
    copy = copies.Copy(checkout, scratch, tools)
    with report.step("type errors of the checkout"):
      types = upstream_checks.type_errors(tools, copy.folder)
    for file in files:
      with report.step(file.name):
        made = commits[file.name]
        rows.append(_verified(copy, file, made,
                              copies.needed(made, commits, folder)))
      _say(rows[-1])
    with report.step("all together"):
      rows.append(_together(copy, files, [t for r in rows for t in r.tests],
                            types))
    _say(rows[-1])
  if keep and rows[-1].good:
    keep([(made, row.tests, row.red)
          for made, row in zip(commits.values(), rows) if row.good])
  return _verdict(rows, folder)


def _verdict(rows: Sequence[Row], folder: pathlib.Path) -> Verdict:
  """The verdict of all commits; the last row is of all together."""
  bad, alone = [row.file for row in rows if not row.good], rows[:-1]
  if bad or not alone:
    return Verdict(f"upstream would refuse {', '.join(bad) or 'nothing'}.",
                   "see the lines that begin with WRONG above")
  tests = sum(len(row.tests) for row in alone)
  return Verdict(f"{report.plural(len(alone), 'commit')} with "
                 f"{report.plural(tests, 'test')} pass upstream's checks, "
                 f"each alone and all together: {folder}")


def _say(row: Row) -> None:
  report.say(f"{row.file}: " + "; ".join(map(str, row.findings)))
  for finding in row.findings:
    for problem in finding.problems:
      report.say(f"WRONG: {finding.check}: {problem}")
