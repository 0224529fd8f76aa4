# SPDX-License-Identifier: Apache-2.0
"""`build.py test`: green on mended, red on pristine, for the stated reason."""

from __future__ import annotations

import collections
from collections.abc import Callable, Mapping, Sequence
import concurrent.futures
import dataclasses
import functools
import pathlib
import time

from mend.editing import patches
from mend.ground import report
from mend.ground.arguments import did_you_mean
from mend.ground.errors import MendError
from mend.ground.report import Verdict
from mend.proof import (
    alone, changes, fork_servers, jobs, judging, pools, pristine_runs,
    pytest_run, reproduce, shares, venvs)
from mend.proof.jobs import Job
from mend.proof.judging import Tally
from mend.proof.shares import Extent
from mend.releases import bases
from mend.releases.bases import Base

TEST_LIMIT = 300.0  # seconds for one of our tests
TEST_ENVIRONMENT = {**reproduce.JAX_ENVIRONMENT, "TF_CPP_MIN_LOG_LEVEL": "2"}
# Their time goes into compiling; how fast it runs afterwards is no matter.
# Plugins that libraries bring (hypothesis) cost a second a file, as does what
# pytest makes of `assert`, which these tests don't use.
JOB_ENVIRONMENT = {**TEST_ENVIRONMENT, "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
                   "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
# Small modules take a twentieth longer to compile in parts; older compilers
# refuse some of what isn't.
_IN_PARTS, _IN_ONE = "<0.8", " --xla_cpu_parallel_codegen_split_count=1"
# On these releases it takes a quarter more to compile with the newer emitters.
# Tests of the Array API look at what the compiler makes of their values.
_EMITTERS, _OF_VALUES = ">=0.8,<0.11", "tests/array_api/"
_OLDER_EMITTERS = " --xla_cpu_use_fusion_emitters=false"
# jax._src.test_util, which is preloaded, keeps the standard output that it
# finds: pytest must not put another one in its place for a test.
OPTIONS = ("--assert=plain", "--capture=no", "-p", "compiled_once",
           "-p", "checked_once")
_BRIEF_OPTIONS = (*OPTIONS, "-p", "one_context")  # of a job with one case
# What the test files import before they start a backend, and pytest's plugins.
PRELOAD = ("jax", "absl.testing.absltest", "absl.testing.parameterized",
           "numpy", "pytest", "_pytest.config:get_config",
           "jax._src.test_util")
_TOOL_TESTS = "tests/build"
_MAINTENANCE = "maintenance"  # those of how tests run, and of upkeep


@dataclasses.dataclass(frozen=True)
class Request:
  """The options of a run of the project's tests.

  Attributes:
    chosen: the bases, oldest first.
    names: test files and patches; none for all.
    python_version: such as "3.12"; None for the oldest that fits.
    only: on wheels that have these patches and no others.
    checks: what to count beside the tests where all of them are run.
    live: on a stock jax that jax-mend mends, instead of on both wheels.
    extent: how many of its tests a base has where all are run.
    share: (K, N), the K-th of N parts of the run.
    since: the revision that a change begins at, whose patches' files run whole
      on each line; "" for none.
    only_list: whether to say what would run, and run nothing.
  """
  chosen: Sequence[Base]
  names: Sequence[str] = ()
  python_version: str | None = None
  only: Sequence[str] | None = None
  checks: Sequence[Callable[[], Tally]] = ()
  live: bool = False
  extent: Extent = Extent.CHANGE
  share: tuple[int, int] = (1, 1)
  since: str = ""
  only_list: bool = False

  @property
  def is_plain(self) -> bool:
    """The README's command, which runs what a newcomer waits for."""
    return self.extent is Extent.PLAIN and not self.names


def run_tests(request: Request) -> Verdict:
  """Runs everything, or the files and patches that are named."""
  series = patches.load()
  _refuse_unknown(series, request.names)
  if request.only:
    series = patches.select(series, request.only)
  todo = jobs.longest_first(
      shares.share_of(_jobs(series, request), *request.share))
  if request.only_list:
    return jobs.listed(todo, _tools_of(request))
  total, others = Tally(), _others(request)
  with pools.pool() as pool:
    made, done = pools.submit_in_turn(pool, jobs.makers(todo), others)
    for environment in made:
      environment.result()
    rows = run_jobs(pool, todo, total)
    for future in done:
      total.add(future.result())
  return finish(rows, total)


def _others(request: Request) -> list[Callable[[], Tally]]:
  """The checks and the tool's tests, which run beside those of the patches.

  Of a run in shares the first has the checks, and each some of the files. The
  plain command leaves out the tests of how tests run, and of upkeep.
  """
  if request.only or request.live:
    return []
  number, _ = request.share
  checks = () if request.names or number > 1 else request.checks
  env = {"MEND_TEST_BASE": request.chosen[-1].version}
  if request.extent is Extent.WHOLE or request.names:
    env["MEND_TEST_WHOLE"] = "1"
  return [*checks, *(functools.partial(_tool_test, f, env)
                     for f in _tools_of(request))]


def _tools_of(request: Request) -> list[pathlib.Path]:
  """The files of the tool's tests in a run, or in its share."""
  if request.only or request.live:
    return []
  number, of = request.share
  return _tool_tests(request.names, request.is_plain)[number - 1::of]


def _jobs(series: Sequence[patches.Patch], request: Request) -> list[Job]:
  """The jobs of a run, none of which builds anything yet.

  A run of everything but the plain one has regression tests of the newest
  release with jax-mend too, some of each twin, and on the newest of each line
  some of each family alone.
  """
  chosen, version = request.chosen, request.python_version
  if request.live or request.names or request.only:
    make = jobs.live_for_base if request.live else jobs.for_base
    return [job for base in chosen
            for job in make(series, base, request.names, version)]
  touched = changes.touched(series, changes.since(request.since)
                            ) if request.since else frozenset()
  run = shares.Run(request.extent, chosen, version, touched)
  found = shares.jobs_of(run, series)
  if request.is_plain:
    return found
  is_whole = request.extent is Extent.WHOLE
  if (newest := bases.all_bases()[-1]) in chosen:
    found += [job if is_whole else shares.one_case(job, only_red=True)
              for job in jobs.reds_live(series, newest, version)]
  if len(chosen) > 1:
    found += [job for twin in bases.twins(chosen)
              for job in shares.of_twin(series, twin, version)]
    found += [job for base in alone.newest_of_lines(chosen)
              for job in alone.jobs_of(series, base, version, is_whole)]
  return found


def run_each(chosen: Sequence[Base], names: Sequence[str],
             python_version: str | None) -> Verdict:
  """Runs each patch's tests on a wheel of it and its dependencies alone."""
  series = patches.load()
  patches.require_known(series, names)
  todo, total = [], Tally()
  for base in chosen:
    for patch in patches.for_base(series, base):
      if not names or patch.id in names:
        needed = patches.with_needed(series, patch.id)
        todo += [dataclasses.replace(job, alone=patch.id)
                 for job in jobs.for_base(needed, base, [patch.id],
                                          python_version)
                 if job.side == "mended"]
  with pools.pool() as pool:
    return finish(run_jobs(pool, todo, total), total)


def finish(rows: Sequence[Sequence[str]], total: Tally) -> Verdict:
  """Prints the table, the failures and the counts, and says what they mean."""
  if rows:
    report.say()
    report.show(("base", "side", "files", "passed", "red as stated", "skipped",
                 "failed"), rows)
  for failure in total.failures:
    report.say(f"\nFAILED {failure}")
  report.say()
  failed = len(total.failures)
  report.say(f"{total.passed} passed, {failed} failed, "
             f"{total.skipped} skipped")
  words = f"{total.passed} passed, {total.red} red as stated"
  if total.skipped:
    words += f", {total.skipped} skipped"
  if failed:
    return Verdict(f"{failed} failed; {words}.",
                   "see above; one file alone: python3 build/build.py test "
                   f"{total.failures[0].split(' ')[0].rstrip(':')}")
  if not total.passed:
    return Verdict("no test ran.", "python3 build/build.py test")
  return Verdict(f"{words}.")


def _refuse_unknown(series: Sequence[patches.Patch],
                    names: Sequence[str]) -> None:
  known = {p.id for p in series}
  for name in names:
    if name not in known and not (bases.ROOT / name).exists():
      near = did_you_mean(name, [*known, *(
          str(f.relative_to(bases.ROOT)) for f in (bases.ROOT / "tests").rglob(
              "*_test.py"))])
      raise MendError(f"{name} is no test file and no patch{near or '.'}",
                      "ls tests/*; python3 build/build.py status")


def _tool_tests(names: Sequence[str], is_plain: bool) -> list[pathlib.Path]:
  files = sorted((bases.ROOT / _TOOL_TESTS).rglob("*_test.py"))
  if names:
    given = {(bases.ROOT / n).resolve() for n in names}
    return [f for f in files if not given.isdisjoint([f, *f.parents])]
  return [f for f in files if not (is_plain and f.parent.name == _MAINTENANCE)]


def _tool_test(file: pathlib.Path, env: Mapping[str, str]) -> Tally:
  """Runs one file of the tool's tests, which may need settings."""
  label = str(file.relative_to(bases.ROOT))
  began = time.monotonic()
  tally = judging.judge_mended(label, pytest_run.run_file(
      venvs.for_checks(), file, limit=TEST_LIMIT, env=env), ())
  report.say(f"  {label}: {tally} ({time.monotonic() - began:.0f} s)")
  return tally


def run_jobs(pool: concurrent.futures.Executor, todo: Sequence[Job],
             total: Tally) -> list[list[str]]:
  """Runs jobs, adds to `total`; returns a row for each base and side."""
  sums: dict[tuple[str, str], Tally] = {}
  counts: collections.Counter[tuple[str, str]] = collections.Counter()
  order = [base.version for base in bases.releases()]
  with (fork_servers.Sharing(PRELOAD, JOB_ENVIRONMENT) as servers,
        report.Progress(len(todo)) as progress):
    futures = [pool.submit(_run_job, servers, job, progress)
               for job in todo]
    for future in concurrent.futures.as_completed(futures):
      job, tally, took = future.result()
      progress.end(job.label, f"{job.label}: {tally} ({took:.0f} s)",
                   not tally.failures)
      total.add(tally)
      key = job.base.version, job.side + (
          f", Python {job.newer}" if job.newer else "")
      sums.setdefault(key, Tally()).add(tally)
      counts[key] += 1
  return [[*key, *(str(n) for n in (
      counts[key], row.passed, row.red, row.skipped, len(row.failures)))]
          for key, row in sorted(sums.items(), key=lambda item: (
              order.index(item[0][0]), item[0][1]))]


def _flags(job: Job) -> dict[str, str]:
  """The compiler's flags for a job, which it reads when a backend starts."""
  flags = JOB_ENVIRONMENT["XLA_FLAGS"]
  if not job.base.within(_IN_PARTS):
    flags += _IN_ONE
  if job.base.within(_EMITTERS) and not job.file.startswith(_OF_VALUES):
    flags += _OLDER_EMITTERS
  return {"XLA_FLAGS": flags}


def _run_job(servers: fork_servers.Sharing, job: Job,
             progress: report.Progress) -> tuple[Job, Tally, float]:
  began = time.monotonic()
  options = OPTIONS if job.case is None else _BRIEF_OPTIONS
  progress.begin(job.label)
  python, settings = job.environment.python, jobs.settings(job)
  # What jax reads as it is imported, and not what is this job's alone.
  imported = {k: v for k, v in settings.items() if not k.startswith("MEND_")}
  env = {**JOB_ENVIRONMENT, **_flags(job), **settings}
  memory = (pristine_runs.Memory(python, job.file, env, options)
            if job.side == "pristine" else None)
  before = memory.read() if memory else None
  outcomes = before or pytest_run.run_file(
      python, bases.ROOT / job.file, limit=TEST_LIMIT, env=env,
      options=options, server=servers.of(python, job.base, imported))
  if memory is None:
    tally = judging.judge_mended(job.label, outcomes, job.reds,
                                 job.extent != jobs.WHOLE)
  else:
    tally = judging.judge_pristine(job.label, outcomes, job.reds)
    if not before and not tally.failures:
      memory.keep(outcomes)
  return job, tally, time.monotonic() - began
