# SPDX-License-Identifier: Apache-2.0
"""`build.py fuzz`: random programs in shard_map, against an emulation.

What a program is and what it is compared with, tests/varying/fuzz_test.py says.
Here they are run by the hundred, in forked processes of a few dozen each, and
what became of each is kept: a run that is stopped goes on where it was, as long
as neither the wheel nor the programs change. A program that kills its process,
or doesn't end, is run once more by itself: eight devices on few cores that
others use too can starve. If it dies again, it is run with the check of
shard_map off: if it dies so too, it is a crash of jaxlib's alone. A program
that fails is run on the pristine wheel as well: one that is right there is
worse than a fault that the release has by itself, and is counted once more.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence
import concurrent.futures
import dataclasses
import json
import pathlib
import queue
import sys
import threading
import time
from typing import Any

from mend.ground import cache, report
from mend.ground.errors import MendError
from mend.ground.report import Verdict
from mend.proof import environments, fork_servers, pytest_run, reproduce
from mend.releases import bases, interpreters
from mend.releases.bases import Base
from mend.suites.fuzz_summary import FAULTS, HEADER, JAXLIB, ORACLE, WORSE, row

_PROBE = bases.ROOT / "build" / "probes" / "fuzz_programs.py"
_TESTS = bases.ROOT / "tests"
_PRELOAD = ("jax", "numpy", "jax.numpy")
# Programs of one process: what they compile stays in its memory, and its first
# twenty take 7 s longer than the next, which find the small ones compiled.
_CHUNK = 100
# Seconds for one program, made smaller included; of processor time, if it gets
# any: on cores that others use, eight devices wait long.
_LIMIT = 400.0
_SHRINK = 90.0  # seconds to make one smaller
_SILENT = .05  # more programs without a verdict, and the run fails
_LINE = 15.0  # seconds between lines of progress
_ENVIRONMENT = {
    **reproduce.JAX_ENVIRONMENT, "TF_CPP_MIN_LOG_LEVEL": "3",
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    # What JaxTestCase sets for its tests.
    "JAX_NUMPY_DTYPE_PROMOTION": "standard",
}


@dataclasses.dataclass(frozen=True)
class Request:
  """The options of a run: the seeds of its programs, and where to keep it."""
  programs: int
  seed: int
  jobs: int
  folder: pathlib.Path

  @property
  def seeds(self) -> range:
    return range(self.seed, self.seed + self.programs)


class Run:
  """A run of one base: its programs that are done, and their outcomes."""

  def __init__(self, base: Base, request: Request,
               servers: fork_servers.Servers):
    self.base, self.request, self.servers = base, request, servers
    made = environments.build(base, python=interpreters.for_base(
        base, lowest=True))
    self.python, self.pristine = made.mended, made.pristine
    programs = sorted((_TESTS / "varying" / "testing").glob("fuzz_*.py"))
    self.key = cache.key(made.wheel.name, *(
        p.read_text(encoding="utf-8") for p in (_PROBE, *programs)),
                         made.mended.parent.parent.name)
    request.folder.mkdir(parents=True, exist_ok=True)
    self.kept = request.folder / f"{base.version}-{self.key}.jsonl"
    self.done: dict[int, dict[str, Any]] = {}
    for line in (self.kept.read_text(encoding="utf-8").splitlines()
                 if self.kept.exists() else ()):
      record = json.loads(line)
      self.done[record["seed"]] = record
    self._lock = threading.Lock()
    self.stopped = False
    self.began, self.before = time.monotonic(), len(self.mine())

  def mine(self) -> list[dict[str, Any]]:
    return [self.done[s] for s in self.request.seeds if s in self.done]

  def chunks(self) -> list[list[int]]:
    todo = [s for s in self.request.seeds if s not in self.done]
    return [todo[i:i + _CHUNK] for i in range(0, len(todo), _CHUNK)]

  def keep(self, record: dict[str, Any]) -> None:
    with self._lock:
      self.done[record["seed"]] = record
      with self.kept.open("a", encoding="utf-8") as out:
        out.write(json.dumps(record) + "\n")

  def write_program(self, seed: int, text: str) -> None:
    path = self.request.folder / f"{self.base.version}-{seed}.py"
    path.write_text(text, encoding="utf-8")

  def progress(self) -> str:
    """The progress as one line: seeds done, faults, seconds for each."""
    mine = self.mine()
    count = collections.Counter(r["kind"] for r in mine)
    new = len(mine) - self.before
    each = (time.monotonic() - self.began) / new if new else 0.
    faults = sum(count[k] for k in FAULTS)
    return (f"{self.base.version}: {len(mine)} of {self.request.programs} "
            f"programs, {report.plural(faults, 'fault')}, {count[ORACLE]} "
            f"without a verdict, {each:.1f} s each")


def _attempt(run: Run, server: fork_servers.Server, seeds: Sequence[int],
             shrink: float = _SHRINK, **more: Any
             ) -> tuple[list[dict[str, Any]], str]:
  """Runs some seeds in a process; its events, and why it died or ""."""
  with cache.scratch() as folder:
    events, output = folder / "events", folder / "output"
    child = server.start(
        program=_PROBE.read_text(encoding="utf-8"), path=[str(_TESTS)],
        input=json.dumps({"seeds": list(seeds), "events": str(events),
                          "shrink": shrink}),
        output=output, cwd=folder, env=more)
    hung = pytest_run.watch(child, events, _LIMIT)
    lines = (events.read_text(encoding="utf-8").splitlines()
             if events.exists() else [])
    said = output.read_text(encoding="utf-8", errors="replace")
  why = hung or (f"exit {child.returncode}: " + said[-600:]
                 if child.returncode else "")
  return [json.loads(line) for line in lines if line.endswith("}")], why


def _chunk(run: Run, server: fork_servers.Server, seeds: Sequence[int]) -> None:
  """Runs the seeds, in as many processes as their crashes make it take."""
  left = list(seeds)
  while left:
    events, why = _attempt(run, server, left)
    found = {e["seed"]: e for e in events if "kind" in e}
    for event in events:
      if "program" in event:
        run.write_program(event["seed"], event["program"])
    for record in found.values():
      run.keep(_compared(run, record))
    left = [s for s in left if s not in found]
    died = [e["begins"] for e in events if "begins" in e]
    if not why or run.stopped:
      return
    if not died:
      raise MendError(f"no program can be run on {run.base.version}: {why}",
                      "see that its own tests pass: build.py test "
                      "tests/varying/fuzz_test.py")
    if died[-1] not in found:
      run.keep(_compared(run, _crash(run, server, died[-1], why)))
      left.remove(died[-1])


def _crash(run: Run, server: fork_servers.Server, seed: int,
           why: str) -> dict[str, Any]:
  """Runs a crashing program by itself, and with the check off."""
  events, again = _attempt(run, server, [seed])
  if run.stopped:
    raise KeyboardInterrupt
  if not again:
    return {**next(e for e in events if "kind" in e), "died": why}
  _, unchecked = _attempt(run, server, [seed], MEND_FUZZ_UNCHECKED="1")
  return {"seed": seed, "kind": JAXLIB if unchecked else "crash",
          "text": again, "features": [], "took": 0.}


def fuzz(request: Request, chosen: Sequence[Base]) -> Verdict:
  """Runs the programs on each base, and prints one summary.

  Args:
    request: which, and how many at a time.
    chosen: the bases.
  """
  runs = []
  with fork_servers.Servers(_PRELOAD, _ENVIRONMENT) as servers:
    for base in chosen:
      runs.append(run := Run(base, request, servers))
      server = servers.of(run.python)
      if server is None:
        return Verdict("processes can't be forked on this system.",
                       "run it on Linux")
      _all(run, server, request.jobs)
  rows = [row(run.base.version, run.request.seeds, run.mine()) for run in runs]
  report.show(HEADER, rows)
  if report.verbose:
    for run in runs:
      _show_features(run)
  return _verdict(request, runs)


def _compared(run: Run, record: dict[str, Any]) -> dict[str, Any]:
  """A fault's record, with whether the program is right on pristine jax."""
  server = run.servers.of(run.pristine)
  if record["kind"] not in FAULTS or server is None:
    return record
  events, why = _attempt(run, server, [record["seed"]], shrink=0.,
                         MEND_FUZZ_AS_MENDED="1")
  found = [e["kind"] for e in events if "kind" in e]
  return {**record, "worse": not why and found == [""]}


