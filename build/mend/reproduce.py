"""Runs the reproductions of the reports in any Python that has a jax."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
import concurrent.futures
import dataclasses
import json
import os
import pathlib
import subprocess
import tempfile

from mend import bases, cache, patches, report
from mend.bases import Base
from mend.errors import MendError

PASS, FAIL, NOT_APPLICABLE = "PASS", "FAIL", "n/a"
TIME_LIMIT = 120  # seconds for one reproduction, import of jax included
_RUNNER = bases.ROOT / "build" / "probes" / "run_reproduction.py"
_MARK = "MEND-RESULT "
# A defect of the environment's own must not be hidden or made by the caller's
# settings; eight devices are what the reproductions are written for.
JAX_ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
}


@dataclasses.dataclass(frozen=True)
class Reproduction:
  """One defect: a function of a file in reproductions/."""
  patch: str
  report: str
  line: str
  function: str
  source: str


@dataclasses.dataclass(frozen=True)
class Outcome:
  """PASS, FAIL or n/a, and what was seen."""
  status: str
  seen: str


def collect(series: Iterable[patches.Patch],
            root: pathlib.Path = bases.ROOT) -> list[Reproduction]:
  """Every reproduction of the series, in order, each file once."""
  found, files = [], set()
  for patch in series:
    for file in patch.reproductions:
      if file not in files:
        files.add(file)
        found += _of_file(root / file, patch.id)
  return found


def _of_file(path: pathlib.Path, patch: str) -> list[Reproduction]:
  text = path.read_text(encoding="utf-8")
  tree = ast.parse(text, str(path))
  named = [ast.literal_eval(node.value) for node in tree.body
           if isinstance(node, ast.Assign)
           and getattr(node.targets[0], "id", "") == "REPORT"]
  functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)
               and not node.name.startswith("_")]
  lines = [(ast.get_docstring(f) or "").strip().split("\n")[0]
           for f in functions]
  if len(named) != 1 or not functions or not all(lines):
    raise MendError(
        f"{path.name} is no reproduction: it needs REPORT = \"...\" and public "
        "functions with a docstring.", f"edit reproductions/{path.name}")
  return [Reproduction(patch, named[0], line, f.name, text)
          for f, line in zip(functions, lines)]


def run_one(item: Reproduction, python: str | pathlib.Path) -> Outcome:
  """Runs one reproduction in a process of its own."""
  task = json.dumps({"source": item.source, "function": item.function})
  env = {**os.environ, **JAX_ENVIRONMENT}
  with tempfile.TemporaryDirectory() as scratch:
    try:
      done = subprocess.run(
          [str(python), "-c", _RUNNER.read_text(encoding="utf-8")], input=task,
          capture_output=True, text=True, cwd=scratch, timeout=TIME_LIMIT,
          env=env, check=False)
    except subprocess.TimeoutExpired:
      return Outcome(FAIL, f"no end within {TIME_LIMIT} s (a deadlock?)")
    except OSError as e:
      raise MendError(f"{python} can't be run: {e}",
                      "name a Python that has jax: --python=PATH") from e
  marked = [line for line in done.stdout.splitlines() if line.startswith(_MARK)]
  if marked:
    return Outcome(*json.loads(marked[-1].removeprefix(_MARK)))
  tail = (done.stderr.strip().splitlines() or ["nothing printed"])[-1]
  return Outcome(FAIL, f"the process died (exit {done.returncode}): {tail}")


def run_all(items: Sequence[Reproduction], python: str | pathlib.Path,
            label: str) -> list[Outcome]:
  """Runs them two at a time; the order of results is that of `items`."""
  workers = max(1, min(4, os.cpu_count() or 1))
  with report.step(f"running {len(items)} reproductions on {label}"):
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
      return list(pool.map(lambda item: run_one(item, python), items))


def remembered(items: Sequence[Reproduction], python: pathlib.Path,
               label: str) -> list[Outcome]:
  """`run_all`, once for each environment: its path is keyed by its content."""
  key = cache.key(str(python), *(i.source + i.function for i in items))
  kept = cache.folder("proofs") / f"{key}.json"
  if kept.is_file():
    return [Outcome(*o) for o in json.loads(kept.read_text(encoding="utf-8"))]
  outcomes = run_all(items, python, label)
  if all(o.status != FAIL or "no end within" not in o.seen for o in outcomes):
    with cache.whole(kept) as made:
      made.write_text(json.dumps([[o.status, o.seen] for o in outcomes]),
                      encoding="utf-8")
  return outcomes


def describe(python: str) -> str:
  """The jax that `python` has.

  Raises:
    MendError: it has none, or does not run.
  """
  ask = ("import importlib.metadata as m, jax; "
         "print(m.version('jax'), m.version('jaxlib'))")
  with tempfile.TemporaryDirectory() as scratch:
    try:
      done = subprocess.run(
          [python, "-c", ask], capture_output=True, text=True, cwd=scratch,
          env={**os.environ, **JAX_ENVIRONMENT}, check=False)
    except OSError as e:
      raise MendError(f"{python} can't be run: {e}",
                      "name a Python that has jax: --python=PATH") from e
  if done.returncode:
    tail = (done.stderr.strip().splitlines() or ["?"])[-1]
    raise MendError(f"{python} has no jax that can be imported: {tail}",
                    f"{python} -m pip install 'jax[cpu]', or name another "
                    "Python: --python=PATH")
  jax, jaxlib = done.stdout.split()[-2:]
  return f"jax {jax}, jaxlib {jaxlib}"


def proof_rows(items: Sequence[Reproduction], before: Sequence[Outcome],
               after: Sequence[Outcome]) -> list[list[str]]:
  """The table that ends a build."""
  return [[i.report, i.line, _cell(b), _cell(a)]
          for i, b, a in zip(items, before, after)]


def _cell(outcome: Outcome) -> str:
  if outcome.status == FAIL:
    return "FAIL: " + report.shorten(outcome.seen, 48)
  return outcome.status


def only_for(items: Sequence[Reproduction], series: Iterable[patches.Patch],
             base: Base) -> list[Reproduction]:
  mine = {p.id for p in patches.for_base(series, base)}
  return [i for i in items if i.patch in mine]
