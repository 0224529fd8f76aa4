# SPDX-License-Identifier: Apache-2.0
"""Runs a program for `compare`, stock or mended, and reads its record."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
import contextlib
import dataclasses
import functools
import json
import os
import subprocess
import sys
import time
from typing import Any

from jax_mend import children, processes, recorder
from jax_mend.processes import Input, Keeper
from jax_mend.progress import Progress

STOCK = "0"
_GRACE = 1.  # seconds to write the stacks of a program that hangs


@dataclasses.dataclass
class Program:
  """A program that JAX compiled, and what its calls returned.

  Attributes:
    how: "compiled", "lowered" without being compiled, or "loaded" as another
      process has compiled it.
    operations: how many of each are in its text.
    patches: those whose code ran while it was traced, with the functions.
    given: of each call, a digest of the arguments.
    calls: of each call that has returned, [device, index, digest] of each part
      of each result.
    places: the calls that have not returned, by number and count, in `given`.
  """
  number: int
  name: str
  line: str
  code: str
  test: str = ""
  how: str = "compiled"
  operations: Mapping[str, int] = dataclasses.field(default_factory=dict)
  patches: dict[str, list[str]] = dataclasses.field(default_factory=dict)
  given: dict[int, str] = dataclasses.field(default_factory=dict)
  calls: dict[int, Any] = dataclasses.field(default_factory=dict)
  places: dict[tuple[int, int], int] = dataclasses.field(default_factory=dict)

  @property
  def alike(self) -> tuple[str, str, str, str]:
    return self.name, self.code, self.test, self.how

  @property
  def key(self) -> tuple[str, str, str, str]:
    return self.name, self.line, self.test, self.how


@dataclasses.dataclass
class Run:
  """The end and the record of one run.

  Attributes:
    words: the value of JAX_MEND.
    status: the exit status; None if it hung.
    error: of the error that ended it, "type", "text" and "line".
    open: the numbers of the programs that were running when all ended; a
      call may place its arguments by another one.
    rest: the patches whose code ran after the last program was compiled.
    jax: whether jax was imported.
  """
  folder: str
  words: str
  status: int | None
  seconds: float
  memory: int  # bytes, 0 if unknown
  programs: list[Program] = dataclasses.field(default_factory=list)
  error: dict[str, str] = dataclasses.field(default_factory=dict)
  open: list[int] = dataclasses.field(default_factory=list)
  outcomes: dict[str, str] = dataclasses.field(default_factory=dict)
  recorded: bool = False
  rest: dict[str, list[str]] = dataclasses.field(default_factory=dict)
  jax: bool = False

  @functools.cached_property
  def known(self) -> dict[tuple[str, str, str, str], Program]:
    return {program.alike: program for program in self.programs}

  @functools.cached_property
  def by_number(self) -> dict[int, Program]:
    return {program.number: program for program in self.programs}

  def text(self, name: str) -> list[str]:
    """The lines of "stdout" or "stderr"."""
    path = os.path.join(self.folder, name)
    with open(path, encoding="utf-8", errors="replace") as file:
      return file.read().splitlines()

  @property
  def stacks(self) -> list[str]:
    """The line at which each thread hung."""
    try:
      with open(os.path.join(self.folder, "stacks.txt"),
                encoding="utf-8") as file:
        text = file.read()
    except OSError:  # it has not come so far
      return []
    found = []
    for thread in text.split("\n\n"):
      frames = [line.strip() for line in thread.splitlines()
                if line.startswith("  File ")]
      own = [f for f in frames if not _is_library(f)]
      if frames:
        found.append((own or frames)[0])
    return [*dict.fromkeys(found)]


def _is_library(frame: str) -> bool:
  return any(word in frame for word in (
      "site-packages", "/jax/_src/", os.path.dirname(os.__file__) + os.sep,
      os.path.dirname(recorder.__file__)))


@dataclasses.dataclass(frozen=True)
class Settings:
  """The things that all runs of a comparison have in common.

  Attributes:
    command: what Python is to run.
    keeper: ends what is run.
    stdin: the standard input; None for none.
    limit: seconds that a run may take.
    store: bytes of values that a run may keep.
    progress: told of each run.
  """
  command: Sequence[str]
  keeper: Keeper
  stdin: Input | None
  limit: float
  store: int
  cwd: str = "."
  progress: Progress = dataclasses.field(default_factory=Progress)


def run(settings: Settings, folder: str, words: str, other: str = "",
        wanted: Collection[str] | None = (), evidence: bool = False,
        cache: str = "") -> Run:
  """Runs the program once.

  Args:
    settings: of the comparison.
    folder: a new one, for what is recorded.
    words: the value of JAX_MEND.
    other: the folder of a run whose values needn't be kept again.
    wanted: the values to keep, by name; None for all.
    evidence: whether to tell the patches whose code runs.
    cache: the folder for the byte code of a mended jax; "" for the user's.
  """
  os.mkdir(folder)
  _tell(folder, store=settings.store, other=other, limit=settings.limit,
        wanted=None if wanted is None else [*wanted], evidence=evidence)
  env = _environment(folder, words, cache)
  flags = subprocess._args_from_interpreter_flags()  # type: ignore
  began = time.monotonic()
  progress = settings.progress.begun(folder, words)
  with (settings.stdin.given() if settings.stdin else contextlib.nullcontext(
      subprocess.DEVNULL) as stdin,
        open(os.path.join(folder, "stdout"), "wb") as out,
        open(os.path.join(folder, "stderr"), "wb") as err):
    process = subprocess.Popen(
        [sys.executable, *flags, *settings.command], stdin=stdin, stdout=out,
        stderr=err, env=env, cwd=settings.cwd,
        start_new_session=os.name != "nt")
    settings.keeper.watch(process.pid)
    if settings.stdin:
      settings.stdin.feed(process)
    status, memory = processes.wait(process, settings.limit + _GRACE, progress)
    settings.keeper.watch(0)
  found = Run(folder, words, status, time.monotonic() - began, memory)
  read(found)
  return found


def _environment(folder: str, words: str, cache: str) -> dict[str, str]:
  env = {**os.environ, "JAX_MEND": words, "JAX_MEND_QUIET": "1",
         recorder.FOLDER: folder}
  if cache:
    env["JAX_MEND_CACHE"] = cache
  children.export(env)
  return env


def _tell(folder: str, **settings: Any) -> None:
  """Writes the recorder's settings."""
  with open(os.path.join(folder, "settings.json"), "w",
            encoding="utf-8") as file:
    json.dump(settings, file)


