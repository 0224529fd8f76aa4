"""The deletion check: what can be left out, and who misses it."""

import ast
import json
import os
import pathlib
import queue
import types

from mend.editing import patches
from mend.proof import executed, missing, needed, pytest_run, sides
from mend.proof.pytest_run import Outcome
from mend.releases import bases, interpreters, source
from mend.trees import omissions, overlays, tree
import pytest

MODULE = """\
import tables
NAMES = ('a', 'b', 'c')
RULES = {'while': one, **dict.fromkeys(('scan', 'cond'), two)}
tables.rules[p] = rule
register(a_p, b_p, how=1)
register(c_p, rule)
for _p in (d_p, e_p):
  tables.rules[_p] = other
if hasattr(tables, 'late'):
  tables.late.append(rule)
lower = 1
def f():
  tables.rules[p] = None
"""


def test_each_registration_is_found_and_leaves_a_module_that_parses():
  found = list(omissions._registrations(MODULE))
  assert [what for _, what, _ in found] == [
      "'a'", "'b'", "'c'", "'while': one", "'scan'", "'cond'",
      "tables.rules[p] = rule", "a_p", "b_p", "register(c_p, rule)", "d_p",
      "e_p", "tables.late.append(rule)"]
  texts = [left for *_, left in found]
  assert len(set(texts)) == len(texts)
  for text in texts:
    ast.parse(text)
    assert text != MODULE
  assert "dict.fromkeys(('cond', 'cond')" in texts[4]
  assert "RULES = { **dict" in texts[3]


def test_an_edit_is_left_out_alone():
  base, series = bases.one("0.12.0.1"), patches.load()
  origin = source.pristine(base)
  result = tree.mended(series, base, origin)
  found = omissions.of_result(result, series, origin)
  edits = [o for o in found if o.kind == "edit"]
  assert len(edits) > 100 and len(found) - len(edits) > 50
  for omission in edits[:20]:
    whole = result.files[omission.file]
    assert omission.text != whole
    assert omission.text != tree.read(origin / omission.file) or sum(
        e.file == omission.file for p in series
        for e in p.edits_for(base)) == 1


def test_rule_modules_that_enter_nothing_are_not_tried():
  in_vain = lambda what, **added: omissions._enters_nothing(
      "jax/_src/varying/__init__.py", what,
      {f"jax/_src/varying/{name.replace('__', '/')}.py": text
       for name, text in added.items()})
  assert in_vain("'loops'")  # of another base
  assert not in_vain("'loops'", loops="")
  assert not in_vain("'loops'", rules__loops="")
  assert not in_vain("'rules.loops'", rules__loops="")
  uses = "from jax._src.varying.rules import loops\n"
  assert in_vain("'loops'", rules__loops="", rules__scans=uses)
  assert not in_vain("'loops'", rules__loops="", rules__scans=uses[:-2])
  assert not in_vain("'rules.loops'", rules__loops="", rules__scans=uses)
  assert not in_vain("register(c_p, rule)")


@pytest.fixture
def overlay(tmp_path):
  jax = tmp_path / "site-packages" / "jax"
  tree.write(jax / "core.py", "whole\n")
  return jax, overlays.Overlay(jax, tmp_path / "over")


def test_an_overlay_leaves_the_original_alone(overlay):
  jax, over = overlay
  here = over.folder / "jax" / "core.py"
  with pytest.raises(KeyboardInterrupt):
    with over.holding("jax/core.py", "part\n"):
      assert here.read_text() == "part\n"
      assert (jax / "core.py").read_text() == "whole\n"
      raise KeyboardInterrupt
  assert here.read_text() == "whole\n"


def test_what_no_test_misses_is_listed():
  base = bases.one("0.12.0.1")
  one, two = (omissions.Omission(label, "varying/loops", "f", "", "edit")
              for label in ("one", "two"))
  text = needed.section(base, [needed.Missed(one, "a_test A.b", True),
                               needed.Missed(two, "", False)])
  assert text.splitlines()[-1] == "* two"
  assert text.count("| varying | 2     | 0 ") == 1


