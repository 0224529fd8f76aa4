# SPDX-License-Identifier: Apache-2.0
"""`python -m jax_mend doctor`: runs the reports' programs in this Python."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import concurrent.futures
import contextlib
import difflib
import json
import os
import subprocess
import sys
import tempfile
import time
from typing import Any

from jax_mend import active, asked, children, programs, status
from jax_mend import table as tables
from jax_mend.errors import NotApplied, Refused

_TIME_LIMIT = 120  # seconds for one program
# A defect must not be hidden or made by the caller's settings; eight devices
# are what the programs are written for.
_SETTINGS = {"JAX_PLATFORMS": "cpu",
             "XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
_SERVER = "from jax_mend import programs; programs.serve()"
_Results = Iterator[tuple[int, Sequence[str]]]


def _chosen(words: Sequence[str]) -> list[dict[str, Any]]:
  """The programs of this release whose line has one of the words.

  Raises:
    Refused: none has.
  """
  facts = status.gather()
  base = (facts["jax"] or "").partition("+")[0]
  known = (tables.Table(base).patches if base in tables.index()["bases"]
           else tables.index()["patches"])
  mine = [p for p in tables.reports()["programs"] if p["patch"] in known]
  text = lambda p: f"{p['report']} {p['line']}".lower()
  found = [p for p in mine
           if not words or any(w.lower() in text(p) for w in words)]
  if not found:
    near = difflib.get_close_matches(
        words[0].lower() if words else "",
        {w.strip(":,.()`") for p in mine for w in text(p).split()}, 3)
    raise Refused(
        f"None of the {len(mine)} programs for this jax is about "
        f"{' or '.join(words)}" + (
            f"; did you mean {' or '.join(near)}?" if near else "."),
        f"{sys.executable} -m jax_mend doctor runs all of them; their reports "
        f"are {', '.join(dict.fromkeys(p['report'] for p in mine))}")
  return found


def _tasks(chosen: Sequence[dict[str, Any]]) -> list[str]:
  sources = tables.reports()["sources"]
  return [json.dumps({"source": sources[p["source"]],
                      "function": p["function"]}) for p in chosen]


@contextlib.contextmanager
def _server(env: dict[str, str], scratch: str,
            ) -> Iterator[subprocess.Popen[str]]:
  """A process that forks; it ends with the block, and its children with it."""
  with tempfile.TemporaryFile("w+") as errors:
    with subprocess.Popen(
        [sys.executable, "-c", _SERVER], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=errors, text=True, cwd=scratch, env=env,
        start_new_session=True) as server:
      try:
        yield server
      finally:
        assert server.stdin
        with contextlib.suppress(OSError):
          server.stdin.close()
    if server.returncode:
      errors.seek(0)
      tail = (errors.read().strip().splitlines() or ["nothing printed"])[-1]
      raise NotApplied(f"jax can't be imported here: {tail}.",
                       f"{sys.executable} -c 'import jax' shows more")


def _forked(tasks: Sequence[str], env: dict[str, str], scratch: str,
            workers: int) -> _Results:
  """The results as they come; none at all if nothing can be forked."""
  with _server(env, scratch) as server:
    assert server.stdin and server.stdout
    with contextlib.suppress(OSError):
      server.stdin.write(json.dumps({
          "runner": tables.reports()["runner"], "tasks": tasks,
          "limit": _TIME_LIMIT, "workers": workers}) + "\n")
      server.stdin.flush()
    for line in server.stdout:
      answer = json.loads(line)
      if "program" in answer:
        yield answer["program"], answer["result"]


def _one(task: str, env: dict[str, str], scratch: str) -> Sequence[str]:
  """Runs one program in a new process: safe wherever forking is not."""
  try:
    done = subprocess.run(
        [sys.executable, "-c", tables.reports()["runner"]], input=task,
        text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        cwd=scratch, env=env, timeout=_TIME_LIMIT, check=False)
  except subprocess.TimeoutExpired:
    return programs.too_long(_TIME_LIMIT)
  return programs.outcome(done.stdout, done.returncode)


def _results(tasks: Sequence[str], env: dict[str, str],
             scratch: str) -> _Results:
  """(number, [outcome, what was seen]) of each program, as they end."""
  workers = max(1, min(4, os.cpu_count() or 1))
  left = dict(enumerate(tasks))
  if sys.platform == "linux":
    for number, result in _forked(tasks, env, scratch, workers):
      del left[number]
      yield number, result
  with concurrent.futures.ThreadPoolExecutor(workers) as pool:
    futures = {pool.submit(_one, task, env, scratch): number
               for number, task in left.items()}
    try:
      for future in concurrent.futures.as_completed(futures):
        yield futures[future], future.result()
    finally:
      pool.shutdown(wait=False, cancel_futures=True)


def run(words: Sequence[str], as_json: bool) -> int:
  """Prints red or green for each; 1 if one is red."""
  active.activate()
  env = {**os.environ, **_SETTINGS, "JAX_MEND_QUIET": "1"}
  if not asked.is_off():
    children.export(env)
  chosen, began = _chosen(words), time.monotonic()
  found: dict[int, Sequence[str]] = {}
  with tempfile.TemporaryDirectory() as scratch:
    for number, result in _results(_tasks(chosen), env, scratch):
      found[number] = result
      if not as_json:
        outcome, seen = result
        clock = _clock(time.monotonic() - began)
        print(_line(chosen[number], outcome, seen,
                    f"[{len(found)}/{len(chosen)} {clock}]"), flush=True)
  red = [n for n in sorted(found) if found[n][0] == "FAIL"]
  state = status.gather()["state"]
  if as_json:
    print(json.dumps({"state": state, "results": [
        {"report": p["report"], "defect": p["line"], "patch": p["patch"],
         "result": found[n][0], "seen": found[n][1]}
        for n, p in enumerate(chosen)]}, indent=1))
  else:
    print(f"\n{len(red)} of {len(chosen)} known defects are here (jax: "
          f"{state}).")
  return 1 if red else 0


def _clock(seconds: float) -> str:
  return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


def _line(program: dict[str, Any], outcome: str, seen: str, count: str) -> str:
  colour = {"PASS": "green", "FAIL": "RED"}.get(outcome, "n/a")
  line = f"{count} {colour:5}  {program['report']}: {program['line']}"
  return f"{line}\n       {seen}" if outcome == "FAIL" else line
