# SPDX-License-Identifier: Apache-2.0
"""Holds the mended wheel against other people's programs: their own tests.

Each library's tests run on the mended wheel, in one process as their authors
run them, and those that fail there run on the pristine wheel too: what is
reported is what the patches have broken for somebody else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
import functools
import pathlib
import sys
import tempfile
import time

from mend.editing import patches
from mend.ground import cache, pages, process, report
from mend.ground.errors import MendError
from mend.ground.report import Verdict
from mend.proof import environments, judging, pools, pytest_run, testing, venvs
from mend.proof.judging import Tally
from mend.releases import bases, source
from mend.releases.bases import Base
from mend.suites import verdicts
from mend.suites.verdicts import Outcomes

if sys.version_info >= (3, 11):
  import tomllib
else:
  import tomli as tomllib

DOCUMENT = "docs/proof/libraries.md"
PROGRAMS = "tests/libraries/programs_test.py"
_TABLE = bases.ROOT / "build" / "clients.toml"
_COLUMNS = ("library", "which tests", *verdicts.KINDS)
_ENVIRONMENT = {"JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "2"}


@dataclasses.dataclass(frozen=True)
class Request:
  """The options of a run: which libraries, how long, what to write."""
  names: Sequence[str]  # of libraries; none for all
  sources: pathlib.Path | None  # a folder with checkouts, by name
  limit: float  # seconds for one test
  write: bool  # to DOCUMENT
  share: int = 1  # one test in so many
  first: int = 0  # which of so many


@dataclasses.dataclass(frozen=True)
class Client:
  """A library at the version that a base is tried with."""
  name: str
  version: str
  tests: str  # the folder of its source that holds them
  inside: bool  # they are modules of the installed package, too
  installed: bool = False  # the installed package holds them itself
  environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
  options: Sequence[str] = ()  # of pytest


def compare_wheels(request: Request, chosen: Sequence[Base]) -> Verdict:
  """Runs each library's tests on both wheels; one newly failing is an error."""
  broken = ran = 0
  for base in chosen:
    rows = _run_base(request, base)
    totals = [sum(row[2][kind] for row in rows) for kind in verdicts.KINDS]
    cells = [(name, which, *(str(counts[k]) for k in verdicts.KINDS))
             for name, which, counts in rows]
    report.say("\n" + report.table(_COLUMNS, cells) + f"\n\njax {base.mended}: "
               f"{len(rows)} libraries, " + ", ".join(
                   f"{n} {k}" for n, k in zip(totals, verdicts.KINDS)))
    if request.write:
      _write(base, cells)
    broken, ran = broken + totals[-1], ran + sum(totals)
  if broken or not ran:
    return Verdict(f"{report.plural(broken, 'test')} of other libraries newly "
                   f"failing, of {ran}.", "look at NEWLY FAILING above")
  return Verdict(f"{ran} outcomes of other libraries' tests, none newly "
                 "failing.")


def run_programs(chosen: Sequence[Base]) -> Tally:
  """A program of each library on the newest base's mended wheel, if chosen."""
  base = bases.all_bases()[-1]
  if base not in chosen:
    return Tally()
  began = time.monotonic()
  made = environments.build(base, kind=f"clients-{base.version}")
  tally = judging.judge_mended(PROGRAMS, pytest_run.run_file(
      made.mended, bases.ROOT / PROGRAMS, limit=testing.TEST_LIMIT,
      env=testing.JOB_ENVIRONMENT, options=testing.OPTIONS), ())
  report.say(f"  {PROGRAMS} on mended {base.version}: {tally} "
             f"({time.monotonic() - began:.0f} s)")
  return tally


def of_base(base: Base, names: Sequence[str] = ()) -> list[Client]:
  """The libraries that the base is tried with, in the table's order.

  Raises:
    MendError: a name isn't one of them.
  """
  table = tomllib.loads(_TABLE.read_text(encoding="utf-8"))
  if not (venvs.REQUIREMENTS / f"clients-{base.version}.txt").is_file():
    raise MendError(f"No libraries are pinned for jax {base.version}.",
                    "choose another base: --base=V, or write "
                    f"build/requirements/clients-{base.version}.txt")
  unknown = sorted(set(names) - set(table))
  if unknown:
    raise MendError(f"--clients doesn't know {', '.join(unknown)}.",
                    f"choose from {', '.join(table)}")
  pins = venvs.pins(f"clients-{base.version}")
  return [Client(name, pins[name], entry["tests"], entry.get("inside", False),
                 entry.get("installed", False), entry.get("environment", {}),
                 entry.get("options", ()))
          for name, entry in table.items()
          if name in pins and (not names or name in names)]


