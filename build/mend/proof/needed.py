"""`build.py test --needed`: does a test miss each thing that the patches do?

One edit, or one registration of our modules, is left out at a time, and the
tests of its patch are run until one fails. If none does, those of the patches
that depend on it are. What no test misses is either not needed, and goes, or
lacks a test. A run costs an import of jax and the tests up to the first that
fails; outcomes are remembered, so that a stopped run goes on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import contextlib
import dataclasses
import json
import os
import pathlib
import queue
import shutil

from mend.editing import patches
from mend.ground import cache, pages, report
from mend.ground.report import Verdict
from mend.proof import jobs, pytest_run, sides, testing
from mend.releases import bases, interpreters, source
from mend.releases.bases import Base
from mend.trees import omissions, tree
from mend.trees.omissions import Omission

DOCUMENT = "docs/needed.md"
_LIMIT = 60.0  # seconds for one test: what is left out may leave a deadlock
_PROBES = bases.ROOT / "build" / "probes"
_TESTS = bases.ROOT / "tests"
_COLUMNS = ("family", "edits", "registrations", "missed by a test of the patch",
            "by one of another", "by none")


@dataclasses.dataclass(frozen=True)
class Missed:
  """Which test failed without it; "" for none."""
  omission: Omission
  test: str
  own: bool  # one of its own patch


class Overlay:
  """A copy of a mended jax, of links, in which one file can be another."""

  def __init__(self, jax: pathlib.Path, folder: pathlib.Path):
    self._original, self.folder = jax, folder
    shutil.copytree(jax, folder / "jax", copy_function=os.link)

  @contextlib.contextmanager
  def holding(self, file: str, text: str) -> Iterator[None]:
    path = self.folder / file
    path.unlink()
    tree.write(path, text)
    try:
      yield
    finally:
      path.unlink()
      os.link(self._original.parent / file, path)


class Runner:
  """Runs test files of one base without one thing.

  Args:
    base: the release.
    series: the patches.
  """

  def __init__(self, base: Base, series: Sequence[patches.Patch]):
    self._base = base
    self._series = patches.for_base(series, base)
    python = interpreters.for_base(base, lowest=True)
    self._python = sides.build_sides(base, series=series, python=python).mended
    self._overlays: queue.SimpleQueue[Overlay] = queue.SimpleQueue()

  def enter(self, folder: pathlib.Path) -> None:
    """Makes an overlay for each worker."""
    (jax,) = self._python.parents[1].glob("lib/python*/site-packages/jax")
    for n in range(jobs.workers()):
      self._overlays.put(Overlay(jax, folder / f"{self._base.version}-{n}"))

  def look(self, omission: Omission) -> Missed:
    own = _files([p for p in self._series if p.id == omission.patch])
    found = self._ask(omission, own)
    if found:
      return Missed(omission, found, True)
    known = {omission.patch}
    for patch in self._series:
      if known.intersection(patch.depends):
        known.add(patch.id)
    others = _files([p for p in self._series if p.id in known])
    return Missed(omission, self._ask(
        omission, [f for f in others if f not in own]), False)

  def _ask(self, omission: Omission, files: Sequence[str]) -> str:
    texts = [tree.read(bases.ROOT / f) for f in files]
    memory = cache.folder("needed") / cache.key(
        self._base.version, omission.file, omission.text, *files, *texts)
    if not memory.is_file():
      overlay = self._overlays.get()
      try:
        with overlay.holding(omission.file, omission.text):
          found = next(filter(None, (
              self._first_failure(overlay, f) for f in files)), "")
      finally:
        self._overlays.put(overlay)
      with cache.whole(memory) as made:
        made.write_text(json.dumps(found), encoding="utf-8")
    return json.loads(memory.read_text(encoding="utf-8"))

  def _first_failure(self, overlay: Overlay, file: str) -> str:
    outcomes = pytest_run.run_file(
        self._python, bases.ROOT / file, limit=_LIMIT, first=True,
        options=testing.OPTIONS,
        env={**testing.JOB_ENVIRONMENT, "PYTHONPATH": os.pathsep.join(
            map(str, (overlay.folder, _PROBES, _TESTS)))})
    failed = [t for t, o in outcomes.items() if o.status == pytest_run.FAILED]
    return f"{pathlib.Path(file).stem} {failed[0]}" if failed else ""


def _files(series: Sequence[patches.Patch]) -> list[str]:
  """Their test files, the small ones first."""
  found = {f for p in series for f in (*p.tests, *p.unit_tests)}
  return sorted(found, key=lambda f: (bases.ROOT / f).stat().st_size)


def run(chosen: Sequence[Base], names: Sequence[str],
        write: bool) -> Verdict:
  """Leaves out each thing of each base; what no test misses is a failure."""
  series = patches.load()
  patches.require_known(series, names)
  looked_at = alone = 0
  for base in chosen:
    found = _look_at(base, series, names)
    report.say("\n" + section(base, found))
    looked_at += len(found)
    alone += sum(not m.test for m in found)
    if write:
      pages.write_section(bases.ROOT / DOCUMENT, "needed", section(base, found))
  if alone or not looked_at:
    return Verdict(f"{alone} of {looked_at} things are missed by no test.",
                   "remove each, or test what it is for")
  return Verdict(f"each of {looked_at} things is missed by a test.")


def _look_at(base: Base, series: Sequence[patches.Patch],
             names: Sequence[str]) -> list[Missed]:
  origin = source.pristine(base)
  todo = [o for o in omissions.of_result(tree.mended(series, base, origin),
                                         series, origin)
          if not names or o.patch in names]
  runner = Runner(base, series)
  found = []
  with (cache.scratch() as folder, jobs.pool() as pool,
        report.Progress(len(todo)) as progress):
    runner.enter(folder)
    for missed in pool.map(runner.look, todo):
      progress.end("", f"{base.version} {missed.omission.label}: "
                   + (missed.test or "MISSED BY NO TEST"), bool(missed.test))
      found.append(missed)
  return found


def section(base: Base, found: Sequence[Missed]) -> str:
  """The heading, a row for each family, and what no test misses."""
  rows = []
  for family in dict.fromkeys(m.omission.patch.split("/")[0] for m in found):
    mine = [m for m in found if m.omission.patch.split("/")[0] == family]
    edits = sum(m.omission.kind == "edit" for m in mine)
    rows.append((family, edits, len(mine) - edits,
                 sum(bool(m.test) and m.own for m in mine),
                 sum(bool(m.test) and not m.own for m in mine),
                 sum(not m.test for m in mine)))
  left = [f"* {m.omission.label}" for m in found if not m.test]
  return "\n".join([f"## jax {base.version}", "", report.table(
      _COLUMNS, [tuple(map(str, row)) for row in rows]),
                    *([""] + left if left else [])])
