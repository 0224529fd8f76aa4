"""Test files that pass, fail, crash and hang; and how they are judged."""

import concurrent.futures
import dataclasses
import os
import pathlib
import sys
import threading
import time
import types

from conftest import PATCH, REPRODUCTION, write
from mend.editing import patches, reproductions
from mend.editing.expected_failures import Red
from mend.ground import pages, report
from mend.ground.errors import MendError
from mend.proof import (environments, failure_reasons, fork_servers, jobs,
                        judging, minimal_suite, pytest_run, reproduce, testing)
from mend.proof.pytest_run import Outcome
from mend.releases import bases
from mend.suites import clients, upstream, verdicts
import pytest

RUDE = Outcome("failed", "AssertionError: a rude greeting")
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


def run(path, server=None, limit=2.0):
  return pytest_run.run_file(sys.executable, path, limit=limit, env={},
                             server=server)


@pytest.fixture(params=["forked", "own process"])
def server(request):
  """A server with pytest imported, or None for a process of its own."""
  if request.param != "forked":
    yield None
    return
  with fork_servers.Servers(["pytest"], {}) as servers:
    made = servers.of(sys.executable)
    if made is None:
      pytest.skip("nothing is forked on this system")
    yield made


def test_a_crash_and_a_hang_cost_one_test_each(tmp_path, server):
  out = run(write(tmp_path / "some_test.py", TESTS), server)
  assert {k.split("_")[1]: v.status for k, v in out.items()} == {
      "a": "passed", "b": "failed", "c": "failed", "d": "skipped",
      "e": "failed", "f": "passed"}
  assert "one is not two" in out["T.test_b_bad"].text
  assert "died (exit 3)" in out["T.test_c_crash"].text
  assert "no end within 2 s" in out["T.test_e_hang"].text


def test_a_run_that_is_stopped_ends_its_tests(tmp_path, server, monkeypatch):
  monkeypatch.setattr(fork_servers, "stopping", threading.Event())
  path = write(tmp_path / "x_test.py",
               "import time\ndef test_a(): time.sleep(60)\n")
  began = time.monotonic()
  with pytest.raises(KeyboardInterrupt):
    with jobs.pool() as pool:
      future = pool.submit(run, path, server, limit=60.)
      time.sleep(1)
      raise KeyboardInterrupt
  assert time.monotonic() - began < 30
  assert isinstance(future.exception(), concurrent.futures.CancelledError)


def test_a_file_that_does_not_import_is_a_failure(tmp_path, server):
  out = run(write(tmp_path / "some_test.py", "import nothing_of_this_name\n"),
            server)
  assert "nothing_of_this_name" in out[pytest_run.COLLECTING].text
  out = run(write(tmp_path / "other_test.py", "import os; os._exit(9)\n"),
            server)
  assert "died (exit 9)" in out[pytest_run.COLLECTING].text


def test_a_folder_names_its_files_and_goes_on_past_one(tmp_path):
  root = tmp_path / "library"
  for name in ("one_test", "test_two"):
    write(root / "tests" / f"{name}.py", "def test_same(): pass\n")
  write(root / "tests" / "bad_test.py", "import nothing_of_this_name\n")
  out = pytest_run.run_file(sys.executable, root / "tests", limit=9., env={},
                            root=root)
  assert {k: v.status for k, v in out.items()} == {
      "tests/one_test.py test_same": "passed",
      "tests/test_two.py test_same": "passed",
      "(collecting) tests/bad_test.py": "failed"}
  out = pytest_run.run_file(sys.executable, root / "tests", limit=9., env={},
                            root=root, only=["tests/test_two.py test_same"])
  assert "tests/one_test.py test_same" not in out
  assert out["tests/test_two.py test_same"].status == "passed"


def test_libraries_are_pinned_and_have_tests_somewhere(tmp_path):
  base = bases.all_bases()[-1]
  found = clients.of_base(base)
  assert len(found) == 16 and all(c.version for c in found)
  one, = clients.of_base(base, ["equinox"])
  write(tmp_path / "equinox" / "tests" / "test_some.py", "")
  assert clients.tests_of(one, tmp_path) == tmp_path / "equinox" / "tests"
  with pytest.raises(MendError, match="doesn't know nope"):
    clients.of_base(base, ["nope"])