def test_a_registration_counts_that_a_test_misses_on_another_release():
  base = bases.one("0.12.0.1")
  edit, entry, other = (
      omissions.Omission(label, "varying/loops", "f", "", kind)
      for label, kind in (("e", "edit"), ("r", "registration"),
                          ("s", "registration")))
  here = [needed.Missed(o, "", False) for o in (edit, entry, other)]
  there = [needed.Missed(o, "a_test A.b", True) for o in (edit, entry)]
  found = needed.missed_registrations([*here, *there])
  assert found == {"r"}
  text = needed.section(base, here, found)
  assert text.splitlines()[-2:] == ["* e", "* s"]
  assert "| varying | 1     | 2             | 0" in text
  assert text.splitlines()[4].split("|")[-3:-1] == [" 1                  ",
                                                    " 2       "]


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
  """What `Executed` reads of a mended tree."""
  files = added = {"jax/ours.py": TABLE}


def _executed(*lefts):
  found = [omissions.Omission(str(n), "varying/loops", "jax/ours.py", left, "")
           for n, left in enumerate(lefts)]
  return found, executed.Executed(pathlib.Path("python"), found, _Tree)


def test_lines_of_what_is_left_out_are_told_from_those_around():
  left = TABLE.replace("  z = other(x)\n", "  z = x\n")
  (found,), _ = _executed(left)
  lines = list(executed._lines(found, 3, _Tree.files, _Tree.added))
  assert lines == [("jax/ours.py", 9, 6), ("jax/ours.py", 9, 7),
                   ("jax/ours.py", 10, 7)]


def test_of_a_registration_its_rule_is_looked_for():
  left = TABLE.replace("tables.rules[loop_p] = rule", "pass")
  (found,), _ = _executed(left)
  lines = list(executed._lines(found, 0, _Tree.files, _Tree.added))
  assert lines == [("jax/ours.py", 7, 0), ("jax/ours.py", 3, 1),
                   ("jax/ours.py", 4, 1)]


def test_the_likeliest_tests_come_first_and_all_in_the_end():
  (found,), known = _executed(
      TABLE.replace("tables.rules[loop_p] = rule", "pass"))
  test = lambda name, marks=(), bound=(), took=1.: executed.Test(
      name, frozenset(marks), frozenset(bound), took)
  tests = {"a": (test("no", took=.1), test("slow", [1], ["loop"], 7.),
                 test("quick", [1], ["loop"])),
           "b": (test("binds", bound=["loop"], took=.1),), "c": ()}
  known.of = tests.__getitem__
  assert list(known.batches(found, list(tests))) == [
      ("a", ["quick", "slow"]), ("b", ["binds"]), ("a", ["no"]), ("c", [])]
  assert list(known.batches(found, list(tests), brief=True)) == [
      ("a", ["quick", "slow"]), ("c", [])]


def test_what_is_inside_of_a_function_is_tried_with_those_that_run_it():
  (found,), known = _executed(TABLE.replace("  z = other(x)\n", "  z = x\n"))
  runs = executed.Test("runs", frozenset([1]), frozenset(), 1.)
  other = executed.Test("other", frozenset(), frozenset(), 1.)
  starts = "tests/varying/two_processes_test.py"
  known.of = {"a": (other, runs), "b": (other,), starts: (other,)}.__getitem__
  assert list(known.batches(found, ["a", "b"])) == [("a", ["runs"])]
  assert list(known.batches(found, ["b"])) == [("b", ["other"])]
  assert list(known.batches(found, ["a", "b", starts])) == [
      ("a", ["runs"]), (starts, ["other"])]


def test_files_that_another_thread_runs_come_last():
  _, known = _executed(TABLE)
  known.of = lambda file: (file,)
  known._tests["known"] = ()
  with known._locks["busy"], known._locks["known"]:
    assert list(known._of_each(["busy", "known", "free"])) == [
        (file, (file,)) for file in ("known", "free", "busy")]


@pytest.mark.parametrize("misses,brief,asked", [
    (["a T.x"], False, [("a", ["T.x"])]),  # as on the other release
    (["b T.y"], False, [("a", ["T.x"]), ("b", ["T.y"])]),
    ([], False, [("a", ["T.x"]), ("b", ["T.y"]), ("b", ["T.z"]),
                 ("b", ["T.y"]), ("b", ["T.z"])]),
    (["b T.z"], True, [("a", ["T.x"]), ("b", ["T.y"]), ("b", ["T.y"])])])
