"""`build.py test --needed`: does a test miss each thing that the patches do?

One edit, or one registration of our modules, is left out at a time. The test
that missed it before, or on another release, runs first; if it doesn't fail,
the tests of its patch do until one fails, those that run it first, and then
those of the patches that depend on it, and that it depends on. A registration,
which releases share, is tried with the likeliest tests on all of them first,
and with the others only if these all pass everywhere. What no test misses is
either not needed, and goes, or lacks a test. A run costs an import of jax and
the tests up to the first that fails; outcomes are remembered, so that a stopped
run goes on.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
import dataclasses
import json
import os
import pathlib
import queue
from typing import Any

from mend.editing import patches
from mend.ground import cache, pages, report
from mend.ground.errors import MendError
from mend.ground.report import Verdict
from mend.proof import executed, forks, jobs, missing, pytest_run, sides
from mend.proof import testing
from mend.releases import bases, interpreters, source
from mend.releases.bases import Base
from mend.trees import omissions, overlays, tree
from mend.trees.omissions import Omission

DOCUMENT = "docs/needed.md"
_LIMIT = 60.0  # seconds for one test: what is left out may leave a deadlock
_PROBES = bases.ROOT / "build" / "probes"
_TESTS = bases.ROOT / "tests"
# What a test imports beside jax, of which each outcome has another one.
_PRELOAD = ("numpy", "pytest", "absl.testing.parameterized",
            "jaxlib.xla_client")
_COLUMNS = ("family", "edits", "registrations", "missed by a test of the patch",
            "by one of another", "on another release", "by none")


@dataclasses.dataclass(frozen=True)
class Missed:
  """Which test failed without it; "" for none."""
  omission: Omission
  test: str
  own: bool  # one of its own patch


class Runner:
  """Runs tests of one base without one thing.

  Args:
    base: the release.
    series: the patches.
    found: all that can be left out.
    result: the mended tree.
    servers: have what tests import beside jax.
    sharing: have jax, too, for what runs on the whole wheel.
    briefly: what only the likeliest tests are run without.
  """

  def __init__(self, base: Base, series: Sequence[patches.Patch],
               found: Sequence[Omission], result: tree.Result,
               servers: forks.Servers, sharing: forks.Sharing,
               briefly: Container[Omission] = ()):
    self._base, self._servers, self._briefly = base, servers, briefly
    self._series = patches.for_base(series, base)
    self._python = sides.build_sides(base, series=series,
                                     python=_interpreter(base)).mended
    self._executed = executed.Executed(
        self._python, found, result, sharing.of(self._python, base))
    self._overlays: queue.SimpleQueue[overlays.Overlay] = queue.SimpleQueue()
    self._died: set[str] = set()  # tests whose process did

  def enter(self, folder: pathlib.Path) -> None:
    """Makes an overlay for each worker."""
    (jax,) = self._python.parents[1].glob("lib/python*/site-packages/jax")
    for n in range(jobs.workers()):
      self._overlays.put(overlays.Overlay(
          jax, folder / f"{self._base.version}-{n}"))

  def look(self, omission: Omission) -> Missed:
    """Who misses it; an outcome holds while the tests are the same."""
    memory = _Memory(self._base.version, omission.file, omission.text)
    own, others = self._files_of(omission)
    before = memory.read({"test": "", "own": False, "texts": ""})
    if before["texts"] != _texts(before["test"], own, others):
      # A test that misses it on one release most often does on the others.
      any_base = _Memory(omission.label)
      likely = before["test"] or any_base.read({"test": ""})["test"]
      test, is_own = self._ask(omission, own, others, likely)
      before = {"test": test, "own": is_own,
                "texts": _texts(test, own, others)}
      if test not in self._died and (
          test or omission not in self._briefly):
        memory.write(before)
      if test:
        any_base.write({"test": test})
    return Missed(omission, before["test"], before["own"])

  def _files_of(self, omission: Omission) -> tuple[list[str], list[str]]:
    """The test files of its patch, and of those that it has to do with.

    These are the patches that depend on it, and those that it depends on: they
    may look at whatever a wheel has, as the tests of all primitives do.
    """
    known = {omission.patch}
    for patch in self._series:
      if known.intersection(patch.depends):
        known.add(patch.id)
    below = {p.id for p in patches.with_needed(self._series, omission.patch)}
    own = _files([p for p in self._series if p.id == omission.patch])
    related = [[p for p in self._series if p.id in ids]
               for ids in (known, below - known)]
    others = dict.fromkeys(f for part in related for f in _files(part))
    return own, [f for f in others if f not in own]

  def _ask(self, omission: Omission, own: Sequence[str], others: Sequence[str],
           likely: str) -> tuple[str, bool]:
    """The first test that fails, or "", and whether it is its patch's."""
    overlay = self._overlays.get()
    brief = omission in self._briefly
    try:
      with overlay.holding(omission.file, omission.text):
        file, _, name = likely.partition(" ")
        if file in (*own, *others) and self._first_failure(
            overlay, file, [name]):
          return likely, file in own
        for files in (own, others):
          for file, tests in self._executed.batches(omission, files, brief):
            if found := self._first_failure(overlay, file, tests):
              return found, files is own
    finally:
      self._overlays.put(overlay)
    return "", False

  def _first_failure(self, overlay: overlays.Overlay, file: str,
                     tests: Sequence[str]) -> str:
    outcomes = self._run(overlay, file, tests)
    if any(outcome.died for outcome in outcomes.values()):
      # Perhaps of a full memory, or the machine's sleep.
      outcomes = self._run(overlay, file, tests)
    for test, outcome in outcomes.items():
      if outcome.status == pytest_run.FAILED:
        if outcome.died:  # or this run is being stopped
          self._died.add(f"{file} {test}")
        return f"{file} {test}"
    return ""

  def _run(self, overlay: overlays.Overlay, file: str,
           tests: Sequence[str]) -> dict[str, pytest_run.Outcome]:
    return pytest_run.run_file(
        self._python, bases.ROOT / file, limit=_LIMIT, first=True,
        options=testing.OPTIONS, only=tests or None,
        server=self._servers.of(self._python), env={
            **testing.JOB_ENVIRONMENT, "PYTHONPATH": os.pathsep.join(
                map(str, (overlay.folder, _PROBES, _TESTS)))})