def tests_of(client: Client, sources: pathlib.Path | None) -> pathlib.Path:
  """The folder with a library's tests: a checkout's, or of its sdist.

  Raises:
    MendError: neither has any.
  """
  own = sources.absolute() / client.name if sources else None
  root = own if own and own.is_dir() else _unpacked(client)
  folder = root / client.tests
  if not any(path for pattern in ("test_*.py", "*_test.py")
             for path in folder.rglob(pattern)):
    raise MendError(
        f"{root} has no tests in {client.tests}/.",
        f"check {client.name} {client.version} out to DIR/{client.name} and "
        "pass --sources=DIR")
  return folder


def _installed(client: Client, python: pathlib.Path) -> pathlib.Path:
  """The folder of a library's tests in the environment of `python`."""
  package, *folders = client.tests.split("/")
  found = process.run(
      [str(python), "-c", "import importlib.util as u; "
       f"print(u.find_spec({package!r}).submodule_search_locations[0])"],
      what=f"Looking for {package} in {python.parents[1]}",
      next_step="remove the folder, and run this again")
  return pathlib.Path(found.strip(), *folders)


def _unpacked(client: Client) -> pathlib.Path:
  """The source distribution of a library, unpacked once."""
  target = cache.folder("clients") / f"{client.name}-{client.version}"
  with cache.lock(f"client-{client.name}"):
    if not target.is_dir():
      with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        process.run(
            [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps",
             "--no-binary", client.name, "--ignore-requires-python",
             "--dest", scratch,
             f"{client.name}=={client.version}"],
            what=f"Downloading the source of {client.name} {client.version}",
            next_step="check the network, or pass a checkout: --sources=DIR")
        (archive,) = pathlib.Path(scratch).iterdir()
        source.unpack(archive, target)
  return target


def _run_base(request: Request,
              base: Base) -> list[tuple[str, str, dict[str, int]]]:
  # A library without tests is told of now, and not after hours.
  todo = [(client, None if client.installed
           else tests_of(client, request.sources))
          for client in of_base(base, request.names)]
  series = patches.load()
  made = environments.build(base, series=series, kind=f"clients-{base.version}")
  share = f"{request.first}/{request.share}"

  def one(client: Client, source_folder: pathlib.Path | None
          ) -> tuple[str, str, dict[str, int]]:
    began = time.monotonic()
    folder = source_folder or _installed(client, made.mended)
    run = functools.partial(run_tests, client, folder, request.limit)
    after = run(made.mended, {"MEND_SHARE": share})
    failing = sorted(t for t, o in after.items()
                     if o.status == pytest_run.FAILED)
    report.say(f"{base.version}, {client.name} {client.version}: {len(after)} "
               f"tests, {len(failing)} to run on pristine too "
               f"({time.monotonic() - began:.0f} s)")
    before = run(made.pristine, {}, failing) if failing else {}
    if any(before[t].status != pytest_run.FAILED
           for t in failing if t in before):
      # It may fail only after another test, which leaves a setting behind.
      before |= run(made.pristine, {"MEND_SHARE": share})
    counts = verdicts.compare(client.name, base, before, after)
    which = f"{client.version}, all" if request.share == 1 else (
        f"{client.version}, one in {request.share}")
    return client.name, which, counts

  with pools.pool() as pool:
    return list(pool.map(lambda pair: one(*pair), todo))


def run_tests(client: Client, folder: pathlib.Path, limit: float,
              python: pathlib.Path, env: Mapping[str, str],
              only: Sequence[str] | None = None) -> Outcomes:
  """Runs a library's tests; returns their outcomes.

  By default pytest imports a module from beside its file: those of the package
  itself, once installed, are refused as a second copy.
  """
  return pytest_run.run_file(
      python, folder, limit=limit, only=only, root=folder.parent,
      env={**_ENVIRONMENT, **client.environment,
           "MEND_JAX": str(python.parents[1]), **env},
      options=[*["--import-mode=importlib"] * client.inside, *client.options])


def _write(base: Base, cells: Sequence[tuple[str, ...]]) -> None:
  """Puts rows into the page; those of other libraries stay."""
  heading = f"## jax {base.version}"
  page = (bases.ROOT / DOCUMENT).read_text(encoding="utf-8")
  rows = {row[0]: row for row in verdicts.rows_of(pages.section(page, heading))}
  rows.update((row[0], row) for row in cells)
  order = [client.name for client in of_base(base)]
  text = report.table(_COLUMNS, [rows[name] for name in order if name in rows])
  pages.write_section(bases.ROOT / DOCUMENT, "own-tests",
                      f"{heading}\n\n{text}")
