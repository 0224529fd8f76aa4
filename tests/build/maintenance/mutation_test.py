# SPDX-License-Identifier: Apache-2.0
"""Mutation testing: the mutants, and the tests that kill them."""

import ast
import queue
import types

from mend.editing import patches
from mend.mutation import mutants, overlays, runner, score
from mend.proof.pytest_run import Outcome
from mend.releases import bases, source
from mend.trees import tree
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
  found = list(mutants._registrations(MODULE))
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


def test_a_mutant_lacks_one_edit():
  base, series = bases.one("0.12.0.1"), patches.load()
  origin = source.pristine(base)
  result = tree.mended(series, base, origin)
  found = mutants.generate(result, series, origin)
  edits = [m for m in found if m.kind == "edit"]
  assert len(edits) > 100 and len(found) - len(edits) > 50
  for mutant in edits[:20]:
    whole = result.files[mutant.file]
    assert mutant.text != whole
    assert mutant.text != tree.read(origin / mutant.file) or sum(
        e.file == mutant.file for p in series
        for e in p.edits_for(base)) == 1


def test_rule_modules_that_enter_nothing_make_no_mutant():
  in_vain = lambda what, **added: mutants._enters_nothing(
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


def test_survivors_are_listed():
  base = bases.one("0.12.0.1")
  one, two = (mutants.Mutant(label, "varying/loops", "f", "", "edit")
              for label in ("one", "two"))
  text = score.section(base, [runner.MutantResult(one, "a_test A.b", True),
                               runner.MutantResult(two, "", False)])
  assert text.splitlines()[-1] == "* two"
  assert text.count("| varying | 2     | 0 ") == 1


def test_a_registration_is_killed_that_a_test_kills_on_another_release():
  base = bases.one("0.12.0.1")
  edit, entry, other = (
      mutants.Mutant(label, "varying/loops", "f", "", kind)
      for label, kind in (("e", "edit"), ("r", "registration"),
                          ("s", "registration")))
  here = [runner.MutantResult(m, "", False) for m in (edit, entry, other)]
  there = [runner.MutantResult(m, "a_test A.b", True) for m in (edit, entry)]
  found = score.killed_registrations([*here, *there])
  assert found == {"r"}
  text = score.section(base, here, found)
  assert text.splitlines()[-2:] == ["* e", "* s"]
  assert "| varying | 1     | 2             | 0" in text
  assert text.splitlines()[4].split("|")[-3:-1] == [" 1                  ",
                                                    " 2        "]


@pytest.mark.parametrize("kills,brief,asked", [
    (["a T.x"], False, [("a", ["T.x"])]),  # as on the other release
    (["b T.y"], False, [("a", ["T.x"]), ("b", ["T.y"])]),
    (["b T.z"], False, [("a", ["T.x"]), *2 * [("b", ["T.y"])],
                        ("b", ["T.y"]), ("b", ["T.z"])]),
    ([], False, [("a", ["T.x"]), *3 * [("b", ["T.y"])], ("b", ["T.z"])]),
    (["b T.z"], True, [("a", ["T.x"]), ("b", ["T.y"]), ("b", ["T.y"])])])
def test_what_killed_it_elsewhere_is_tried_first(overlay, kills, brief,
                                                 asked):
  made = runner.Runner.__new__(runner.Runner)
  mutant = mutants.Mutant("o", "varying/loops", "jax/core.py", "", "edit")
  made._briefly = {mutant} if brief else ()
  made._overlays = queue.SimpleQueue()
  made._overlays.put(overlay[1])
  made._coverage = types.SimpleNamespace(
      batches=lambda mutant, files, one, few: [
          ("b", [name]) for name in ["T.y", "T.z"][:1 if one else 2]])
  seen = []
  def first_failure(over, file, tests):
    assert over is overlay[1]
    seen.append((file, tests))
    return next((k for k in kills if k == f"{file} {tests[0]}"), "")
  made._first_failure = first_failure
  test, own = made._first_killer(mutant, ["a"], ["b"], "a T.x")
  found = "" if brief else "".join(kills)
  assert (test, own, seen) == (found, bool(found), asked)


@pytest.mark.parametrize("kind,brief,stages", [
    ("edit", True, ["ab+", "cd+"]), ("registration", True, ["ab+", "cd+"]),
    ("edit", False, ["ab", "cd+", "AB"]),
    ("registration", False, ["ab", "cd+", "AB", "CD"])])
def test_all_cases_of_another_patch_run_on_registrations_alone(kind, brief,
                                                               stages):
  mutant = mutants.Mutant("o", "varying/loops", "jax/core.py", "", kind)
  assert [(files if one else files.upper()) + "+" * few for files, one, few in
          runner._stages(mutant, "ab", "cd", brief)] == stages


def test_all_tests_run_on_what_survives_the_likeliest_everywhere(monkeypatch):
  """A likely test kills one and two on one base; another kills three."""
  todo = [mutants.Mutant(name, "p", "f", "", "registration")
          for name in ("one", "two", "three", "none")]
  monkeypatch.setattr(score, "_Mutants",
                      lambda *_: types.SimpleNamespace(todo=todo))
  asked = []
  def run_on(base, series, its, todo, brief=False):
    asked.append((base.version, brief, " ".join(m.label for m in todo)))
    likely = {"0.6.0": ("one",), "0.12.0.1": ("two",)}[base.version]
    kills = likely if brief else (*likely, "three")
    return [runner.MutantResult(m, "t" if m.label in kills else "", True)
            for m in todo]
  monkeypatch.setattr(score, "_run_on", run_on)
  verdict = score.run([bases.one("0.6.0"), bases.one("0.12.0.1")], (), False)
  assert asked == [("0.12.0.1", True, "one two three none"),
                   ("0.6.0", True, "one three none"),  # two is killed
                   ("0.6.0", False, "three none"), ("0.12.0.1", False, "none")]
  assert verdict.words.startswith("2 of 8 ")  # none, on either base


@pytest.mark.parametrize("runs,found", [
    ([Outcome("failed")], "a T.t"),
    ([Outcome("failed", died=True), Outcome("passed")], ""),
    ([Outcome("failed", died=True)] * 2, "a T.t")])
def test_a_process_that_dies_is_asked_again(runs, found):
  made = runner.Runner.__new__(runner.Runner)
  left = [{"T.s": Outcome("passed"), "T.t": outcome} for outcome in runs]
  made._run = lambda overlay, file, tests: left.pop(0)
  made._died, made._whole = set(), {("a", "T.t"): True}
  assert made._first_failure(None, "a", ["T.s", "T.t"]) == found
  assert not left
  assert made._died == ({found} if runs[-1].died else set())


@pytest.mark.parametrize("also,found", [(["T.u"], "a T.u"), ([], "")])
def test_a_test_that_fails_on_the_whole_wheel_kills_nothing(also, found):
  made = runner.Runner.__new__(runner.Runner)
  asked = []
  def run(overlay, file, tests):
    asked.append((overlay, *tests))
    outcomes = {}
    for test in tests:
      bad = test == "T.t" or overlay and test in also
      outcomes[test] = Outcome("failed" if bad else "passed")
      if bad:
        break
    return outcomes
  made._run, made._died, made._whole = run, set(), {}
  names = ["T.s", "T.t", "T.u"]
  assert made._first_failure("over", "a", names) == found
  assert asked == [("over", *names), (None, "T.t"), ("over", "T.u"),
                   *[(None, "T.u")] * len(also)]
  made._first_failure("over", "a", names)
  assert asked.count((None, "T.t")) == 1


@pytest.mark.parametrize("died", [False, True])
def test_what_a_dying_process_says_is_not_remembered(died):
  made = runner.Runner.__new__(runner.Runner)
  made._base, made._briefly = bases.one("0.6.0"), ()
  made._died = {"tests/a_test.py T.t"} if died else set()
  made._files_of = lambda mutant: ((), ())
  made._first_killer = lambda *_: ("tests/a_test.py T.t", True)
  found = mutants.Mutant("o", "varying/loops", "jax/core.py", "", "edit")
  assert made.run(found).test
  made._first_killer = lambda *_: ("", False)
  assert bool(made.run(found).test) == (not died)
