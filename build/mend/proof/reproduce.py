# SPDX-License-Identifier: Apache-2.0
"""Runs the reproductions of the reports in any Python that has a jax."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
import concurrent.futures
import dataclasses
import json
import os
import pathlib
import subprocess
import tempfile

from mend.editing import patches
from mend.editing.reproductions import Reproduction
from mend.ground import cache, report
from mend.ground.errors import MendError
from mend.proof import fork_servers
from mend.releases import bases, interpreters
from mend.releases.bases import Base
from packaging.specifiers import SpecifierSet
from packaging.version import Version

PASS, FAIL, NOT_APPLICABLE = "PASS", "FAIL", "n/a"
TIME_LIMIT = 120  # seconds for one reproduction, import of jax included
_RUNNER = bases.ROOT / "build" / "probes" / "run_reproduction.py"
_MARK = "MEND-RESULT "
_NO_END, _DIED = "no end within", "the process died"
# A defect of the environment's own must not be hidden or made by the caller's
# settings; eight devices are what the reproductions are written for.
JAX_ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
}


@dataclasses.dataclass(frozen=True)
class Environment:
  """The versions of jax and jaxlib that a Python has."""
  jax: str
  jaxlib: str

  def __str__(self) -> str:
    release, _, ours = self.jax.partition("+mend.")
    words = f" (Mend, on jax {release})" if ours else ""
    return f"jax {self.jax}{words}, jaxlib {self.jaxlib}"


@dataclasses.dataclass(frozen=True)
class Outcome:
  """PASS, FAIL or n/a, and what was seen."""
  status: str
  seen: str


def _environment(
    settings: Mapping[str, str] | None = None) -> dict[str, str]:
  """The caller's environment variables, but for those that change jax."""
  kept = {k: v for k, v in os.environ.items()
          if not k.startswith("JAX_") or k.startswith("JAX_MEND")}
  return {**kept, **JAX_ENVIRONMENT, **(settings or {})}


def absolute_path(python: str) -> str:
  """The absolute path of a Python that is named by a relative one."""
  return os.path.abspath(python) if os.path.dirname(python) else python


def run_for(items: Sequence[Reproduction], python: str,
            what: Environment) -> list[Outcome]:
  """`run_all`; what is for other releases than this jax is not run."""
  release = Version(Version(what.jax).public)
  mine = [i for i in items
          if SpecifierSet(i.bases).contains(release, prereleases=True)]
  seen = iter(run_all(mine, python, str(what)))
  return [next(seen) if i in mine else Outcome(
      NOT_APPLICABLE, f"of jax {i.bases} only") for i in items]


def run_one(item: Reproduction, python: str | pathlib.Path,
            settings: Mapping[str, str] | None = None,
            server: fork_servers.Server | None = None) -> Outcome:
  """Runs one reproduction in a process of its own, forked or new."""
  task = json.dumps({"source": item.source, "function": item.function})
  program = _RUNNER.read_text(encoding="utf-8")
  with cache.scratch() as scratch:
    printed = scratch / "printed"
    try:
      child = server.start(
          program=program, input=task, output=printed,
          cwd=scratch, env={}) if server else _process(
              [str(python), "-c", program], task, printed, settings)
      child.wait(TIME_LIMIT)
    except subprocess.TimeoutExpired:
      fork_servers.kill(child)
      return Outcome(FAIL, f"{_NO_END} {TIME_LIMIT} s (a deadlock?)")
    except OSError as e:
      raise MendError(f"{python} can't be run: {e}",
                      "name a Python that has jax: --python=PATH") from e
    said = printed.read_text(encoding="utf-8", errors="replace").splitlines()
  marked = [line for line in said if line.startswith(_MARK)]
  if marked:
    return Outcome(*json.loads(marked[-1].removeprefix(_MARK)))
  tail = ([line for line in said if line.strip()] or ["nothing printed"])[-1]
  return Outcome(FAIL, f"{_DIED} (exit {child.returncode}): {tail}")


def _process(command: list[str], text: str,
             printed: pathlib.Path,
             settings: Mapping[str, str] | None) -> fork_servers.Process:
  """Starts a process that reads `text`, in the folder of its output file."""
  with tempfile.TemporaryFile("w+") as given, open(printed, "wb") as out:
    given.write(text)
    given.seek(0)
    return subprocess.Popen(
        command, stdin=given, stdout=out, stderr=subprocess.STDOUT,
        cwd=printed.parent, env=_environment(settings),
        start_new_session=True)


def run_all(items: Sequence[Reproduction], python: str | pathlib.Path,
            label: str, settings: Mapping[str, str] | None = None,
            server: fork_servers.Server | None = None) -> list[Outcome]:
  """Runs them side by side; the order of results is that of `items`.

  Args:
    items: the reproductions.
    python: what to run them with.
    label: what to call it.
    settings: environment variables beside those of all of them.
    server: to fork from; a Python that isn't ours starts a process for each.
  """
  with report.step(f"running {len(items)} reproductions on {label}"):
    workers = max(1, min(4, os.cpu_count() or 1))
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
      return list(pool.map(
          lambda item: run_one(item, python, settings, server), items))


