# SPDX-License-Identifier: Apache-2.0
"""Holds the mended wheel against upstream's own tests.

Runs test files of a jax source checkout, which stays where it is, on the
mended wheel, and those tests that fail there on the pristine one too. So a run
costs one pass, and what is reported is what the patches have broken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
import datetime
import pathlib
import time
import types

from mend.editing import patches
from mend.ground import pages, report
from mend.ground.errors import MendError
from mend.ground.report import Verdict
from mend.proof import environments, pools, pytest_run, testing
from mend.releases import bases, interpreters
from mend.releases.bases import Base
from mend.suites import verdicts
from mend.suites.verdicts import Outcomes
from mend.trees import tree

DOCUMENT = "docs/proof/upstream_tests.md"
_RUNS = "dist/upstream"  # the rows of each run, whose totals DOCUMENT has
_ALL = "all patches"
# Upstream skips its tests of memory kinds on CPU: build/probes/memory_kinds.py.
_ENVIRONMENT = {**testing.TEST_ENVIRONMENT, "PYTEST_PLUGINS": "memory_kinds"}


@dataclasses.dataclass(frozen=True)
class Request:
  """The options of a run: files of a checkout (none: as the patches say)."""
  checkout: pathlib.Path
  only: Sequence[str]
  limit: float  # seconds for one test
  names: Sequence[str] | None  # patches; None for the whole series
  each: bool  # every patch alone, with what it depends on
  write: bool  # to DOCUMENT
  share: int = 1  # one test in so many of each file
  first: int = 0  # which of so many


@dataclasses.dataclass(frozen=True)
class _Job:
  """One file on the wheel of some patches."""
  label: str
  series: Sequence[patches.Patch]
  path: pathlib.Path
  made: environments.Environments
  number: int  # of those that run this file: each takes another share


def compare_wheels(request: Request, chosen: Sequence[Base]) -> Verdict:
  """Runs upstream's tests on both wheels; one newly failing is an error."""
  broken = ran = passed = 0
  silent: list[str] = []
  for base in chosen:
    _known(request, base)
  for base in chosen:
    rows = _run_base(request, base)
    silent += [f"{file} on {base.version}" for _, file, counts in rows
               if not counts["passed"] + counts["skipped"]]
    totals = [sum(row[2][kind] for row in rows) for kind in verdicts.KINDS]
    text = _section(base, request, rows)
    report.say("\n" + text + f"\n\njax {base.mended}: {len(rows)} runs of "
               "files, " + ", ".join(
                   f"{n} {k}" for n, k in zip(totals, verdicts.KINDS)))
    if request.write and rows:
      tree.write(_file(request, base), text + "\n")
      pages.write_section(bases.ROOT / DOCUMENT, "upstream-tests",
                          _totals(text))
    broken, ran = broken + totals[-1], ran + sum(totals)
    passed += totals[0]
  if broken or not ran:
    return Verdict(
        f"{report.plural(broken, 'test')} of upstream's newly failing, of "
        f"{ran} that ran.", "look at NEWLY FAILING above; one file alone: "
        "--only FILE")
  words = f"{ran} outcomes of upstream's tests, none newly failing."
  if not silent:
    return Verdict(words)
  # Some files import what no wheel has; a checkout may be of another release.
  none = f"No test passed of {', '.join(silent)}, on pristine neither."
  if passed:
    return Verdict(f"{words} {none}")
  return Verdict(none, "see why: --verbose; does the checkout fit the release?")


def find_files(checkout: pathlib.Path,
               only: Sequence[str]) -> list[pathlib.Path]:
  """The test files that `only` names.

  Raises:
    MendError: there is no such file, or the checkout has no tests.
  """
  folder = checkout.absolute() / "tests"
  if not folder.is_dir():
    raise MendError(f"{checkout} has no tests/ folder.",
                    "name a source checkout of jax: --upstream=DIR")
  found = []
  for name in only:
    stem = pathlib.Path(name).name.removesuffix(".py")
    path = folder / f"{stem}.py"
    if not path.is_file():
      raise MendError(f"There is no {path}.", f"ls {folder}")
    found.append(path)
  return found


def present(checkout: pathlib.Path, names: Sequence[str]) -> list[str]:
  """The files named by a patch that the checkout has."""
  folder = checkout.absolute() / "tests"
  found = [n for n in names if (folder / n).is_file()]
  if len(found) < len(names) and folder.is_dir():
    report.say("not in this checkout: " + ", ".join(
        n for n in names if n not in found))
  return found


def areas_of(patch: patches.Patch, base: Base) -> list[str]:
  """Upstream's files for a patch: "x_test.py", or "x_test.py >=0.10"."""
  split = [item.partition(" ") for item in patch.upstream_tests]
  return [name for name, _, versions in split if base.within(versions)]