def test_tests_inside_of_an_installed_library(tmp_path):
  client = clients.Client("optax", "1", "ours", inside=True)
  for root in ("installed", "source"):
    write(tmp_path / root / "ours" / "__init__.py", "from ours import math\n")
    write(tmp_path / root / "ours" / "math.py", "one = 1\n")
    write(tmp_path / root / "ours" / "math_test.py",
          "from ours import math\ndef test_it(): assert math.one == 1\n")
  path = tmp_path / "installed", bases.ROOT / "build" / "probes"
  assert clients.run_tests(
      client, tmp_path / "source" / "ours", 9., pathlib.Path(sys.executable),
      {"PYTHONPATH": os.pathsep.join(map(str, path)),
       "PYTEST_PLUGINS": "ours.math"}) == {  # one that imports the library
          "ours/math_test.py test_it": Outcome("passed")}


def test_libraries_without_tests_are_refused(tmp_path):
  one, = clients.of_base(bases.all_bases()[-1], ["equinox"])
  write(tmp_path / "equinox" / "README.md", "")
  with pytest.raises(MendError, match="has no tests in tests/"):
    clients.tests_of(one, tmp_path)


def test_a_file_without_tests_is_a_failure(tmp_path):
  out = run(write(tmp_path / "empty_test.py", ""))
  assert judging.judge_mended("empty", out, ()).failures == [
      "empty: no test ran"]


def test_the_longest_files_on_mended_begin(base):
  make = lambda side, file: jobs.Job(base, side, sys.executable, file, ())
  small, large = "docs/patches.md", "CHANGELOG.md"
  made = [make(s, f) for f in (small, large) for s in ("pristine", "mended")]
  assert [(j.side, j.file) for j in jobs.longest_first(made)] == [
      ("mended", large), ("mended", small), ("pristine", large),
      ("pristine", small)]


@pytest.mark.parametrize("newer,given,wanted", [
    (("3.13.1", "p"), None, "3.13"), (None, None, None),
    (("3.13.1", "p"), "3.12", "3.12")])
def test_a_tenth_of_the_regression_tests_runs_live_on_a_newer_python(
    project, base, monkeypatch, newer, given, wanted):
  asked = []
  monkeypatch.setattr(jobs.interpreters, "newer", lambda b: newer)
  monkeypatch.setattr(jobs.interpreters, "for_base",
                      lambda b, version, lowest: asked.append(version) or "p")
  monkeypatch.setattr(jobs.environments, "with_jax_mend",
                      lambda *a, **k: pathlib.Path("env/bin/python"))
  (job,) = jobs.reds_live(patches.load(project), base, given)
  assert (job.side, asked) == ("live", [wanted])
  assert job.newer == ("3.13" if wanted == "3.13" else "")
  env = dict(job.env)
  assert env["MEND_REDS"] == "GreetingTest.test_polite"
  assert (env["MEND_REDS_SHARE"], env["MEND_OTHERS_SHARE"],
          env["MEND_SHARE"]) == ("0/1", "0/0", "0/5")
  assert dict(job.env)["JAX_MEND_CACHE"]  # read as jax is imported


def test_what_jax_reads_as_it_is_imported_is_its_servers(monkeypatch, base):
  seen = []
  monkeypatch.setattr(testing.pytest_run, "run_file",
                      lambda *a, server, **k: seen.append(server) or {})
  servers = types.SimpleNamespace(of=lambda *a: a)
  progress = types.SimpleNamespace(begin=lambda label: None)
  testing._run_job(servers, jobs.Job(base, "live", "p", "x.py", (), env=(
      ("JAX_MEND_CACHE", "c"), ("MEND_REDS", "*"))), progress)
  assert seen == [("p", base, {"JAX_MEND_CACHE": "c"})]


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
reason = "^AssertionError: a rude greeting"
bases = "<2"
"""
  write(project / "patches" / "greet" / "greeting.toml", text)
  series = patches.load(project)
  outcomes = {"T.b1": Outcome("passed")}, {"T.b1": RUDE}
  counts = verdicts.compare("x_test.py", base, *outcomes, series)
  assert counts["changed on purpose"] == 1 and not counts["newly failing"]
  assert "it asks for rudeness" in capsys.readouterr().out
  otherwise = outcomes[0], {"T.b1": Outcome("failed", "KeyError: 'a rude'")}
  assert verdicts.compare("x_test.py", base, *otherwise,
                          series)["newly failing"]
  assert verdicts.compare("y_test.py", base, *outcomes, series)["newly failing"]
  newer = dataclasses.replace(base, version="2.0")
  assert verdicts.compare("x_test.py", newer, *outcomes,
                          series)["newly failing"]


def test_a_reason_is_the_last_exception_only():
  text = """\
