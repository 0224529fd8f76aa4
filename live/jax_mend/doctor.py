"""`python -m jax_mend doctor`: runs the reports' programs in this Python."""

from __future__ import annotations

from collections.abc import Sequence
import concurrent.futures
import json
import os
import subprocess
import sys
import tempfile
from typing import Any

from jax_mend import active, children, status
from jax_mend import table as tables

_TIME_LIMIT = 120  # seconds for one program, import of jax included
_MARK = "MEND-RESULT "
# A defect must not be hidden or made by the caller's settings; eight devices
# are what the programs are written for.
_SETTINGS = {"JAX_PLATFORMS": "cpu",
             "XLA_FLAGS": "--xla_force_host_platform_device_count=8"}


def _chosen(words: Sequence[str]) -> list[dict[str, Any]]:
  facts = status.gather()
  base = (facts["jax"] or "").partition("+")[0]
  known = (tables.Table(base).patches if base in tables.index()["bases"]
           else tables.index()["patches"])
  return [p for p in tables.reports()["programs"] if p["patch"] in known
          and (not words or any(
              w.lower() in f"{p['report']} {p['line']}".lower()
              for w in words))]


def _run_one(program: dict[str, Any], env: dict[str, str],
             scratch: str) -> tuple[str, str]:
  reports = tables.reports()
  task = json.dumps({"source": reports["sources"][program["source"]],
                     "function": program["function"]})
  try:
    done = subprocess.run(
        [sys.executable, "-c", reports["runner"]], input=task, text=True,
        capture_output=True, cwd=scratch, env=env, timeout=_TIME_LIMIT,
        check=False)
  except subprocess.TimeoutExpired:
    return "FAIL", f"no end within {_TIME_LIMIT} s (a deadlock?)"
  marked = [s for s in done.stdout.splitlines() if s.startswith(_MARK)]
  if marked:
    outcome, seen = json.loads(marked[-1].removeprefix(_MARK))
    return outcome, seen
  tail = (done.stderr.strip().splitlines() or ["nothing printed"])[-1]
  return "FAIL", f"the process died (exit {done.returncode}): {tail}"


def run(words: Sequence[str], as_json: bool) -> int:
  """Prints red or green for each; 1 if one is red."""
  active.activate()
  env = {**os.environ, **_SETTINGS, "JAX_MEND_QUIET": "1"}
  if not active.is_off():
    children.export(env)
  programs = _chosen(words)
  state = status.gather()["state"]
  rows = []
  workers = max(1, min(4, os.cpu_count() or 1))
  with tempfile.TemporaryDirectory() as scratch, (
      concurrent.futures.ThreadPoolExecutor(workers)) as pool:
    for program, (outcome, seen) in zip(programs, pool.map(
        lambda p: _run_one(p, env, scratch), programs)):
      rows.append({"report": program["report"], "defect": program["line"],
                   "patch": program["patch"], "result": outcome, "seen": seen})
      if not as_json:
        colour = {"PASS": "green", "FAIL": "RED"}.get(outcome, "n/a")
        print(f"{colour:5}  {program['report']}: {program['line']}"
              + (f"\n       {seen}" if outcome == "FAIL" else ""), flush=True)
  red = sum(r["result"] == "FAIL" for r in rows)
  if as_json:
    print(json.dumps({"state": state, "results": rows}, indent=1))
  else:
    print(f"\n{red} of {len(rows)} known defects are here (jax: {state}).")
  return 1 if red or not rows else 0
