# SPDX-License-Identifier: Apache-2.0
"""The checks that upstream's own CI makes of a pull request, on a checkout.

ruff and pyrefly in the versions that its `.pre-commit-config.yaml` pins, its
script for copyright lines, the hooks for white space, and pytest as its
`pyproject.toml` configures it. Each says how many things it looked at: one that
looked at nothing has proven nothing.
"""

from __future__ import annotations

import ast
import collections
from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import json
import pathlib
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

from mend.ground import cache, process
from mend.ground.errors import MendError
from mend.proof import venvs
from mend.releases import interpreters
from mend.trees import bazel_graph, tree
from mend.upkeep import candidates

CONFIG = ".pre-commit-config.yaml"
COPYRIGHT = "build/check_copyright.py"
_LIMIT = 900  # seconds for a run of some tests
_WIDTH = 80
_LICENSED = re.compile(r"\.(py|cc|h|c|cu|bzl|sh)$|BUILD")
PASSED, FAILED, SKIPPED, DIED = "passed", "failed", "skipped", "died"
Errors = collections.Counter[str]


@dataclasses.dataclass(frozen=True)
class Tools:
  """The programs: of upstream's hooks, and a Python that its tests run on."""
  ruff: Sequence[str]
  pyrefly: Sequence[str]
  hooks: str  # a Python that has what upstream's own scripts import
  python: str


@dataclasses.dataclass(frozen=True)
class Finding:
  """The result of one check: what it looked at, and what is wrong."""
  check: str
  count: int
  things: str
  problems: tuple[str, ...] = ()

  @property
  def good(self) -> bool:
    return bool(self.count) and not self.problems

  def __str__(self) -> str:
    said = "clean" if self.good else f"{len(self.problems)} wrong" if (
        self.count) else "looked at nothing"
    return f"{self.check}: {self.count} {self.things}, {said}"


def pinned(checkout: pathlib.Path) -> dict[str, str]:
  """The versions of upstream's hooks, by the name of their repository.

  Raises:
    MendError: it has none for ruff or pyrefly.
  """
  path = checkout / CONFIG
  text = tree.read(path) if path.is_file() else ""
  found = dict(re.findall(
      r"repo: \S+/([\w-]+)\s+rev: \S+\s+# frozen: v([\d.]+)", text))
  for name in ("ruff-pre-commit", "pyrefly-pre-commit"):
    if name not in found:
      raise MendError(f"{checkout} pins no {name} in {CONFIG}.",
                      "name a checkout of upstream's main: --verify=CHECKOUT")
  return found


def tools(checkout: pathlib.Path) -> Tools:
  """Upstream's tools, installed, and a Python with what jax needs."""
  pins = pinned(checkout)
  wanted = [f"ruff=={pins['ruff-pre-commit']}",
            f"pyrefly=={pins['pyrefly-pre-commit']}", "google-re2"]
  hooks = venvs.of_packages(sys.executable, wanted, "upstream's tools")
  near = candidates.nearest(candidates.find(str(checkout)).base.version)
  deps = venvs.dependencies(near, interpreters.for_base(near))
  python = str(venvs.python_of(deps))
  return Tools(
      [str(hooks.with_name("ruff"))],
      [str(hooks.with_name("pyrefly")), "check", "--python-interpreter-path",
       python, "--output-format=json", "--summary=none"], str(hooks), python)


def _run(command: Sequence[str], folder: pathlib.Path,
         env: Mapping[str, str] | None = None,
         ) -> subprocess.CompletedProcess[str]:
  return subprocess.run(
      command, cwd=folder, capture_output=True, encoding="utf-8",
      errors="replace", check=False, stdin=subprocess.DEVNULL, timeout=_LIMIT,
      env=process.environment({"PYTHONDONTWRITEBYTECODE": "1", **(env or {})}))


def ruff(these: Tools, folder: pathlib.Path, files: Iterable[str]) -> Finding:
  """Upstream's ruff on the changed files, by upstream's settings."""
  python = [f for f in files if f.endswith(".py")]
  done = _run([*these.ruff, "check", "--no-cache", "--quiet",
               "--output-format=concise", *python], folder)
  wrong = done.stdout.splitlines()
  if done.returncode and not wrong:
    wrong = [done.stderr.strip() or f"exit {done.returncode}"]
  return Finding("ruff", len(python), "files", tuple(wrong))


def licence(these: Tools, folder: pathlib.Path,
            files: Iterable[str]) -> Finding:
  """Upstream's check of copyright lines."""
  mine = [f for f in files if _LICENSED.search(f)
          and "/third_party/" not in f]
  if not (folder / COPYRIGHT).is_file():
    return Finding("copyright", 0, "files")
  done = _run([these.hooks, COPYRIGHT, *mine], folder)
  wrong = (done.stdout + done.stderr).strip().splitlines()
  return Finding("copyright", len(mine), "files",
                 tuple(wrong) if done.returncode else ())


def lines(folder: pathlib.Path, diff: str) -> Finding:
  """The added lines: their width, and white space at their ends."""
  added = [line[1:] for line in diff.splitlines()
           if line.startswith("+") and not line.startswith("+++")]
  wrong = [f"{len(line)} columns: {line.strip()}" for line in added
           if len(line) > _WIDTH and "  # pylint: " not in line]
  wrong += [f"white space at the end: {line!r}" for line in added
            if line != line.rstrip()]
  wrong += ["no newline at a file's end"
            for _ in re.findall(r"^\\ No newline", diff, re.MULTILINE)]
  return Finding("lines", len(added), "added lines", tuple(wrong))