def servers() -> fork_servers.Sharing:
  """Fork servers for Pythons of ours; their imports start no backend."""
  return fork_servers.Sharing(("jax", "jax.numpy", "numpy"), JAX_ENVIRONMENT)


def remembered(items: Sequence[Reproduction], python: pathlib.Path,
               label: str, servers: fork_servers.Sharing, base: Base,
               settings: Mapping[str, str] | None = None) -> list[Outcome]:
  """`run_all`, once for each environment: its path is keyed by its content."""
  key = cache.key(str(python), _RUNNER.read_text(encoding="utf-8"),
                  json.dumps({**JAX_ENVIRONMENT, **(settings or {})}),
                  *(i.source + i.function for i in items))
  kept = cache.folder("proofs") / f"{key}.json"
  if kept.is_file():
    return [Outcome(*o) for o in json.loads(kept.read_text(encoding="utf-8"))]
  server = servers.of(python, base, settings)
  outcomes = run_all(items, python, label, settings, server)
  if not any(o.seen.startswith((_NO_END, _DIED)) for o in outcomes):
    with cache.whole(kept) as made:
      made.write_text(json.dumps([[o.status, o.seen] for o in outcomes]),
                      encoding="utf-8")
  return outcomes


def describe(python: str) -> Environment:
  """The jax that `python` has.

  Raises:
    MendError: it has none, or does not run.
  """
  ask = ("import importlib.metadata as m, jax; "
         "hasattr(jax, '__version_info__') or exit('not JAX: ' + str("
         "getattr(jax, '__file__', None) or [*jax.__path__][0])); "
         "print(m.version('jax'), m.version('jaxlib'))")
  with cache.scratch() as scratch:
    try:
      done = subprocess.run(
          [python, "-c", ask], capture_output=True, text=True, cwd=scratch,
          env=_environment(), check=False)
    except OSError as e:
      raise MendError(f"{python} can't be run: {e}",
                      "name a Python that has jax: --python=PATH") from e
  if done.returncode:
    tail = (done.stderr.strip().splitlines() or ["?"])[-1]
    if tail.startswith("not JAX: "):
      found = tail.removeprefix("not JAX: ")
      raise MendError(f"`import jax` in {python} gives {found}, which is not "
                      "JAX.", f"rename {found}, or take its folder off "
                      "PYTHONPATH, then run the same command again")
    running = interpreters.version_of(python)
    fitting = [b.version for b in bases.releases()
               if b.supports(running or "0")]
    wanted = f"jax[cpu]=={fitting[-1]}" if fitting else "jax[cpu]"
    raise MendError(f"{python} has no jax that can be imported: {tail}",
                    f"{python} -m pip install '{wanted}', or name another "
                    "Python: --python=PATH")
  return Environment(*done.stdout.split()[-2:])


def next_step(python: str, what: Environment) -> str:
  """A command that does something about the defects of a Python's jax."""
  release, _, ours = what.jax.partition("+mend.")
  if ours:
    return (f"this jax is mended, by Mend {ours}: build it anew, "
            f"python3 build/build.py build --base={release}")
  live = f"{python} -m pip install ./live"
  if release in [b.version for b in bases.releases()]:
    return (f"{live}, and import jax_mend before jax; or a wheel in its "
            "place: README.md")
  near = bases.nearest(release, interpreters.version_of(python)).version
  return (f"{python} -m pip install 'jax=={near}' (jax {what.jax} is none of "
          f"the releases that are mended; this is the nearest), then {live}")


def proof_rows(items: Sequence[Reproduction], before: Sequence[Outcome],
               after: Sequence[Outcome]) -> list[list[str]]:
  """The table that ends a build."""
  return [[i.report, i.line, _cell(b), _cell(a)]
          for i, b, a in zip(items, before, after)]


def by_family(items: Sequence[Reproduction],
              outcomes: Sequence[Outcome]) -> list[list[str]]:
  """(family, how many of its programs fail, how many apply) of each."""
  counts: dict[str, list[int]] = {}
  for item, outcome in zip(items, outcomes):
    row = counts.setdefault(item.patch.split("/")[0], [0, 0])
    row[0] += outcome.status == FAIL
    row[1] += outcome.status != NOT_APPLICABLE
  return [[family, *(str(n) for n in row)] for family, row in counts.items()]


def _cell(outcome: Outcome) -> str:
  if outcome.status == FAIL:
    return "FAIL: " + report.shorten(outcome.seen, 48)
  return outcome.status


def only_for(items: Sequence[Reproduction], series: Iterable[patches.Patch],
             base: Base) -> list[Reproduction]:
  mine = {p.id for p in patches.for_base(series, base)}
  return [i for i in items if i.patch in mine]