Traceback (most recent call last):
  File "varying/rude.py", line 1, in f
    raise KeyError("polite")
KeyError: 'polite'

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "polite.py", line 2, in <module>
    f()
jax.errors.ShapeError: rude
  and long
"""
  assert failure_reasons.final(text) == (
      "ShapeError: rude\n  and long, raised by polite.<module>")
  assert failure_reasons.states("^ShapeError: rude.*long", text)
  assert not failure_reasons.states("varying|KeyError|raise ", text)
  assert failure_reasons.states("died", "the process died (exit -6)")


@pytest.mark.parametrize("raised, final", [
    ("KeyError: 'polite'", "KeyError: 'polite', raised by greet.part"),
    ("AssertionError", "AssertionError: raised by greet.part"),
    ("AssertionError: (1, 0)", "AssertionError: (1, 0), raised by greet.part"),
    ("greet.Rude: no words", "Rude: no words, raised by greet.part")])
def test_a_reason_is_told_by_what_raised_it_too(raised, final):
  text = f"""\
Traceback (most recent call last):
  File "polite_test.py", line 1, in test
    part()
  File "/there/greet.py", line 2, in part
    assert False
           ^^^^^
{raised}
"""
  assert failure_reasons.final(text) == final
  assert failure_reasons.final(text.replace("/greet.py", "/case.py")) == (
      final.partition(", raised")[0].partition(": raised")[0])


def test_upstream_needs_a_checkout(tmp_path):
  with pytest.raises(MendError, match="no tests/ folder"):
    upstream.find_files(tmp_path, [])
  write(tmp_path / "tests" / "a_test.py", "")
  write(tmp_path / "tests" / "helper.py", "")
  assert upstream.find_files(tmp_path, []) == []
  assert len(upstream.find_files(tmp_path, ["tests/a_test.py"])) == 1
  with pytest.raises(MendError, match=r"no .*b_test\.py"):
    upstream.find_files(tmp_path, ["b_test"])


def test_files_that_an_upstream_checkout_lacks_are_named(tmp_path, capsys):
  write(tmp_path / "tests" / "a_test.py", "")
  assert upstream.present(tmp_path, ["a_test.py", "b_test.py"]) == ["a_test.py"]
  assert "not in this checkout: b_test.py" in capsys.readouterr().out


def test_upstreams_tests_run_on_the_jax_that_is_looked_at(tmp_path):
  # A conftest.py above the tests puts its folder, and the jax there, first.
  root, here = tmp_path / "checkout", tmp_path / "here"
  for folder in (root, here):
    write(folder / "jax" / "__init__.py", "")
  write(root / "conftest.py", "")
  path = write(root / "tests" / "a_test.py", """\
    import jax


    def test_where():
      assert "here" in jax.__file__
    """)
  run = lambda jax, *found: upstream._run(
      pathlib.Path(sys.executable), path, 60., {
          "MEND_JAX": str(jax), "PYTEST_PLUGINS": "", "PYTHONPATH": os.pathsep
          .join(map(str, (pytest_run._PROBES, *found)))})
  assert run(here, here) == {"test_where": Outcome("passed")}
  (failed,) = run(here).values()
  assert failed.status == "failed"
  assert "jax was imported from" in failed.text


def test_upstreams_file_of_which_nothing_passes_is_a_failure(
    base, monkeypatch, tmp_path):
  counts = dict.fromkeys(verdicts.KINDS, 0)
  request = upstream.Request(tmp_path, [], 1., None, False, False)
  for kind, good in (("passed", True), ("fail on pristine too", False)):
    monkeypatch.setattr(upstream, "_run_base", lambda *_, kind=kind: [
        ("all patches", "a_test.py", {**counts, kind: 1})])
    verdict = upstream.compare_wheels(request, [base])
    assert verdict.good is good
  monkeypatch.setattr(upstream, "_run_base", lambda *_: [
      ("all patches", "a_test.py", {**counts, "passed": 1}),
      ("all patches", "b_test.py", {**counts, "fail on pristine too": 1})])
  verdict = upstream.compare_wheels(request, [base])
  assert verdict.good and "No test passed of b_test.py" in str(verdict)


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


LOOPS = "tests/varying/loops_test.py"  # of 0.6.0 and later
FLOW = "tests/varying/flow_test.py"


@pytest.fixture
def lists(tmp_path, monkeypatch):
  """A minimal suite: two tests of one file."""
  monkeypatch.setattr(minimal_suite, "_FOLDER", tmp_path / "mutation")
  minimal_suite.tests_of.cache_clear()
  for base in bases.all_bases():
    minimal_suite.write(base, [f"{LOOPS} T.test_b", f"{LOOPS} T.test_a",
                         f"{LOOPS} T.test_b", "tests/other_test.py T.c",
                         f"{FLOW} (collecting)"])
  yield
  minimal_suite.tests_of.cache_clear()


def test_releases_that_are_alike_share_the_files_out(lists):
  every, series = bases.all_bases(), patches.load()
  alike = every[2:-1]
  assert [b.version for b in alike] == ["0.10.2", "0.11.2"]
  have = {b: {*jobs._files(patches.for_base(series, b), (), "tests"),
              *jobs._files(patches.for_base(series, b), (), "unit_tests")}
          for b in every}
  of = lambda b, chosen: {job.file for job in jobs.shared_out(series, [
      jobs.Job(b, "mended", pathlib.Path("p"), f, ()) for f in have[b]],
      chosen) if dict(job.env).get("MEND_REDS_SHARE") != "0/0"}
  one, other = (of(b, every) for b in alike)
  assert not one & other
  assert one | other == have[alike[0]] | have[alike[1]]
  for family in ("array_api", "meshes", "varying"):  # both have some of it
    for files in (one, other):
      assert any(f.startswith(f"tests/{family}/") for f in files)
  assert of(every[0], every) == have[every[0]]
  assert of(every[-1], every) == have[every[-1]]
  assert of(alike[0], alike) | of(alike[1], alike) == one | other
  for chosen in (alike[:1], every[:3]):
    assert of(alike[0], chosen) == have[alike[0]]


def _shares(side, reds, chosen):
  """By base that has the file: the shares of regression tests and others."""
  series = patches.load()
  found = [job for b in chosen for job in jobs.shared_out(series, [jobs.Job(
      b, side, pathlib.Path("p"), LOOPS, reds)], chosen)]
  envs = {job.base.version: env for job in found
          if (env := dict(job.env)).get("MEND_REDS_SHARE") != "0/0"}
  assert {e["MEND_REDS"] for e in envs.values() if e} <= {"T.test_red*"}
  return {v: (e["MEND_REDS_SHARE"], e["MEND_OTHERS_SHARE"],
              *e.get("MEND_CASES", ())) if e else None
          for v, e in envs.items()}


def test_a_run_of_all_bases_has_every_test_on_the_newest(lists):
  reds = (Red(("T.test_red*",), "^E: some words"),)
  every = bases.all_bases()[1:]
  mended, pristine = (_shares(s, reds, every) for s in ("mended", "pristine"))
  (alike,) = set(mended) - {"0.6.0", "0.12.0.1"}
  assert alike in ("0.10.2", "0.11.2")
  assert mended == {"0.6.0": ("0/9999", "0/0"), alike: ("1/9999", "0/0"),
                    "0.12.0.1": ("0/1", "0/1", "2")}
  # What is right on pristine, too, runs there on one base.
  assert pristine == {"0.6.0": ("0/9999", "0/3"), alike: ("1/9999", "1/3"),
                      "0.12.0.1": ("2/1", "2/3", "2")}


@pytest.mark.parametrize("file,kept", [(LOOPS, True), (FLOW, False)])
def test_a_run_of_one_base_has_tests_that_stand_for_all(lists, file, kept):
  reds = (Red(("T.test_red*",), "^E: some words"),)
  for base in bases.all_bases()[1:]:
    for side in "mended", "pristine":
      (job,) = jobs.shared_out(patches.load(), [jobs.Job(
          base, side, pathlib.Path("p"), file, reds)], [base])
      env = dict(job.env)
      assert env["MEND_REDS_SHARE"].endswith("/9999")
      assert env["MEND_OTHERS_SHARE"] == (
          "0/0" if kept and side == "mended" else env["MEND_REDS_SHARE"])


def test_tests_with_one_reason_stand_for_each_other_where_the_newest_has_all(
    lists):
  both, older = ("T.test_a*", "T.test_b*"), ("T.test_c", "T.test_d")
  reds = (Red(both, "^E: some words"),
          Red(older, "^E: others", bases="<0.7"))
  for chosen in [bases.one("0.6.0")], bases.all_bases():
    (job,) = jobs.shared_out(patches.load(), [jobs.Job(
        bases.one("0.6.0"), "mended", pathlib.Path("p"), LOOPS, reds)], chosen)
    assert job.kinds == (both, older[:1], older[1:])
    assert dict(job.env)["MEND_REDS"] == (
        "T.test_a*\tT.test_b*\nT.test_c\nT.test_d")


def test_a_base_without_a_minimal_suite_runs_whole(
    lists, monkeypatch, tmp_path):
  base = bases.one("0.6.0")
  (tmp_path / "mutation" / "0.6.0.txt").unlink()
  minimal_suite.tests_of.cache_clear()
  monkeypatch.setattr(jobs, "_one_case_in_two", None)  # nobody asks for it
  (job,) = jobs.shared_out(patches.load(), [jobs.Job(
      base, "mended", pathlib.Path("p"), LOOPS, ())], bases.all_bases())
  assert not job.env


def test_what_one_base_alone_has_runs_whole():
  every, series = bases.all_bases(), patches.load()
  job = jobs.Job(every[0], "mended", pathlib.Path("p"),
                 "tests/replication/loops_test.py", ())
  (found,) = jobs.shared_out(series, [job], every)
  env = dict(found.env)
  assert (env["MEND_REDS_SHARE"], env["MEND_OTHERS_SHARE"]) == ("0/1", "0/1")


def test_the_minimal_suite_runs_on_each_base(lists):
  every, series = bases.all_bases(), patches.load()
  def kept(side):
    return {job.base.version: dict(job.env).get("MEND_KEPT")
            for b in every[1:] for job in jobs.shared_out(series, [jobs.Job(
                b, side, pathlib.Path("p"), LOOPS, ())], every)}
  assert kept("mended") == {
      b.version: "T.test_a\nT.test_b" for b in every[1:]}
  assert set(kept("pristine").values()) == {None}


def test_a_file_that_divides_releases_has_no_regression_tests_on_the_other(
    lists):
  every, series = bases.all_bases(), patches.load()
  reds = (Red(("T.test_red*",), "^E: some words"),)
  for file, share, other in ((LOOPS, "0/0", "0/0"),
                             (FLOW, "0/9999", "1/9999")):
    found = [job for b in every[2:4] for job in jobs.shared_out(series, [
        jobs.Job(b, "mended", pathlib.Path("p"), file, reds)], every)]
    assert sorted((job.reds, dict(job.env)["MEND_OTHERS_SHARE"])
                  for job in found) == [((), share), (reds, other)]


def test_a_share_of_each_kind_of_test(tmp_path):
  names = ("red0", "red1", "red2", "red3", "red4", "alone", "a", "b", "c")
  path = write(tmp_path / "x_test.py", (
      "import unittest\nclass T(unittest.TestCase):\n" + "".join(
          f"  def test_{n}(self): pass\n" for n in names)))
  def run(reds, others, **more):
    found = pytest_run.run_file(sys.executable, path, limit=60, env={
        "MEND_REDS": "T.test_red[01]\tT.test_red*\nT.test_alone",
        "MEND_REDS_SHARE": reds,
        "MEND_OTHERS_SHARE": others, **more})
    return " ".join(sorted(n.removeprefix("T.test_") for n in found))
  assert run("0/4", "0/0") == "alone red0 red4"
  assert run("1/4", "0/2") == "a alone c red1"
  assert run("0/1", "1/2") == "alone b red0 red1 red2 red3 red4"
  assert run("3/9", "4/9") == "alone b red3"  # at least one
  assert run("0/4", "1/2", MEND_SHARE="1/2") == "b red4"
  kept = {"MEND_KEPT": "T.test_red1\nT.test_a\nT.gone"}
  assert run("0/4", "0/0", **kept) == "a alone red0 red1 red4"
  # They stand for the others of their kind, and no other has to.
  assert run("9/10", "9/10", **kept) == "a alone red1"
  # An exception stands before the rule, which keeps a test of its own.
  first = {"MEND_REDS": "T.test_red0\nT.test_red*"}
  assert run("0/4", "0/0", **first) == "red0 red1"


def test_a_share_of_the_cases_of_a_test(tmp_path):
  path = write(tmp_path / "x_test.py", """\
