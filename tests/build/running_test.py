"""Test files that pass, fail, crash and hang; and how they are judged."""

import concurrent.futures
import dataclasses
import os
import pathlib
import sys
import threading
import time

from conftest import PATCH, REPRODUCTION, write
from mend import (bases, docs, jobs, patches, pytest_run, reproduce, sides,
                  testing, upstream, verdicts)
from mend.errors import MendError
from mend.pytest_run import Outcome
import pytest

TESTS = """
import os, time, unittest

class T(unittest.TestCase):
  def test_a_good(self): pass
  def test_b_bad(self): self.assertEqual(1, 2, "one is not two")
  def test_c_crash(self): os._exit(3)
  def test_d_skip(self): self.skipTest("not here")
  def test_e_hang(self): time.sleep(60)
  def test_f_good(self): pass
"""


def run(path, limit=2.0):
  return pytest_run.run_file(sys.executable, path, limit=limit, env={})


def test_a_crash_and_a_hang_cost_one_test_each(tmp_path):
  out = run(write(tmp_path / "some_test.py", TESTS))
  assert {k.split("_")[1]: v.status for k, v in out.items()} == {
      "a": "passed", "b": "failed", "c": "failed", "d": "skipped",
      "e": "failed", "f": "passed"}
  assert "one is not two" in out["T.test_b_bad"].text
  assert "died (exit 3)" in out["T.test_c_crash"].text
  assert "no end within 2 s" in out["T.test_e_hang"].text


def test_a_file_that_does_not_import_is_a_failure(tmp_path):
  out = run(write(tmp_path / "some_test.py", "import nothing_of_this_name\n"))
  assert "nothing_of_this_name" in out[pytest_run.COLLECTING].text
  out = run(write(tmp_path / "other_test.py", "import os; os._exit(9)\n"))
  assert "died (exit 9)" in out[pytest_run.COLLECTING].text


def test_a_file_without_tests_is_a_failure(tmp_path):
  out = run(write(tmp_path / "empty_test.py", ""))
  assert testing.judge_mended("empty", out, ()).failures == [
      "empty: no test ran"]


RED = patches.Red(("T.test_red*",), "AssertionError.*rude")
RUDE = Outcome("failed", "AssertionError: a rude greeting")


def pristine(outcomes, *reds):
  return testing.judge_pristine("toy", outcomes, reds)


def test_red_for_the_stated_reason_counts():
  tally = pristine({"T.test_red_1": RUDE, "T.test_ok": Outcome("passed")}, RED)
  assert (tally.passed, tally.red, tally.failures) == (2, 1, [])


@pytest.mark.parametrize("outcome, words", [
    (Outcome("passed"), "declared red, and is passed"),
    (Outcome("skipped"), "declared red, and is skipped"),
    (Outcome("failed", "ValueError: other"), "for another reason"),
])
def test_red_that_is_not(outcome, words):
  (failure,) = pristine({"T.test_red": outcome}, RED).failures
  assert words in failure


def test_a_failure_that_nobody_declared():
  (failure,) = pristine({"T.test_new": RUDE}, RED).failures
  assert "no [[red]]" in failure


def test_a_missing_name_of_ours_does_not_count():
  text = "ModuleNotFoundError: No module named 'jax._src.polite'"
  red = patches.Red(("*",), "polite")
  (failure,) = pristine({"T.t": Outcome("failed", text)}, red).failures
  assert "our own names" in failure
  red = patches.Red(("*",), "polite", api_missing=True)
  assert not pristine({"T.t": Outcome("failed", text)}, red).failures
  text = "AttributeError: 'function' object has no attribute 'lower'"
  red = patches.Red(("*",), "AttributeError: 'function'.*'lower'")
  assert not pristine({"T.t": Outcome("failed", text)}, red).failures


def test_mended_must_pass_and_must_not_skip_a_regression():
  tally = testing.judge_mended("toy", {
      "T.test_red": Outcome("skipped"), "T.test_other": Outcome("skipped"),
      "T.test_bad": RUDE, "T.test_good": Outcome("passed")}, [RED])
  assert (tally.passed, tally.skipped, len(tally.failures)) == (1, 1, 2)