class _Memory:
  """What is known of something that is named, from one run to the next."""

  def __init__(self, *name: str):
    self._path = cache.folder("needed") / (cache.key(*name) + ".json")

  def read(self, default: dict[str, Any]) -> dict[str, Any]:
    if not self._path.is_file():
      return default
    return json.loads(self._path.read_text(encoding="utf-8"))

  def write(self, what: dict[str, Any]) -> None:
    with cache.whole(self._path) as made:
      made.write_text(json.dumps(what), encoding="utf-8")


def _interpreter(base: Base) -> str:
  """One that can tell which lines a test runs, if there is one."""
  try:
    return interpreters.for_base(base, "3.12")
  except MendError:
    return interpreters.for_base(base, lowest=True)


def _texts(test: str, own: Sequence[str], others: Sequence[str]) -> str:
  """What the outcome rests on: the test's file; all of them if none fails."""
  files = [test.split()[0]] if test else [*own, *others]
  return cache.key(*files, *(tree.read(bases.ROOT / f) for f in files
                             if (bases.ROOT / f).is_file()))


def _files(series: Sequence[patches.Patch]) -> list[str]:
  """Their test files, the small ones first."""
  found = {f for p in series for f in (*p.tests, *p.unit_tests)}
  return sorted(found, key=lambda f: (bases.ROOT / f).stat().st_size)


