# SPDX-License-Identifier: Apache-2.0
"""Runs the reports' programs in children forked from one process that has jax.

`python -c "from jax_mend import programs; programs.serve()"`, started by
`doctor`. To import jax costs more than most of the programs do, and starts no
backend, so what a child of `fork` does with jax is its own. Reads one JSON
object, a line: {"runner": a source, "tasks": what it reads, "limit": seconds,
"workers": how many at a time}. Answers a JSON object a line: {"ready": whether
children can be forked}, then {"program": number, "result": [outcome, seen]} of
each as it ends. It ends with its standard input, and its children with it.
"""

from __future__ import annotations

import gc
import importlib
import io
import json
import os
import select
import signal
import sys
import tempfile
import threading
import time
from typing import Any, NoReturn

MARK = "MEND-RESULT "
_WAIT = .02  # seconds between looks at the children


def outcome(printed: str, code: int) -> list[str]:
  """The result of a program: what it says, or how its process ended."""
  marked = [s for s in printed.splitlines() if s.startswith(MARK)]
  if marked:
    return json.loads(marked[-1].removeprefix(MARK))
  tail = (printed.strip().splitlines() or ["nothing printed"])[-1]
  return ["FAIL", f"the process died (exit {code}): {tail}"]


def too_long(limit: float) -> list[str]:
  return ["FAIL", f"no end within {limit:g} s (a deadlock?)"]


def _child(runner: str, task: str, output: int) -> NoReturn:
  """Runs a program in this process, which ends with it."""
  code = 1
  try:
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for target in (1, 2):
      os.dup2(output, target)
    sys.argv, sys.stdin = ["-c"], io.StringIO(task)
    # As `python -c` runs it: in __main__, whose names it may look up.
    main = type(sys)("__main__")
    sys.modules["__main__"] = main
    exec(compile(runner, "<string>", "exec"), main.__dict__)
    code = 0
  finally:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


class _Forked:
  """A child with the number of its program, its output and its beginning."""

  def __init__(self, number: int, runner: str, task: str):
    self.number, self.began = number, time.monotonic()
    self._output = tempfile.TemporaryFile()
    self.pid = os.fork()
    if not self.pid:
      _child(runner, task, self._output.fileno())

  def result(self, limit: float) -> list[str] | None:
    """The outcome, once it has ended or has taken too long."""
    done, status = os.waitpid(self.pid, os.WNOHANG)
    if done:
      self._output.seek(0)
      said = self._output.read().decode("utf-8", "replace")
      self._output.close()
      return outcome(said, os.waitstatus_to_exitcode(status))
    if time.monotonic() - self.began < limit:
      return None
    self.kill()
    return too_long(limit)

  def kill(self) -> None:
    try:
      os.killpg(self.pid, signal.SIGKILL)
    except ProcessLookupError:  # not yet the head of a group of its own
      os.kill(self.pid, signal.SIGKILL)
    os.waitpid(self.pid, 0)
    self._output.close()


def serve() -> None:
  """Answers one request on standard input; see above."""
  out = os.fdopen(os.dup(1), "w")
  os.dup2(2, 1)  # what an import prints must not get between the answers
  request = json.loads(sys.stdin.readline())
  for name in ("jax", "jax.numpy", "numpy"):
    importlib.import_module(name)
  # Another thread would not be there in a child, whatever it was holding.
  ready = threading.active_count() == 1
  _say(out, ready=ready)
  if ready:
    gc.collect()
    gc.freeze()  # else a child's collector would go through all, and copy it
    gc.set_threshold(20_000, 20, 20)
    _run(out, request)


def _run(out: Any, request: dict[str, Any]) -> None:
  waiting = list(enumerate(request["tasks"]))
  running: list[_Forked] = []
  try:
    while waiting or running:
      while waiting and len(running) < request["workers"]:
        number, task = waiting.pop(0)
        running.append(_Forked(number, request["runner"], task))
      if select.select([0], [], [], _WAIT)[0] and not os.read(0, 1):
        return
      for child in [*running]:
        result = child.result(request["limit"])
        if result:
          running.remove(child)
          _say(out, program=child.number, result=result)
  finally:
    for child in running:
      child.kill()


def _say(out: Any, **record: Any) -> None:
  out.write(json.dumps(record) + "\n")
  out.flush()