def test_what_missed_it_elsewhere_is_tried_first(overlay, misses, brief,
                                                 asked):
  runner = needed.Runner.__new__(needed.Runner)
  left_out = omissions.Omission("o", "varying/loops", "jax/core.py", "", "edit")
  runner._briefly = {left_out} if brief else ()
  runner._overlays = queue.SimpleQueue()
  runner._overlays.put(overlay[1])
  runner._executed = types.SimpleNamespace(
      batches=lambda omission, files, brief: [
          ("b", [name]) for name in ["T.y", "T.z"][:1 if brief else 2]])
  seen = []
  def first_failure(over, file, tests):
    assert over is overlay[1]
    seen.append((file, tests))
    return next((m for m in misses if m == f"{file} {tests[0]}"), "")
  runner._first_failure = first_failure
  test, own = runner._ask(left_out, ["a"], ["b"], "a T.x")
  found = "" if brief else "".join(misses)
  assert (test, own, seen) == (found, bool(found), asked)


def test_all_tests_run_without_what_the_likeliest_miss_on_no_base(monkeypatch):
  """One and two are missed by a likely test on one base; three by another."""
  todo = [omissions.Omission(name, "p", "f", "", "registration")
          for name in ("one", "two", "three", "none")]
  monkeypatch.setattr(needed, "_Things",
                      lambda *_: types.SimpleNamespace(todo=todo))
  asked = []
  def look_at(base, series, its, todo, brief=False):
    asked.append((base.version, brief, " ".join(o.label for o in todo)))
    likely = {"0.6.0": ("one",), "0.12.0.1": ("two",)}[base.version]
    misses = likely if brief else (*likely, "three")
    return [needed.Missed(o, "t" if o.label in misses else "", True)
            for o in todo]
  monkeypatch.setattr(needed, "_look_at", look_at)
  verdict = needed.run([bases.one("0.6.0"), bases.one("0.12.0.1")], (), False)
  assert asked == [("0.6.0", True, "one two three none"),
                   ("0.12.0.1", True, "one two three none"),
                   ("0.6.0", False, "three none"), ("0.12.0.1", False, "none")]
  assert verdict.words.startswith("2 of 8 ")  # none, on either base


@pytest.mark.parametrize("runs,found", [
    ([Outcome("failed")], "a T.t"),
    ([Outcome("failed", died=True), Outcome("passed")], ""),
    ([Outcome("failed", died=True)] * 2, "a T.t")])
def test_a_process_that_dies_is_asked_again(runs, found):
  runner = needed.Runner.__new__(needed.Runner)
  left = [{"T.s": Outcome("passed"), "T.t": outcome} for outcome in runs]
  runner._run = lambda overlay, file, tests: left.pop(0)
  runner._died = set()
  assert runner._first_failure(None, "a", ["T.s", "T.t"]) == found
  assert not left
  assert runner._died == ({found} if runs[-1].died else set())


@pytest.mark.parametrize("died", [False, True])
def test_what_a_dying_process_says_is_not_remembered(died):
  runner = needed.Runner.__new__(needed.Runner)
  runner._base, runner._briefly = bases.one("0.6.0"), ()
  runner._died = {"tests/a_test.py T.t"} if died else set()
  runner._files_of = lambda omission: ((), ())
  runner._ask = lambda *_: ("tests/a_test.py T.t", True)
  found = omissions.Omission("o", "varying/loops", "jax/core.py", "", "edit")
  assert runner.look(found).test
  runner._ask = lambda *_: ("", False)
  assert bool(runner.look(found).test) == (not died)


def test_which_lines_a_test_runs_is_written_down(kept_cache, tmp_path):
  base = bases.one("0.12.0.1")
  python = sides.build_sides(
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


def test_each_test_that_is_kept_is_there():
  classes, methods = {}, set()
  for path in (bases.ROOT / "tests").rglob("*.py"):
    nodes = list(ast.walk(ast.parse(tree.read(path))))
    classes[str(path.relative_to(bases.ROOT))] = {
        n.name for n in nodes if isinstance(n, ast.ClassDef)}
    methods |= {n.name for n in nodes if isinstance(n, ast.FunctionDef)
                and n.name.startswith("test")}  # some are inherited
  looked_at = 0
  for base in bases.all_bases():
    for file, names in missing.of(base).items():
      for name in names:
        looked_at += 1
        test_case, _, method = name.partition(".")
        assert test_case in classes[file], (base.version, file, name)
        assert any(map(method.startswith, methods)), (file, name)
  assert looked_at > 500