def run(chosen: Sequence[Base], names: Sequence[str],
        write: bool) -> Verdict:
  """Leaves out each thing of each base; what no test misses is a failure."""
  series = patches.load()
  patches.require_known(series, names)
  things = {base: _Things(base, series, names) for base in chosen}
  # What no test misses costs most, so a registration is tried on each base with
  # the likeliest tests, and only if these all pass on all of them with others.
  found = {base: _look_at(base, series, its, its.todo, brief=True)
           for base, its in things.items()}
  elsewhere = missed_registrations(m for each in found.values() for m in each)
  for base, its in things.items():
    todo = [m.omission for m in found[base]
            if not m.test and m.omission.label not in elsewhere]
    again = {m.omission: m for m in (
        _look_at(base, series, its, todo) if todo else ())}
    found[base] = [again.get(m.omission, m) for m in found[base]]
    elsewhere |= missed_registrations(again.values())
  for base, each in found.items():
    report.say("\n" + section(base, each, elsewhere))
    if write:
      pages.write_section(bases.ROOT / DOCUMENT, "needed",
                          section(base, each, elsewhere))
      if not names:
        missing.write(base, (m.test for m in each if m.test))
  looked_at = sum(map(len, found.values()))
  alone = sum(not m.test and m.omission.label not in elsewhere
              for each in found.values() for m in each)
  if alone or not looked_at:
    return Verdict(f"{alone} of {looked_at} things are missed by no test.",
                   "remove each, or test what it is for")
  return Verdict(f"each of {looked_at} things is missed by a test.")


def missed_registrations(found: Iterable[Missed]) -> frozenset[str]:
  """Labels of those that a test misses, on any release: modules are shared."""
  return frozenset(m.omission.label for m in found
                   if m.test and m.omission.kind == "registration")


class _Things:
  """The mended tree of a base, all that can be left out, and what will be."""

  def __init__(self, base: Base, series: Sequence[patches.Patch],
               names: Sequence[str]):
    origin = source.pristine(base)
    self.result = tree.mended(series, base, origin)
    self.every = omissions.of_result(self.result, series, origin)
    self.todo = [o for o in self.every if not names or o.patch in names]


def _look_at(base: Base, series: Sequence[patches.Patch], its: _Things,
             todo: Sequence[Omission], brief: bool = False) -> list[Missed]:
  found = []
  # A run that is stopped ends its tests first, while they have what they need.
  with (cache.scratch() as folder,
        forks.Servers(_PRELOAD, testing.JOB_ENVIRONMENT) as servers,
        forks.Sharing(testing.PRELOAD, testing.JOB_ENVIRONMENT) as sharing,
        report.Progress(len(todo)) as progress, jobs.pool() as pool):
    briefly = {o for o in todo if brief and o.kind == "registration"}
    runner = Runner(base, series, its.every, its.result, servers, sharing,
                    briefly)
    runner.enter(folder)
    for missed in pool.map(runner.look, todo):
      nothing = ("not missed by the likeliest tests"
                 if missed.omission in briefly else "MISSED BY NO TEST")
      progress.end("", f"{base.version} {missed.omission.label}: "
                   + (missed.test or nothing), bool(missed.test))
      found.append(missed)
  return found


def section(base: Base, found: Sequence[Missed],
            elsewhere: frozenset[str] = frozenset()) -> str:
  """The heading, a row for each family, and what no test misses.

  Args:
    base: the release.
    found: what was looked at on it.
    elsewhere: labels of what a test misses on this or another release.
  """
  alone = {m.omission.label for m in found if not m.test} - elsewhere
  rows = []
  for family in dict.fromkeys(m.omission.patch.split("/")[0] for m in found):
    mine = [m for m in found if m.omission.patch.split("/")[0] == family]
    edits = sum(m.omission.kind == "edit" for m in mine)
    rows.append((family, edits, len(mine) - edits,
                 sum(bool(m.test) and m.own for m in mine),
                 sum(bool(m.test) and not m.own for m in mine),
                 sum(not m.test and m.omission.label in elsewhere
                     for m in mine),
                 sum(m.omission.label in alone for m in mine)))
  left = [f"* {m.omission.label}" for m in found if m.omission.label in alone]
  return "\n".join([f"## jax {base.version}", "", report.table(
      _COLUMNS, [tuple(map(str, row)) for row in rows]),
                    *([""] + left if left else [])])