def test_a_red_pattern_must_match_a_test():
  tally = testing.judge_mended("toy", {"T.t": Outcome("passed")}, [RED])
  assert "no such test" in tally.failures[0]


def test_the_longest_files_on_mended_begin(base):
  make = lambda side, file: jobs.Job(base, side, sys.executable, file, ())
  small, large = "docs/patches.md", "CHANGELOG.md"
  made = [make(s, f) for f in (small, large) for s in ("pristine", "mended")]
  assert [(j.side, j.file) for j in jobs.longest_first(made)] == [
      ("mended", large), ("mended", small), ("pristine", large),
      ("pristine", small)]


def test_environments_are_made_while_checks_run():
  both = threading.Barrier(2)
  meet = lambda: both.wait(60)
  with concurrent.futures.ThreadPoolExecutor(2) as pool:
    made, done = jobs.submit_in_turn(pool, [meet, meet], [meet, meet, int])
    assert {f.result() for f in (*made, *done[:2])} == {0, 1}
    assert done[2].result() == 0


def test_the_first_error_ends_the_run():
  ran = []
  with pytest.raises(MendError, match="no index"):
    with jobs.pool() as pool:
      pool.submit(time.sleep, .2)
      for i in range(100):
        pool.submit(lambda i=i: (time.sleep(.05), ran.append(i)))
      raise MendError("no index", "try again")
  assert len(ran) < 50


def test_upstream_differences(base, capsys):
  before = {"T.b": Outcome("passed"), "T.d": RUDE, "T.e": Outcome("skipped")}
  after = {"T.a": Outcome("passed"), "T.b": RUDE, "T.c": Outcome("skipped"),
           "T.d": RUDE, "T.e": RUDE, "T.f": RUDE}
  counts = verdicts.compare("x_test.py", base, before, after)
  assert counts == {"passed": 1, "skipped": 1, "fail on pristine too": 1,
                    "changed on purpose": 0, "newly failing": 3}
  out = capsys.readouterr().out
  assert "NEWLY FAILING on 1.0: x_test.py T.b" in out and "T.d" not in out


def test_upstream_tests_that_are_changed_on_purpose(base, project, capsys):
  text = PATCH + """
[[supersedes]]
tests = ["x_test.py T.b*"]
why = "it asks for rudeness"
bases = "<2"
"""
  write(project / "patches" / "greeting.toml", text)
  series = patches.load(project)
  outcomes = {"T.b1": Outcome("passed")}, {"T.b1": RUDE}
  counts = verdicts.compare("x_test.py", base, *outcomes, series)
  assert counts["changed on purpose"] == 1 and not counts["newly failing"]
  assert "it asks for rudeness" in capsys.readouterr().out
  assert verdicts.compare("y_test.py", base, *outcomes, series)["newly failing"]
  newer = dataclasses.replace(base, version="2.0")
  assert verdicts.compare("x_test.py", newer, *outcomes,
                          series)["newly failing"]


def test_upstream_needs_a_checkout(tmp_path):
  with pytest.raises(MendError, match="no tests/ folder"):
    upstream.find_files(tmp_path, [])
  write(tmp_path / "tests" / "a_test.py", "")
  write(tmp_path / "tests" / "helper.py", "")
  assert upstream.find_files(tmp_path, []) == []
  assert len(upstream.find_files(tmp_path, ["tests/a_test.py"])) == 1
  with pytest.raises(MendError, match=r"no .*b_test\.py"):
    upstream.find_files(tmp_path, ["b_test"])


def test_only_some_tests_of_a_file(tmp_path):
  path = write(tmp_path / "x_test.py", """\
    import unittest


    class T(unittest.TestCase):
      def test_a(self): pass
      def test_b(self): pass
    """)
  outcomes = pytest_run.run_file(sys.executable, path, limit=60, env={},
                                 only=["T.test_b"])
  assert outcomes == {"T.test_b": Outcome("passed")}


