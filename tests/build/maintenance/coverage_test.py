# SPDX-License-Identifier: Apache-2.0
"""Coverage of a mutant's lines by tests."""

import json
import os
import pathlib

from mend.mutation import coverage, mutants
from mend.proof import environments, pytest_run
from mend.releases import bases, interpreters
from mend.trees import tree

TABLE = """\
import tables
def rule(x):
  y = x
  return y
def other(x):
  return x
tables.rules[loop_p] = rule
def late(x):
  z = other(x)
  return z
"""


class _Tree:
  """The part of a mended tree that `Coverage` reads."""
  files = added = {"jax/ours.py": TABLE}


def _coverage(*lefts):
  found = [mutants.Mutant(str(n), "varying/loops", "jax/ours.py", left, "")
           for n, left in enumerate(lefts)]
  return found, coverage.Coverage(pathlib.Path("python"), found, _Tree)


def test_lines_of_a_change_are_told_from_those_around():
  left = TABLE.replace("  z = other(x)\n", "  z = x\n")
  (found,), _ = _coverage(left)
  lines = list(coverage._lines(found, 3, _Tree.files, _Tree.added))
  assert lines == [("jax/ours.py", 9, 6), ("jax/ours.py", 9, 7),
                   ("jax/ours.py", 10, 7)]


def test_coverage_of_a_registration_is_that_of_its_rule():
  left = TABLE.replace("tables.rules[loop_p] = rule", "pass")
  (found,), _ = _coverage(left)
  lines = list(coverage._lines(found, 0, _Tree.files, _Tree.added))
  assert lines == [("jax/ours.py", 7, 0), ("jax/ours.py", 3, 1),
                   ("jax/ours.py", 4, 1)]


def test_the_likeliest_tests_come_first_and_all_in_the_end():
  (found,), known = _coverage(
      TABLE.replace("tables.rules[loop_p] = rule", "pass"))
  test = lambda name, marks=(), bound=(), took=1.: coverage.Test(
      name, frozenset(marks), frozenset(bound), took)
  tests = {"a": (test("no", took=.1), test("slow", [1], ["loop"], 19.),
                 test("quick", [1], ["loop"])),
           "b": (test("binds", bound=["loop"], took=.1),), "c": ()}
  known.tests_of = lambda file, one: tests[file]
  assert list(known.batches(found, list(tests))) == [
      ("a", ["quick", "slow"]), ("b", ["binds"]), ("a", ["no"]), ("c", [])]
  assert list(known.batches(found, list(tests), one=True, few=True)) == [
      ("a", ["quick", "slow"]), ("c", [])]


def test_a_change_inside_of_a_function_is_tried_with_the_tests_that_run_it():
  (found,), known = _coverage(TABLE.replace("  z = other(x)\n", "  z = x\n"))
  runs = coverage.Test("runs", frozenset([1]), frozenset(), 1.)
  other = coverage.Test("other", frozenset(), frozenset(), 1.)
  starts = "tests/varying/two_processes_test.py"
  tests = {"a": (other, runs), "b": (other,), starts: (other,)}
  known.tests_of = lambda file, one: tests[file]
  assert list(known.batches(found, ["a", "b"])) == [("a", ["runs"])]
  assert list(known.batches(found, ["b"])) == [("b", ["other"])]
  assert list(known.batches(found, ["a", "b", starts])) == [
      ("a", ["runs"]), (starts, ["other"])]


def test_files_that_another_thread_runs_come_last():
  _, known = _coverage(TABLE)
  known.tests_of = lambda file, one: (file,)
  known._tests["known", False] = ()
  with known._locks["busy", False], known._locks["known", False]:
    assert list(known._of_each(["busy", "known", "free"], False)) == [
        (file, (file,)) for file in ("known", "free", "busy")]


def test_the_first_attempt_looks_at_one_case_of_each_test(monkeypatch):
  (found,), known = _coverage(TABLE.replace("  z = other(x)\n", "  z = x\n"))
  asked = []
  def run(file, one):
    asked.append((file, one))
    return (coverage.Test("runs", frozenset([1]), frozenset(), 1.),)
  monkeypatch.setattr(known, "_run", run)
  few = known.batches(found, ["a"], one=True, few=True)
  assert list(few) == [("a", ["runs"])]
  assert list(known.batches(found, ["a"])) == [("a", ["runs"])]
  assert asked == [("a", True), ("a", False)]


def test_coverage_is_written_down(kept_cache, tmp_path):
  base = bases.one("0.12.0.1")
  python = environments.build(
      base, python=interpreters.for_base(base, lowest=True)).mended
  (tmp_path / "site-packages").mkdir()
  tree.write(tmp_path / "site-packages" / "ours.py", TABLE.replace(
      "import tables\n", "\n").replace("tables.rules[loop_p] = rule", ""))
  tree.write(tmp_path / "test_it.py", """\
import ours
def test_one():
  assert ours.rule(2) == 2
def test_two():
  assert ours.late(2) == ours.rule(2)
def test_none():
  pass
""")
  tree.write(tmp_path / "marks", json.dumps({"ours.py": {"4": [1], "9": [2]}}))
  pytest_run.run_file(
      python, tmp_path / "test_it.py", limit=60,
      options=("-p", "executed_lines"),
      env={"PYTHONPATH": os.pathsep.join((
          str(bases.ROOT / "build" / "probes"),
          str(tmp_path / "site-packages"))),
           "MEND_MARKS": str(tmp_path / "marks"),
           "MEND_EXECUTED": str(tmp_path / "executed")})
  lines = (tmp_path / "executed").read_text().splitlines()
  assert {r["id"]: r["marks"] for r in map(json.loads, lines)} == {
      "test_one": [1], "test_two": [1, 2], "test_none": []}