def circles(before: bazel_graph.Graph, after: bazel_graph.Graph) -> Finding:
  """Bazel's targets that need each other and did not before.

  Args:
    before: target -> what it depends on, of the checkout.
    after: of the same with commits on it.
  """
  def found(graph: bazel_graph.Graph) -> list[set[str]]:
    return [c for c in bazel_graph.components(graph) if len(c) > 1]

  known = found(before)
  wrong = tuple(" <-> ".join(sorted(c)) for c in found(after)
                if c not in known)
  return Finding("Bazel", len(after), "targets", wrong)


def type_errors(these: Tools, folder: pathlib.Path,
                files: Sequence[str] = ()) -> Errors:
  """Errors of pyrefly in the project, counted; line numbers left out.

  Args:
    these: the tools.
    folder: the checkout.
    files: those of its files to look at; the whole project without them.

  Raises:
    MendError: it didn't run.
  """
  done = _run([*these.pyrefly, *files], folder)
  try:
    found = json.loads(done.stdout)["errors"]
  except (ValueError, KeyError) as e:
    raise MendError(f"pyrefly failed: {(done.stderr or done.stdout)[-800:]}",
                    "run it by hand in the checkout") from e
  return collections.Counter(
      f"{e['path']}: {e['concise_description']} [{e['name']}]" for e in found)


def typed(files: Iterable[str]) -> list[str]:
  """The files whose types upstream checks."""
  return [f for f in files if f.startswith("jax/") and f.endswith(".py")]


def types(before: Errors, after: Errors, files: Iterable[str]) -> Finding:
  """The type errors that there are more of than before."""
  new = tuple(f"{n} x {error}" for error, n in (after - before).items())
  return Finding("pyrefly", len(typed(files)), "changed files", new)


def collected(these: Tools, folder: pathlib.Path,
              files: Sequence[str]) -> tuple[list[str], str]:
  """The ids of the tests in files, and why they can't be collected, or ""."""
  done = _run([these.python, "-m", "pytest", "--collect-only", "-q",
               "-p", "no:cacheprovider", *files], folder,
              {"JAX_PLATFORMS": "cpu"})
  ids = [line for line in done.stdout.splitlines() if "::" in line
         and not line.startswith("ERROR")]
  good = done.returncode in (0, 5)
  return ids, "" if good else (done.stdout + done.stderr)[-2000:].strip()


def changed_tests(before: str, after: str, ids: Iterable[str]) -> list[str]:
  """The tests, of those with these ids, whose code is another than before.

  Args:
    before: the file.
    after: the same file, changed.
    ids: of its tests; a test with parameters has one for each case.
  """
  was, now = _functions(before), _functions(after)
  found = []
  for one in ids:
    name = ".".join(one.split("::")[1:])
    longest = max((n for n in now if name.startswith(n)), key=len, default="")
    if longest in was and was[longest] != now[longest]:
      found.append(one)
  return found


def _functions(text: str) -> dict[str, str]:
  """The functions of a module and its classes: name -> code."""
  found = {}
  for node in ast.parse(text).body:
    inner = node.body if isinstance(node, ast.ClassDef) else [node]
    head = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
    found.update({f"{head}{f.name}": ast.dump(f) for f in inner
                  if isinstance(f, ast.FunctionDef)})
  return found


def printed(these: Tools, folder: pathlib.Path, program: str,
            xla_flags: str) -> str:
  """The output of a program, on both streams, with the folder's jax.

  Args:
    these: the tools.
    folder: the checkout.
    program: the program.
    xla_flags: for as many devices as it needs.
  """
  done = _run([these.python, "-c", program], folder, {
      "JAX_PLATFORMS": "cpu",
      "XLA_FLAGS": xla_flags})
  return done.stdout + done.stderr


def outcomes(these: Tools, folder: pathlib.Path,
             ids: Sequence[str]) -> dict[str, str]:
  """The outcome of each test, as upstream's pytest runs it.

  Each file has a process of its own, for each asks for its number of devices;
  where that dies, each test.
  """
  by_file: dict[str, list[str]] = {}
  for one in ids:
    by_file.setdefault(one.partition("::")[0], []).append(one)
  return {i: o for mine in by_file.values()
          for i, o in _of_file(these, folder, mine).items()}


def _of_file(these: Tools, folder: pathlib.Path,
             ids: Sequence[str]) -> dict[str, str]:
  with cache.scratch() as scratch:
    log = scratch / "log.xml"
    try:
      _run([these.python, "-m", "pytest", "-q", "-p", "no:cacheprovider",
            f"--junitxml={log}", *ids], folder, {"JAX_PLATFORMS": "cpu"})
    except subprocess.TimeoutExpired:
      log.unlink(missing_ok=True)
    found = _read(log, ids) if log.is_file() else {}
  if found or len(ids) == 1:
    return {i: found.get(i, DIED) for i in ids}
  return {i: o for one in ids for i, o in _of_file(
      these, folder, [one]).items()}


def _read(log: pathlib.Path, ids: Sequence[str]) -> dict[str, str]:
  named = {_key(i): i for i in ids}
  found = {}
  for case in ElementTree.parse(log).iter("testcase"):
    key = f"{case.get('classname')}.{case.get('name')}"
    kinds = {child.tag for child in case}
    found[named.get(key, key)] = (
        FAILED if kinds & {"failure", "error"} else
        SKIPPED if "skipped" in kinds else PASSED)
  return found


def _key(test: str) -> str:
  """The name of a test in pytest's log, by its id."""
  file, *rest = test.split("::")
  return ".".join([file.removesuffix(".py").replace("/", "."), *rest])