def test_a_share_of_a_files_tests(tmp_path):
  body = "".join(f"  def test_{c}(self): self.assertNotEqual('{c}', 'c')\n"
                 for c in "dcbae")
  path = write(tmp_path / "x_test.py",
               f"import unittest\nclass T(unittest.TestCase):\n{body}")
  shares = [pytest_run.run_file(sys.executable, path, limit=60,
                                env={"MEND_SHARE": f"{k}/2"}) for k in (0, 1)]
  assert [sorted(s) for s in shares] == [
      ["T.test_a", "T.test_c", "T.test_e"], ["T.test_b", "T.test_d"]]
  few = pytest_run.run_file(sys.executable, path, limit=60,
                            env={"MEND_SHARE": "7/9"})
  assert list(few) == ["T.test_c"]  # at least one
  # What fails is run again by name, whatever the share.
  assert list(pytest_run.run_file(
      sys.executable, path, limit=60, env={"MEND_SHARE": "1/2"},
      only=["T.test_c"])) == ["T.test_c"]


def test_each_patch_takes_another_share(tmp_path, monkeypatch, base, project):
  (patch,) = patches.load(project)
  series = [dataclasses.replace(patch, id=name, upstream_tests=("a_test.py",))
            for name in ("one", "two")]
  monkeypatch.setattr(patches, "load", lambda: series)
  monkeypatch.setattr(upstream.sides, "of", lambda *a, **k: None)
  write(tmp_path / "tests" / "a_test.py", "")
  request = upstream.Request(tmp_path, [], 1., None, True, False, 2)
  assert [(j.label, j.number) for j in upstream._jobs(request, base)] == [
      ("one", 0), ("two", 1)]
  text = upstream._section(base, request, [])
  assert "each patch alone\n\nOne test in 2 of each file" in text


def test_upstreams_files_of_some_releases_only(base, project):
  (patch,) = patches.load(project)
  patch = dataclasses.replace(patch, upstream_tests=(
      "a_test.py", "old_test.py <1", "new_test.py >=1"))
  assert upstream.areas_of(patch, base) == ["a_test.py", "new_test.py"]


def test_pristine_runs_once_for_what_fails_with_any_patch(
    tmp_path, monkeypatch, base, project, capsys):
  (patch,) = patches.load(project)
  series = [dataclasses.replace(patch, id=name, upstream_tests=("a_test.py",))
            for name in ("one", "two")]
  monkeypatch.setattr(patches, "load", lambda: series)
  made = sides.Sides(pathlib.Path("pristine"), pathlib.Path("mended"), tmp_path)
  monkeypatch.setattr(upstream.sides, "of", lambda *a, **k: made)
  runs = []

  def run_file(python, path, *, limit, env, only=None):
    runs.append((str(python), env.get("MEND_SHARE"), only))
    if only:
      return {"T.old": RUDE, "T.new": Outcome("passed")}
    first = env["MEND_SHARE"] == "0/2"
    return {"T.old" if first else "T.new": RUDE, "T.good": Outcome("passed")}

  monkeypatch.setattr(upstream.pytest_run, "run_file", run_file)
  monkeypatch.setattr(jobs, "workers", lambda: 1)
  write(tmp_path / "tests" / "a_test.py", "")
  request = upstream.Request(tmp_path, [], 1., None, True, False, 2)
  rows = upstream._run_base(request, base)
  assert runs == [("mended", "0/2", None), ("mended", "1/2", None),
                  ("pristine", None, ["T.new", "T.old"])]
  counts = {label: counts for label, _, counts in rows}
  assert counts["one"]["fail on pristine too"] == 1
  assert counts["two"]["newly failing"] == 1
  assert "NEWLY FAILING on 1.0 with two: a_test.py T.new" in (
      capsys.readouterr().out)