def _jobs(request: Request, base: Base) -> list[_Job]:
  """The files to run, and on which patches."""
  series, names = patches.load(), request.names
  if request.each:
    patches.require_known(series, names or ())
    mine = patches.for_base(series, base)
    groups = [(p.id, patches.with_needed(series, p.id), areas_of(p, base))
              for p in mine if not names or p.id in names]
  else:
    series = patches.select(series, names) if names else series
    mine = patches.for_base(series, base)
    every = {f for p in mine for f in areas_of(p, base)}
    label = ", ".join(p.id for p in mine) if request.names else _ALL
    groups = [(label, series, sorted(every))]
  # Each patch alone stands in the environment that its own tests made.
  lowest = interpreters.for_base(base, lowest=True) if request.each else None
  jobs: list[_Job] = []
  for label, selected, areas in groups:
    files = find_files(request.checkout, request.only or present(
        request.checkout, areas))
    if files:
      made = (environments.build(base, series=selected, python=lowest)
              if request.each else
              environments.build(base, series=selected, kind="upstream"))
      jobs += [_Job(label, selected, path, made,
                    sum(job.path == path for job in jobs)) for path in files]
  return jobs


def _run_base(request: Request,
              base: Base) -> list[tuple[str, str, dict[str, int]]]:
  """The patches, the file and the counts of each run."""
  todo = _jobs(request, base)

  def one(job: _Job) -> Outcomes:
    number = (job.number + request.first) % request.share
    share = f"{number}/{request.share}"
    began = time.monotonic()
    after = _run(job.made.mended, job.path, request.limit,
                 {"MEND_SHARE": share})
    report.say(f"{base.version}, {job.label}: {job.path.name}: {len(after)} "
               f"tests, {len(_failing(after))} to run on pristine too "
               f"({time.monotonic() - began:.0f} s)")
    return after

  def pristine(path: pathlib.Path) -> Outcomes:
    failing = {t for job, after in zip(todo, mended) if job.path == path
               for t in _failing(after)}
    python = next(job.made.pristine for job in todo if job.path == path)
    return _run(python, path, request.limit,
                only=sorted(failing)) if failing else {}

  with pools.pool() as pool:
    mended = list(pool.map(one, todo))
    # Once a file, for all patches: starting costs more than the tests.
    paths = list(dict.fromkeys(job.path for job in todo))
    before = dict(zip(paths, pool.map(pristine, paths)))
  return [(job.label, job.path.name,
           verdicts.compare(job.path.name, base, before[job.path], after,
                            job.series, f" with {job.label}"))
          for job, after in zip(todo, mended)]


def _run(python: pathlib.Path, path: pathlib.Path, limit: float,
         env: Mapping[str, str] = types.MappingProxyType({}),
         only: Sequence[str] | None = None) -> Outcomes:
  """Runs one file, of a checkout that has another jax beside its tests."""
  return pytest_run.run_file(
      python, path, limit=limit, only=only, options=("--import-mode=append",),
      env={**_ENVIRONMENT, "MEND_JAX": str(python.parents[1]), **env})


def _failing(outcomes: Outcomes) -> list[str]:
  return [t for t, o in outcomes.items() if o.status == pytest_run.FAILED]


def _start(request: Request, base: Base) -> str:
  """The beginning of the section of a run."""
  title = "each patch alone" if request.each else "together"
  words = "" if request.share == 1 else (
      f"One test in {request.share} of each file; a file's patches take "
      "different ones.\n\n")
  return f"## jax {base.version}, {title}\n\n{words}"


def _file(request: Request, base: Base) -> pathlib.Path:
  kind = "each" if request.each else "together"
  return bases.ROOT / _RUNS / f"{base.version}-{kind}.md"


def _known(request: Request, base: Base) -> list[tuple[str, ...]]:
  """The rows of an earlier run, of which a run in part replaces some.

  Raises:
    MendError: there is none of the same share, so that totals of the part
      would stand for those of the whole.
  """
  if not (request.write and (request.only or request.each and request.names)):
    return []
  file, start = _file(request, base), _start(request, base)
  text = file.read_text(encoding="utf-8") if file.is_file() else ""
  if not text.startswith(f"{start}|"):
    raise MendError(f"{DOCUMENT} has the totals of whole runs, and {file} has "
                    "no rows of one that this part belongs to.",
                    "leave --write away, or run all files and patches with it")
  return verdicts.rows_of(text)


def _section(base: Base, request: Request,
             rows: Sequence[tuple[str, str, dict[str, int]]]) -> str:
  cells = [(label, file, *(str(counts[k]) for k in verdicts.KINDS))
           for label, file, counts in rows]
  if old := _known(request, base):
    new = {row[:2] for row in cells}
    places = {p.id: i for i, p in enumerate(patches.load())}
    cells = sorted((*(row for row in old if row[:2] not in new), *cells),
                   key=lambda row: (places.get(row[0], 0), row[1]))
  return _start(request, base) + report.table(
      ("patches", "upstream's file", *verdicts.KINDS), cells)


def _totals(section: str) -> str:
  """The section with its rows added up to one, which has the day's date."""
  rows = verdicts.rows_of(section)
  sums = (sum(map(int, column)) for column in list(zip(*rows))[2:])
  return section.partition("|")[0] + report.table(
      ("as of", "runs of files", *verdicts.KINDS),
      [(datetime.date.today().isoformat(), str(len(rows)), *map(str, sums))])