import functools, unittest
class T(unittest.TestCase):
  def test_1(self): pass
  def test_2(self): pass
  def test_3(self): pass
def many(self): pass
def named(self): pass
def two(self): pass
# As absl.testing.parameterized does it.
for f, cases in ((many, range(6)), (named, ["_a", "_b", "_c"]), (two, "01")):
  for c in cases:
    @functools.wraps(f)
    def case(self): pass
    case.__name__, case.__x_params_repr__ = f"test_{f.__name__}{c}", "(c)"
    setattr(T, case.__name__, case)
""")
  def run(reds="", **more):
    found = pytest_run.run_file(sys.executable, path, limit=60, env={
        "MEND_CASES": "2", "MEND_REDS": reds, "MEND_REDS_SHARE": "0/1",
        "MEND_OTHERS_SHARE": "0/1", **more})
    return " ".join(sorted(n.removeprefix("T.test_") for n in found
                           if not n[7:].isdecimal() and "two" not in n))
  assert run() == "many0 many2 many4 named_a named_c"
  assert run(MEND_KEPT="T.test_many3\nT.test_named_b") == (
      "many0 many2 many3 many4 named_a named_b named_c")
  # What a kind names is a group of its own; whole where it is small.
  assert run("T.test_many1\tT.test_many3\nT.test_many*") == (
      "many0 many1 many3 many4 named_a named_c")


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
  monkeypatch.setattr(upstream.environments, "build", lambda *a, **k: None)
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
  made = environments.Environments(*(pathlib.Path(f"{side}/bin/python")
                       for side in ("pristine", "mended")), tmp_path)
  monkeypatch.setattr(upstream.environments, "build", lambda *a, **k: made)
  runs = []

  def run_file(python, path, *, limit, env, only=None, options=()):
    assert env["MEND_JAX"] == str(python.parents[1])
    runs.append((python.parts[0], env.get("MEND_SHARE"), only))
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
    <!-- upstream-tests: written by build.py -->
    <!-- end upstream-tests -->
    """)

  def rows(only, *files, share=1):
    request = upstream.Request(tmp_path, only, 1., None, False, True, share)
    counts = dict.fromkeys(verdicts.KINDS, 1)
    pages.write_section(page, "upstream-tests", upstream._section(
        base, request, [("all patches", f, counts) for f in files]))
    text = pages.section(page.read_text(), "## jax 1.0, together")
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
  (item,) = reproductions._read_file(path, "greeting")
  return reproduce.run_one(item, sys.executable)


