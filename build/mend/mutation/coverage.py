# SPDX-License-Identifier: Apache-2.0
"""Coverage of the mutants by tests, so that those that cover one run first.

Each test file runs once on the whole wheel, and a plugin writes down, test by
test, which of the lines that a mutant changes were run, which functions around
them, or named by them, and which primitives were bound. A change inside of a
function is tried with the tests that run it, and with those of files that
start processes. For every other mutant coverage only orders the tests, and one
that no test is known to cover is tried with all: what runs while a module is
imported is not written down. The first attempt looks at one case of each test,
so that most files never run whole.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import functools
import json
import pathlib
import re
import threading

from mend.editing import syntax
from mend.ground import cache
from mend.mutation.mutants import Mutant
from mend.proof import fork_servers, pytest_run, testing
from mend.releases import bases
from mend.trees import tree

_FIRST, _SECONDS = 30, 20.  # the likeliest tests, and how long they take
_LIMIT = 120.0  # seconds for one test
_PLUGIN = ("-p", "executed_lines")


@dataclasses.dataclass(frozen=True)
class Test:
  """A test, the marks that it ran, the primitives it bound, its seconds."""
  name: str
  marks: frozenset[int]
  bound: frozenset[str]
  took: float


class Coverage:
  """Coverage of one base's mutants by its tests.

  Args:
    python: one that has the whole wheel; before 3.12 it has no sys.monitoring,
      and nothing is known of what a test runs.
    every: all mutants of the base.
    result: the mended tree.
    server: of that Python, with jax imported; a new process a file if None.
  """

  def __init__(self, python: pathlib.Path, every: Sequence[Mutant],
               result: tree.Result, server: fork_servers.Server | None = None):
    self._python, self._server = python, server
    self._number = {m: n for n, m in enumerate(every)}
    whole = result.files
    marks: dict[str, dict[int, list[int]]] = collections.defaultdict(
        lambda: collections.defaultdict(list))
    for mutant, number in self._number.items():
      for file, line, mark in _lines(mutant, number, whole, result.added):
        marks[file][line].append(mark)
    self._marks = json.dumps(marks, sort_keys=True)
    self._names = {m: frozenset(_primitives(_changed(
        whole[m.file], m.text)[1])) for m in every}
    self._inside = {m: _is_inside(m, whole[m.file]) for m in every}
    self._tests: dict[tuple[str, bool], tuple[Test, ...]] = {}
    self._locks: dict[tuple[str, bool], threading.Lock] = (
        collections.defaultdict(threading.Lock))

  def batches(self, mutant: Mutant, files: Sequence[str], one: bool = False,
              few: bool = False) -> Iterator[tuple[str, list[str]]]:
    """Tests to run together, (file, names); the likeliest to fail first.

    No names are all of a file of which nothing is known.

    Args:
      mutant: to be killed.
      files: whose tests are to be run: if the change is inside of a function
        those that run it, or may, if any do, and else all.
      one: one case of each test alone.
      few: only the first of them; all where nothing is known.
    """
    likely = sorted((-self._score(mutant, test), test.took, file, test.name)
                    for file, tests in self._of_each(files, one)
                    for test in tests)
    first, seconds = 0, 0.
    for score, took, *_ in likely[:_FIRST]:
      if score == 0 or first and seconds + took > _SECONDS:
        break
      first, seconds = first + 1, seconds + took
    run = sum(score < 0 for score, *_ in likely)
    rest = [test for test in likely[max(first, run):]
            if not run or not self._inside[mutant] or _starts(test[2])]
    later = () if few else (likely[first:run], rest)
    for part in (likely[:first], *later):
      by_file = collections.defaultdict(list)
      for _, _, file, name in part:
        by_file[file].append(name)
      yield from by_file.items()
    yield from ((file, []) for file in files if not self.tests_of(file, one))

  def _score(self, mutant: Mutant, test: Test) -> int:
    number = self._number[mutant]
    return (2 * (2 * number in test.marks) + (2 * number + 1 in test.marks)
            + 2 * len(self._names[mutant] & test.bound))

  def _of_each(self, files: Sequence[str], one: bool) -> Iterator[
      tuple[str, tuple[Test, ...]]]:
    """The tests of each file; those another thread is running come last."""
    left = list(files)
    while left:
      free = (f for f in left if (f, one) in self._tests
              or not self._locks[f, one].locked())
      left.remove(file := next(free, left[0]))
      yield file, self.tests_of(file, one)

  def tests_of(self, file: str, one: bool) -> tuple[Test, ...]:
    """The tests of a file, or one case of each; it runs if it has not yet."""
    with self._locks[file, one]:
      if (file, one) not in self._tests:
        self._tests[file, one] = self._run(file, one)
      return self._tests[file, one]

  def _run(self, file: str, one: bool) -> tuple[Test, ...]:
    path = bases.ROOT / file
    case = {"MEND_CASE": "0"} if one else {}
    memory = cache.folder("coverage") / cache.key(
        str(self._python), self._marks, tree.read(path), *case)
    if not memory.is_file():
      with cache.scratch() as folder:
        (wanted := folder / "marks").write_text(self._marks, encoding="utf-8")
        (found := folder / "executed").touch()
        pytest_run.run_file(
            self._python, path, limit=_LIMIT,
            options=(*testing.OPTIONS, *_PLUGIN), server=self._server,
            env={**testing.JOB_ENVIRONMENT, **case, "MEND_MARKS": str(wanted),
                 "MEND_EXECUTED": str(found)})
        text = found.read_text(encoding="utf-8")
      with cache.whole(memory) as made:
        made.write_text(text, encoding="utf-8")
    records = map(json.loads, memory.read_text(encoding="utf-8").splitlines())
    return tuple(Test(r["id"], frozenset(r["marks"]), frozenset(r["bound"]),
                      r["took"]) for r in records)


def _changed(whole: str, left: str) -> tuple[range, str]:
  """The numbers, from 1, of the lines that differ in `left`, and their text."""
  old, new = whole.splitlines(), left.splitlines()
  most = min(len(old), len(new))
  same = next((i for i in range(most) if old[i] != new[i]), most)
  after = next((i for i in range(most - same) if old[-1 - i] != new[-1 - i]),
               most - same)
  lines = range(same + 1, max(len(old) - after, same + 1) + 1)
  return lines, "\n".join(old[lines.start - 1:lines.stop - 1])


@functools.cache
def _starts(file: str) -> bool:
  """True if the file's tests start processes, whose coverage is not known."""
  path = bases.ROOT / file
  return path.is_file() and bool(
      re.search(r"\b(subprocess|multiprocess\w*)\b", tree.read(path)))


