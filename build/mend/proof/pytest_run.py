# SPDX-License-Identifier: Apache-2.0
"""Runs one test file in a process of its own, past crashes and hangs.

Each outcome is written down as it happens (build/probes/pytest_outcomes.py),
so a test that kills its process, or never ends, costs only itself: the run is
taken up again after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import concurrent.futures
import contextlib
import dataclasses
import json
import os
import pathlib
import subprocess
import time

from mend.ground import cache, process, report
from mend.proof import fork_servers
from mend.releases import bases

_PROBES = bases.ROOT / "build" / "probes"
_TESTS = bases.ROOT / "tests"
_START_LIMIT = 300.0  # seconds to import and collect
_POLL = 0.1
# What gets less processor time between two looks at it, in seconds, waits for
# something else than a core.
_LOOK, _IDLE = 60., .5
PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
LEFT = "left out"  # by a run of one case of each test
COLLECTING = "(collecting)"


@dataclasses.dataclass(frozen=True)
class Outcome:
  """The status of a test, its failure's text, and if its process died.

  Its `case` is its name and its parameters, as build/probes/pytest_outcomes.py
  writes them; "" of what isn't a test.
  """
  status: str
  text: str = ""
  died: bool = False
  case: str = dataclasses.field(default="", compare=False)


@dataclasses.dataclass
class _Log:
  """The events that the plugin has written so far."""
  outcomes: dict[str, Outcome] = dataclasses.field(default_factory=dict)
  running: str = ""
  case: str = ""  # of the test that runs

  def read(self, path: pathlib.Path) -> int:
    self.running = ""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    lines = text.splitlines()
    for line in lines:
      try:
        record = json.loads(line)
      except ValueError:  # a line that a killed process left half-written
        continue
      if record["event"] == "start":
        self.running, self.case = record["id"], record["case"]
      elif record["event"] == "left":
        self.outcomes[record["id"]] = Outcome(LEFT, case=record["case"])
      else:
        self.outcomes[record["id"]] = Outcome(
            record["outcome"], record["text"],
            case=self.case if self.running else "")
        self.running = ""
    return len(lines)


def run_file(python: str | pathlib.Path, path: pathlib.Path, *,
             limit: float, env: Mapping[str, str],
             only: Sequence[str] | None = None,
             root: pathlib.Path | None = None, options: Sequence[str] = (),
             server: fork_servers.Server | None = None,
             first: bool = False) -> dict[str, Outcome]:
  """Runs the tests of a file, or of a folder.

  Args:
    python: an interpreter with pytest and what the tests need.
    path: the test file, or the folder.
    limit: seconds that one test may take.
    env: additional environment variables.
    only: the tests to run, by "Class.test"; all if None.
    root: with a folder: where the files' names begin.
    options: more options of pytest, or of the file's conftest.
    server: of the same Python, to fork from; a new process if None.
    first: end with the first failure.

  Returns:
    Each test's outcome, by "Class.test", or "file Class.test" in a folder.
  """
  log = _Log()
  with cache.scratch() as folder:
    if only is not None:
      (chosen := folder / "only").write_text("\n".join(only), "utf-8")
      env = {**env, "MEND_ONLY": str(chosen)}
    if root is not None:
      env = {**env, "MEND_ROOT": str(root)}
    while True:
      before = len(log.outcomes)
      why = _attempt(python, path, folder, log, limit, env,
                     [*options, *["-x"] * first], server)
      if not log.running:
        if why:
          log.outcomes[COLLECTING] = Outcome(FAILED, why, died=True)
        return log.outcomes
      log.outcomes[log.running] = Outcome(FAILED, why or "died", True, log.case)
      if first or len(log.outcomes) == before:
        return log.outcomes


def _attempt(python: str | pathlib.Path, path: pathlib.Path,
             folder: pathlib.Path, log: _Log, limit: float,
             env: Mapping[str, str], options: Sequence[str],
             server: fork_servers.Server | None) -> str:
  """Runs pytest in one process; returns why it died or hung, or ""."""
  done, events, output = (folder / n for n in ("done", "events", "output"))
  done.write_text("\n".join(log.outcomes), encoding="utf-8")
  events.unlink(missing_ok=True)
  arguments = _arguments(path, env.get("MEND_ROOT", str(folder)), options)
  # Ours import what they share by the name of their family's folder.
  found = [str(_PROBES), *([str(_TESTS)] if _TESTS in path.parents else [])]
  extra = {"PYTHONPATH": os.pathsep.join(found),
           "MEND_OUTCOMES": str(events),
           "MEND_DONE": str(done), **env}
  # A folder with its own scratch space: tests of upstream write into the cwd.
  with open(output, "w", encoding="utf-8") as out:
    child: fork_servers.Process = server.start(
        pytest=arguments, path=extra["PYTHONPATH"].split(os.pathsep),
        cwd=folder, env=extra, output=output) if server else subprocess.Popen(
            [str(python), "-m", "pytest", *arguments], cwd=folder,
            env=process.environment(extra), stdout=out,
            stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
            start_new_session=True)
    hung = watch(child, events, limit)
  log.read(events)
  if report.verbose:
    report.say(output.read_text(encoding="utf-8", errors="replace").rstrip())
  if hung:
    return hung
  if child.returncode in (0, 1, 5) and not log.running:
    return ""
  tail = "\n".join(output.read_text(encoding="utf-8", errors="replace")
                   .splitlines()[-30:])
  return f"the process died (exit {child.returncode}):\n{tail}"


def _arguments(path: pathlib.Path, root: str,
               options: Sequence[str]) -> list[str]:
  """Arguments of pytest for a file, or a folder with names from `root` on."""
  # Else pytest looks through each folder from the root of the disk on.
  near = [f"--confcutdir={_TESTS}"] if _TESTS in path.parents else []
  return ["-q", "-p", "pytest_outcomes", "-p", "no:cacheprovider",
          "-c", os.devnull, "--rootdir", root, "-o", "addopts=",
          "--continue-on-collection-errors",
          "--tb=native",  # pytest's own take up to a second each of jax's
          *near, *options, str(path)]


def watch(child: fork_servers.Process, events: pathlib.Path,
          limit: float) -> str:
  """Waits for the process; kills it, and says so, if a test takes too long.

  What waits for a core that others use is no deadlock: as long as it gets some
  processor time, this is what counts.

  Args:
    child: the process.
    events: what grows where a test begins or ends.
    limit: seconds.

  Raises:
    CancelledError: the run is stopped; the process is killed.
  """
  size, since, more = -1, time.monotonic(), 0.
  while child.poll() is None:
    with contextlib.suppress(subprocess.TimeoutExpired):
      child.wait(_POLL)
    if fork_servers.stopping.is_set():
      fork_servers.kill(child)
      raise concurrent.futures.CancelledError
    now = events.stat().st_size if events.exists() else 0
    if now != size:
      size, since, more = now, time.monotonic(), 0.
      began = seen = fork_servers.processor_time(child.pid)
    allowed = limit if size else max(limit, _START_LIMIT)
    if time.monotonic() - since <= allowed + more:
      continue
    spent = fork_servers.processor_time(child.pid)
    is_ending = spent < seen
    if is_ending or spent - seen > _IDLE and spent - began < allowed:
      seen, more = spent, more + min(_LOOK, allowed)
      continue
    fork_servers.kill(child)
    return f"no end within {allowed:.0f} s (a deadlock?)"
  return ""