def test_reproductions_are_functions_with_a_line(project):
  (item,) = reproductions.collect(patches.load(project), project)
  assert (item.report, item.line) == ("toy#1", "greet() is polite.")
  for bad in (REPRODUCTION.replace('REPORT = "toy#1"', ""),
              REPRODUCTION.replace('"""greet() is polite."""', ""),
              'REPORT = "toy#1"\n'):
    write(project / "reproductions" / "greet" / "greeting.py", bad)
    with pytest.raises(MendError, match="no reproduction"):
      reproductions.collect(patches.load(project), project)


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


@pytest.mark.parametrize("lines,status", [
    ("import no_such_package", "n/a"),
    ("try: import no_such_package\n  except ImportError as e:\n    "
     "raise ImportError('Please install it') from e", "n/a"),
    ("import jax.nothing", "FAIL"), ("from os import nothing", "FAIL"),
    ("try: import no_such_package\n  except ImportError:\n    "
     "raise ValueError('a defect')", "FAIL")])
def test_a_row_that_cannot_run_is_no_defect(tmp_path, lines, status):
  outcome = reproduction(lines, tmp_path)
  assert outcome.status == status
  assert ("can't run here: there is no no_such_package" == outcome.seen) == (
      status == "n/a")


def test_settings_of_the_caller_stay_outside(tmp_path, monkeypatch):
  monkeypatch.setenv("JAX_ENABLE_X64", "1")
  outcome = reproduction(
      "import os; return sorted(k for k in os.environ if k[:4] == 'JAX_')",
      tmp_path)
  assert outcome.seen == "['JAX_PLATFORMS']"