def read(run_: Run) -> None:
  """Reads what was recorded into a run."""
  try:
    with open(os.path.join(run_.folder, "events.jsonl"),
              encoding="utf-8") as file:
      lines = [line for line in file if line.endswith("\n")]
  except OSError:
    return
  run_.recorded = True
  for line in lines:
    event = json.loads(line)
    _READERS[event.pop("what")](run_, event)


def _program(run_: Run, event: Mapping[str, Any]) -> None:
  """Adds a program, or joins it with one of the same name and code.

  Of two threads that call a function for the first time both compile it, or
  only one does.
  """
  program = Program(**event)
  other = run_.known.setdefault(program.alike, program)
  run_.by_number[program.number] = other
  if other is program:
    run_.programs.append(program)
  else:
    other.patches.update(program.patches)


def _called(run_: Run, event: Mapping[str, Any]) -> None:
  program = run_.by_number[event["number"]]
  run_.open.append(program.number)
  program.places[event["number"], event["at"]] = at = len(program.given)
  program.given[at] = event["given"]


def _results(run_: Run, event: Mapping[str, Any]) -> None:
  program = run_.by_number[event["number"]]
  run_.open.remove(program.number)
  at = program.places.pop((event["number"], event["at"]))
  program.calls[at] = event["results"]


def _error(run_: Run, event: Mapping[str, Any]) -> None:
  run_.error = dict(event)


def _outcome(run_: Run, event: Mapping[str, Any]) -> None:
  run_.outcomes[event["test"]] = event["outcome"]


def _rest(run_: Run, event: Mapping[str, Any]) -> None:
  run_.rest = event["patches"]


def _jax(run_: Run, event: Mapping[str, Any]) -> None:
  run_.jax = True


_READERS = {"jax": _jax, "program": _program, "call": _called,
            "results": _results, "error": _error, "outcome": _outcome,
            "rest": _rest}