def _all(run: Run, server: fork_servers.Server, count: int) -> None:
  """Runs what is left of a base's programs, and says how far it is."""
  todo: queue.SimpleQueue[list[int]] = queue.SimpleQueue()
  for chunk in run.chunks():
    todo.put(chunk)

  def work() -> None:
    while not run.stopped:
      try:
        chunk = todo.get_nowait()
      except queue.Empty:
        return
      _chunk(run, server, chunk)

  with concurrent.futures.ThreadPoolExecutor(count) as pool:
    try:
      working = [pool.submit(work) for _ in range(count)]
      last = ""
      while concurrent.futures.wait(working, _LINE).not_done:
        if (line := run.progress()) != last:
          _say(last := line)
        for failed in (f for f in working if f.done()):
          failed.result()
    except BaseException:  # what runs is killed, and is no crash
      run.stopped = True
      server.close()
      raise
  for future in working:
    future.result()
  _say(run.progress(), end="\n")


def _say(line: str, end: str = "") -> None:
  """Prints a line, over the last one on a terminal."""
  if sys.stderr.isatty():
    print(f"\r\033[K{line}", end=end, file=sys.stderr, flush=True)
  else:
    print(line, file=sys.stderr, flush=True)


def _show_features(run: Run) -> None:
  drawn = collections.Counter(f for r in run.mine() for f in r["features"])
  report.show(("feature", f"programs on {run.base.version}"),
              [(f, str(n)) for f, n in sorted(drawn.items())])


def _verdict(request: Request, runs: Sequence[Run]) -> Verdict:
  programs = faults = 0
  silent = []
  for run in runs:
    mine = run.mine()
    programs += len(mine)
    bad = [r for r in mine if r["kind"] in FAULTS]
    for record in bad:
      report.say(f"{run.base.version}, seed {record['seed']}: "
                 f"{record['kind']}"
                 f"{', ' + WORSE if record.get('worse') else ''}: "
                 f"{report.shorten(record['text'], 160)}")
    faults += len(bad)
    mute = sum(r["kind"] == ORACLE for r in mine)
    if mute > _SILENT * len(mine) + 1:
      silent.append(f"{mute} of {len(mine)} on {run.base.version}")
  words = f"{programs} programs, {report.plural(faults, 'fault')}."
  if twice := sum("died" in r for run in runs for r in run.mine()):
    words += f" {twice} died among others, and not by themselves."
  if faults:
    return Verdict(words, f"run {request.folder}/BASE-SEED.py, then "
                   "make each a regression test")
  if silent:
    return Verdict(f"{words} The emulation failed on {', '.join(silent)}.",
                   "see why in the text of the records")
  return Verdict(words)