def _is_inside(mutant: Mutant, whole: str) -> bool:
  """True if the change is in the body of one function."""
  lines, _ = _changed(whole, mutant.text)
  return any(lines.start in f.body and lines.stop - 1 in f.body
             for f in _functions(whole))


def _primitives(text: str) -> Iterator[str]:
  for name in re.findall(r"\w+", text):
    yield name.removesuffix("_p")


def _lines(mutant: Mutant, number: int, whole: Mapping[str, str],
           added: Mapping[str, str]) -> Iterator[tuple[str, int, int]]:
  """(file, line, mark): mark 2n for changed lines, 2n + 1 for those around."""
  lines, text = _changed(whole[mutant.file], mutant.text)
  for line in lines:
    yield mutant.file, line, 2 * number
  around = [f for f in _functions(whole[mutant.file])
            if lines.start in f.body or lines.start <= f.line < lines.stop]
  for line in around[-1].body if around else ():
    yield mutant.file, line, 2 * number + 1
  if around:
    return
  names = set(re.findall(r"\w+", text))
  for file, source in added.items():
    if file.endswith(".py") and any(name in source for name in names):
      for function in _functions(source):
        if function.name in names:
          for line in function.body:
            yield file, line, 2 * number + 1


@dataclasses.dataclass(frozen=True)
class _Function:
  name: str
  line: int
  body: range  # its lines


@functools.cache
def _functions(text: str) -> list[_Function]:
  """All functions of a module, an inner one after that around it."""
  return [
      _Function(syntax.definition_name(node), node.range().start.line + 1,
                range(body.start.line + 1, body.end.line + 2))
      for node in syntax.walk(syntax.parse(text))
      if node.kind() == "function_definition"
      for body in [syntax.field(node, "body").range()]]