def test_files_that_were_not_run_again_keep_their_rows(
    tmp_path, monkeypatch, base):
  monkeypatch.setattr(upstream.bases, "ROOT", tmp_path)
  page = write(tmp_path / upstream.DOCUMENT, """\
    <!-- upstream-tests: written by build.py docs -->
    <!-- end upstream-tests -->
    """)

  def rows(only, *files, share=1):
    request = upstream.Request(tmp_path, only, 1., None, False, True, share)
    counts = dict.fromkeys(verdicts.KINDS, 1)
    docs.write_section(upstream.DOCUMENT, "upstream-tests", upstream._section(
        base, request, [("all patches", f, counts) for f in files]))
    text = docs.section(page.read_text(), "## jax 1.0, together")
    return [row[1] for row in verdicts.rows_of(text)]

  assert rows([], "b_test.py", "c_test.py") == ["b_test.py", "c_test.py"]
  assert rows(["x"], "a_test.py", "c_test.py") == [
      "a_test.py", "b_test.py", "c_test.py"]
  assert rows(["x"], "d_test.py", share=2) == ["d_test.py"]
  assert rows([], "a_test.py") == ["a_test.py"]


def test_memory_kinds_are_asked_for_on_cpu(tmp_path):
  fake = "def test_device_matches(types):\n  return 'cpu' in types\n"
  write(tmp_path / "jax" / "__init__.py", "")
  write(tmp_path / "jax" / "_src" / "__init__.py", "")
  write(tmp_path / "jax" / "_src" / "test_util.py", fake)
  body = """\
    import unittest
    import jax._src.test_util as jtu


    class T(unittest.TestCase):
      def setUp(self):
        if not jtu.test_device_matches(["tpu", "gpu"]):
          self.skipTest("no memories on CPU")

      def test_in_its_body(self):
        self.assertFalse(jtu.test_device_matches(["tpu"]))
    """
  probes = bases.ROOT / "build" / "probes"
  env = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{probes}",
         "PYTEST_PLUGINS": "memory_kinds"}
  for name, status in (("memories_test", "passed"), ("x_test", "skipped")):
    path = write(tmp_path / f"{name}.py", body)
    outcomes = pytest_run.run_file(sys.executable, path, limit=60, env=env)
    assert outcomes["T.test_in_its_body"].status == status, name


def reproduction(body, tmp_path):
  path = write(
      tmp_path / "r.py",
      f'REPORT = "toy#1"\n\ndef seen():\n  "Line."\n  {body}\n')
  (item,) = reproduce._of_file(path, "greeting")
  return reproduce.run_one(item, sys.executable)


def test_reproductions_are_functions_with_a_line(project):
  (item,) = reproduce.collect(patches.load(project), project)
  assert (item.report, item.line) == ("toy#1", "greet() is polite.")
  for bad in (REPRODUCTION.replace('REPORT = "toy#1"', ""),
              REPRODUCTION.replace('"""greet() is polite."""', ""),
              'REPORT = "toy#1"\n'):
    write(project / "reproductions" / "greeting.py", bad)
    with pytest.raises(MendError, match="no reproduction"):
      reproduce.collect(patches.load(project), project)


@pytest.mark.parametrize("body, status, words", [
    ("return 'all well'", "PASS", "all well"),
    ("assert False, 'a rude\\nanswer'", "FAIL", "AssertionError: a rude"),
    ("import unittest; raise unittest.SkipTest('no such API')", "n/a",
     "no such API"),
    ("import sys; sys.exit(3)", "FAIL", "SystemExit"),
    ("import os; os._exit(3)", "FAIL", "the process died (exit 3)"),
])
def test_what_a_reproduction_says(tmp_path, body, status, words):
  outcome = reproduction(body, tmp_path)
  assert outcome.status == status and words in outcome.seen


def test_a_reproduction_that_never_ends(tmp_path, monkeypatch):
  monkeypatch.setattr(reproduce, "TIME_LIMIT", 1)
  outcome = reproduction("import time; time.sleep(60)", tmp_path)
  assert outcome.status == "FAIL" and "no end within 1 s" in outcome.seen


def test_reproduce_needs_a_python_with_jax(tmp_path):
  with pytest.raises(MendError, match="can't be run"):
    reproduce.describe(str(tmp_path / "python"))
  with pytest.raises(MendError, match="no jax that can be imported"):
    reproduce.describe(sys.executable)