def test_rows_of_other_releases_are_not_run(tmp_path):
  path = write(tmp_path / "r.py",
               'REPORT = "toy#1"\n\ndef seen():\n  "Line."\n')
  items = [*reproductions._read_file(path, "old", "<0.6"),
           *reproductions._read_file(path, "new", ">=0.6.0")]
  for jax, wanted in (("0.5.3+mend.2", ["PASS", "n/a"]),
                      ("0.7.0", ["n/a", "PASS"])):
    what = reproduce.Environment(jax, "0.7.0")
    outcomes = reproduce.run_for(items, sys.executable, what)
    assert [o.status for o in outcomes] == wanted
  assert "Mend, on jax 0.5.3" in str(reproduce.Environment("0.5.3+mend.2", ""))


def test_a_python_may_be_named_from_here(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  assert reproduce.found("bin/python") == str(tmp_path / "bin" / "python")
  assert reproduce.found("python3") == "python3"


def test_what_crashed_is_not_remembered(tmp_path, monkeypatch):
  path = write(tmp_path / "r.py", 'REPORT = "toy#1"\n\ndef seen():\n  '
               '"Line."\n  import os; os._exit(3)\n')
  items = reproductions._read_file(path, "greeting")
  monkeypatch.setenv("MEND_CACHE", str(tmp_path / "cache"))
  python = pathlib.Path(sys.executable)
  with reproduce.servers() as servers:
    (outcome,) = reproduce.remembered(items, python, "toy", servers,
                                      bases.all_bases()[-1])
  assert "the process died" in outcome.seen
  assert not list((tmp_path / "cache").rglob("proofs/*.json"))


def test_reproduce_needs_a_python_with_jax(tmp_path):
  with pytest.raises(MendError, match="can't be run"):
    reproduce.describe(str(tmp_path / "python"))
  with pytest.raises(MendError, match="no jax that can be imported"):
    reproduce.describe(sys.executable)


def test_progress_is_lines_where_nobody_looks(capsys):
  with report.Progress(2) as progress:
    progress.begin("a")
    progress.end("a", "a: fine")
    progress.end("b", "b: not fine", good=False)
  assert capsys.readouterr().out == "[1/2] a: fine\n[2/2] b: not fine\n"


def test_progress_on_a_terminal_keeps_what_went_wrong(monkeypatch, capsys):
  monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
  with report.Progress(2) as progress:
    progress.begin("a")
    progress.end("a", "a: fine")
    progress.begin("b")
    progress.end("b", "b: [not] fine", good=False)
  said = capsys.readouterr().out
  assert "b: [not] fine" in said and "a: fine" not in said and "2/2" in said
