# SPDX-License-Identifier: Apache-2.0
"""Runs tests on one mutant after the other, until one of them kills it.

The test that killed it before, or on another release, runs first; if it passes,
tests run until one fails, those that cover the mutant first: one case of the
tests of its patch, then of the likeliest of those of the patches that depend on
it, and that it depends on; then all cases of its patch's. A registration, an
entry of a table say, may be a case of another patch's: it is tried with all of
these, too. An edit that only they would kill lacks a test of its own. A test
kills if it passes on the whole wheel. A run costs an import of jax and the
tests up to the first that fails. Results are remembered, so that a stopped run
goes on.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
import dataclasses
import json
import os
import pathlib
import queue
from typing import Any

from mend.editing import patches
from mend.ground import cache
from mend.ground.errors import MendError
from mend.mutation import coverage, overlays
from mend.mutation.mutants import Mutant
from mend.proof import environments, fork_servers, pools, pytest_run, testing
from mend.releases import bases, interpreters
from mend.releases.bases import Base
from mend.trees import tree

_LIMIT = 60.0  # seconds for one test: a mutant may deadlock
_RULE = "2"  # of what kills: results by another are forgotten
_PROBES = bases.ROOT / "build" / "probes"
_TESTS = bases.ROOT / "tests"


@dataclasses.dataclass(frozen=True)
class MutantResult:
  """The first test that failed on a mutant; "" where it survived."""
  mutant: Mutant
  test: str
  own: bool  # one of its own patch

  @property
  def killed(self) -> bool:
    return bool(self.test)


class Runner:
  """Runs the tests of one base on its mutants.

  Args:
    base: the release.
    series: the patches.
    every: all mutants of the base.
    result: the mended tree.
    servers: have what tests import beside jax.
    sharing: have jax, too, for what runs on the whole wheel.
    briefly: the mutants on which only the likeliest tests are run.
  """

  def __init__(self, base: Base, series: Sequence[patches.Patch],
               every: Sequence[Mutant], result: tree.Result,
               servers: fork_servers.Servers, sharing: fork_servers.Sharing,
               briefly: Container[Mutant] = ()):
    self._base, self._servers, self._briefly = base, servers, briefly
    self._series = patches.for_base(series, base)
    self._python = environments.build(base, series=series,
                                      python=_interpreter(base)).mended
    self._coverage = coverage.Coverage(
        self._python, every, result, sharing.of(self._python, base))
    self._overlays: queue.SimpleQueue[overlays.Overlay] = queue.SimpleQueue()
    self._died: set[str] = set()  # tests whose process did
    # Whether a test passes on the whole wheel, by its file and name.
    self._whole: dict[tuple[str, str], bool] = {}

  def make_overlays(self, folder: pathlib.Path) -> None:
    """Makes an overlay for each worker."""
    (jax,) = self._python.parents[1].glob("lib/python*/site-packages/jax")
    for n in range(pools.workers()):
      self._overlays.put(overlays.Overlay(
          jax, folder / f"{self._base.version}-{n}"))

  def run(self, mutant: Mutant) -> MutantResult:
    """Returns what kills it; a result holds while the tests are the same."""
    memory = _Memory(self._base.version, mutant.file, mutant.text)
    own, others = self._files_of(mutant)
    before = memory.read({"test": "", "own": False, "texts": ""})
    if before["texts"] != _texts(before["test"], own, others):
      # What kills it on one release most often does on the others.
      any_base = _Memory(mutant.label)
      likely = before["test"] or any_base.read({"test": ""})["test"]
      test, is_own = self._first_killer(mutant, own, others, likely)
      before = {"test": test, "own": is_own,
                "texts": _texts(test, own, others)}
      if test not in self._died and (test or mutant not in self._briefly):
        memory.write(before)
      if test:
        any_base.write({"test": test})
    return MutantResult(mutant, before["test"], before["own"])

  def _files_of(self, mutant: Mutant) -> tuple[list[str], list[str]]:
    """The test files of its patch, and those of related patches.

    Related are the patches that depend on it, and those that it depends on:
    their tests may look at whatever a wheel has, as those of all primitives do.
    """
    known = {mutant.patch}
    for patch in self._series:
      if known.intersection(patch.depends):
        known.add(patch.id)
    below = {p.id for p in patches.with_needed(self._series, mutant.patch)}
    own = _files([p for p in self._series if p.id == mutant.patch])
    related = [[p for p in self._series if p.id in ids]
               for ids in (known, below - known)]
    others = dict.fromkeys(f for part in related for f in _files(part))
    return own, [f for f in others if f not in own]

  def _first_killer(self, mutant: Mutant, own: Sequence[str],
                    others: Sequence[str],
                    likely: str) -> tuple[str, bool]:
    """The first test that fails, or "", and whether it is of its own patch."""
    overlay = self._overlays.get()
    brief = mutant in self._briefly
    try:
      with overlay.holding(mutant.file, mutant.text):
        file, _, name = likely.partition(" ")
        if file in (*own, *others) and self._first_failure(
            overlay, file, [name]):
          return likely, file in own
        for files, one, few in _stages(mutant, own, others, brief):
          for file, tests in self._coverage.batches(mutant, files, one, few):
            if found := self._first_failure(overlay, file, tests):
              return found, files is own
    finally:
      self._overlays.put(overlay)
    return "", False

  def _first_failure(self, overlay: overlays.Overlay, file: str,
                     tests: Sequence[str]) -> str:
    """The first test that a mutant fails and the whole wheel passes, or ""."""
    left = list(tests)
    while True:
      outcomes = self._twice_if_died(overlay, file, left)
      failed = next((test for test, outcome in outcomes.items()
                     if outcome.status == pytest_run.FAILED), "")
      if failed and self._passes_whole(file, failed):
        if outcomes[failed].died:  # or this run is being stopped
          self._died.add(f"{file} {failed}")
        return f"{file} {failed}"
      left = [test for test in left if test not in outcomes]
      if not failed or not left:
        return ""

  def _passes_whole(self, file: str, test: str) -> bool:
    """Runs a test without a mutant, once; one that fails there kills none."""
    if (file, test) not in self._whole:
      outcomes = self._twice_if_died(None, file, [test])
      self._whole[file, test] = all(
          o.status != pytest_run.FAILED for o in outcomes.values())
    return self._whole[file, test]

  def _twice_if_died(self, overlay: overlays.Overlay | None, file: str,
                     tests: Sequence[str]) -> dict[str, pytest_run.Outcome]:
    outcomes = self._run(overlay, file, tests)
    if any(outcome.died for outcome in outcomes.values()):
      # Perhaps of a full memory, or the machine's sleep.
      outcomes = self._run(overlay, file, tests)
    return outcomes

  def _run(self, overlay: overlays.Overlay | None, file: str,
           tests: Sequence[str]) -> dict[str, pytest_run.Outcome]:
    return pytest_run.run_file(
        self._python, bases.ROOT / file, limit=_LIMIT, first=True,
        options=testing.OPTIONS, only=tests or None,
        server=self._servers.of(self._python), env={
            **testing.JOB_ENVIRONMENT, "PYTHONPATH": os.pathsep.join(
                map(str, (*([overlay.folder] if overlay else []), _PROBES,
                          _TESTS)))})


def _stages(mutant: Mutant, own: Sequence[str], others: Sequence[str],
            brief: bool) -> list[tuple[Sequence[str], bool, bool]]:
  """The files to run; whether one case of each test; whether the likeliest."""
  stages = [(own, True, brief), (others, True, True)]
  if not brief:
    stages.append((own, False, False))
    if mutant.kind == "registration":
      stages.append((others, False, False))
  return stages


class _Memory:
  """A record with a name, kept from one run to the next."""

  def __init__(self, *name: str):
    self._path = cache.folder("mutation") / (
        cache.key(_RULE, *name) + ".json")

  def read(self, default: dict[str, Any]) -> dict[str, Any]:
    if not self._path.is_file():
      return default
    return json.loads(self._path.read_text(encoding="utf-8"))

  def write(self, what: dict[str, Any]) -> None:
    with cache.whole(self._path) as made:
      made.write_text(json.dumps(what), encoding="utf-8")


def _interpreter(base: Base) -> str:
  """A Python whose coverage can be measured, if this machine has one."""
  try:
    return interpreters.for_base(base, "3.12")
  except MendError:
    return interpreters.for_base(base, lowest=True)


def _texts(test: str, own: Sequence[str], others: Sequence[str]) -> str:
  """A hash of the killing test's file; of all files if none kills it."""
  files = [test.split()[0]] if test else [*own, *others]
  return cache.key(*files, *(tree.read(bases.ROOT / f) for f in files
                             if (bases.ROOT / f).is_file()))


def _files(series: Sequence[patches.Patch]) -> list[str]:
  """The test files of some patches, the small ones first."""
  found = {f for p in series for f in (*p.tests, *p.unit_tests)}
  return sorted(found, key=lambda f: (bases.ROOT / f).stat().st_size)
