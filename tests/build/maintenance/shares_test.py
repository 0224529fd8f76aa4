# SPDX-License-Identifier: Apache-2.0
"""The part of the tests that a release has in a run of everything."""

import collections
import dataclasses
import pathlib
import sys

from conftest import write
from mend import cli
from mend.editing import patches
from mend.editing.expected_failures import Red
from mend.ground.errors import MendError
from mend.proof import (
    alone, changes, environments, jobs, judging, pytest_run, shares, testing)
from mend.releases import bases
import pytest

SERIES = patches.load()
LOOPS = "tests/varying/loops_test.py"  # of 0.6.0 and later
OLDEST = "tests/replication/loops_test.py"  # of 0.5 alone
WHOLE = jobs.WHOLE


def found(chosen, extent=shares.Extent.CHANGE, touched=()):
  """By file and side: the releases that run it, and what of it."""
  run = shares.Run(extent, chosen, None, touched)
  out = collections.defaultdict(dict)
  for job in shares.jobs_of(run, SERIES):
    assert job.base not in out[job.file, job.side]
    out[job.file, job.side][job.base] = job.extent
  return out


def test_each_file_runs_whole_on_the_newest_and_a_case_of_it_on_two_lines():
  every = bases.all_bases()
  of = found(every)
  files = {file for file, _ in of}
  assert len(files) > 150
  whole, dealt = collections.Counter(), set()
  for (file, side), runs in of.items():
    newest = max(runs, key=every.index)
    assert runs[newest] == WHOLE and [*runs.values()].count(WHOLE) == 1
    others = [b for b in runs if b != newest]
    assert len({b.line for b in others}) == len(others) <= 2
    assert all(runs[b] == "one case of its tests" for b in others)
    assert side == "mended" or (not others and (file, "mended") in of)
    whole[newest.line] += 1
    dealt.update(b.version for b in runs)
  assert whole["G"] > 200 and whole["A"] > 10  # the replication rules
  assert dealt == {b.version for b in every}  # none is left out
  assert len(of[LOOPS, "mended"]) in (2, 3)  # by its place in the folder
  assert {b.line for b in of[OLDEST, "mended"]} == {"A"}


def test_what_a_change_touches_runs_whole_on_each_line():
  touched = changes.touched(SERIES, frozenset({LOOPS}))
  assert "varying/loops" in touched
  assert "varying/loops" in changes.touched(
      SERIES, frozenset({"patches/varying/loops.toml"}))
  assert not changes.touched(SERIES, frozenset({"README.md"}))
  before, after = (found(bases.all_bases(), touched=t) for t in ((), touched))
  assert {b.line for b in after[LOOPS, "mended"]} == set("BCDEFG")
  assert {*after[LOOPS, "mended"].values()} == {WHOLE}
  assert before.keys() <= after.keys()  # and what is no regression test
  assert after[OLDEST, "mended"] == before[OLDEST, "mended"]


def test_a_change_since_a_revision_that_is_not_there():
  with pytest.raises(MendError, match="--since=no-such-revision"):
    changes.since("no-such-revision")
  assert not changes.since("0" * 40)


def test_one_release_and_a_whole_run_have_every_test():
  for chosen, extent in ((bases.all_bases()[3:4], shares.Extent.CHANGE),
                         (bases.all_bases()[2:5], shares.Extent.WHOLE)):
    of = found(chosen, extent)
    assert len(of) > 100
    assert {what for runs in of.values() for what in runs.values()} == {WHOLE}


def test_a_plain_run_has_the_default_release_alone(monkeypatch):
  monkeypatch.setattr(sys, "version_info", (3, 11, 0))  # older than some base
  chosen = bases.chosen(None)
  assert chosen == (bases.default_base(),)
  of = found(chosen, shares.Extent.PLAIN)
  mine = patches.for_base(SERIES, *chosen)
  tests = jobs.files_of(mine, (), "tests")
  assert {f for f, side in of if side == "mended"} == {
      *tests, *jobs.files_of(mine, (), "unit_tests")}
  assert {f for f, side in of if side == "pristine"} == {
      f for f in tests if jobs.reds_of(mine, *chosen, f)}
  said = {side: {*runs.values()} for (_, side), runs in of.items()}
  assert said == {
      "mended": {"one case of its regression tests, and one other test"},
      "pristine": {"one case of its regression tests"}}


def test_what_the_default_release_lacks_runs_on_the_newest_that_has_it():
  default, older = bases.default_base(), bases.one("0.5.3")
  assert shares.newest_having([LOOPS]) == (default,)
  assert shares.newest_having(["tests/build"]) == (default,)
  assert shares.newest_having([LOOPS, OLDEST]) == (older, default)


def test_shares_of_a_run_have_each_job_once(base):
  made = [jobs.Job(base, side, None, file, ()) for side in ("a", "b")
          for file in ("x", "y", "z")]
  parts = [shares.share_of(made, number, 2) for number in (1, 2)]
  assert sorted(j.label for part in parts for j in part) == sorted(
      j.label for j in made)
  assert {j.file for j in parts[0]}.isdisjoint(j.file for j in parts[1])


@pytest.mark.parametrize("options,words", [
    ("--list --upstream=x", "--list goes with the project's tests"),
    ("--list --each", "--list goes with"),
    ("--list --clients=a", "--list goes with"),
    ("--since=HEAD", "--since goes with a run of everything"),
    ("--since=HEAD --base=all tests/varying/loops_test.py", "--since goes"),
    ("--since=HEAD --base=all --live", "--since goes with")])
def test_what_would_be_ignored_is_refused(options, words):
  args = cli._parser().parse_args(["test", *options.split()])
  with pytest.raises(MendError, match=words):
    args.function(args)


@pytest.mark.parametrize("extent,twins", [
    (shares.Extent.CHANGE, ["0.12.0"]), (shares.Extent.PLAIN, [])])
def test_a_run_of_everything_has_each_twin_and_builds_nothing_to_say_so(
    monkeypatch, extent, twins):
  def build(*_, **__):
    raise AssertionError("builds")
  for name in ("mended_only", "pristine_only", "with_jax_mend", "build"):
    monkeypatch.setattr(environments, name, build)
  said = []
  monkeypatch.setattr(testing.report, "say", said.append)
  verdict = testing.run_tests(testing.Request(
      bases.all_bases()[-2:], extent=extent, only_list=True))
  of_tool = [line for line in said if line.startswith("tests/build/")]
  said = [line for line in said if line not in of_tool]
  assert verdict.good and verdict.words.startswith(f"{len(said)} test files")
  assert verdict.words.endswith(f" {len(of_tool)} of the tool's.")
  assert len(said) > 100 and len(of_tool) > 20
  names = {line.split(" on ")[1].split()[1].rstrip(":,") for line in said}
  assert [b.version for b in bases.releases()
          if b.twin_of and b.version in names] == twins


MANY = """\
import functools, unittest
class T(unittest.TestCase):
  def test_one(self): pass
  def test_red(self): pass
def many(self, n): pass
def named(self): pass
def parameterized(function, testcase_params):  # as absl's is
  @functools.wraps(function)
  def case(self): function(self, *testcase_params)
  return case
for n in range(6):
  setattr(T, f"test_many{n}", parameterized(many, (n,)))
for n in "abc":
  setattr(T, f"test_named_{n}", parameterized(named, ()))
"""


def named(outcomes):
  return " ".join(sorted(n.removeprefix("T.test_") for n, o in outcomes.items()
                         if o.status != pytest_run.LEFT))


def test_one_case_of_each_test_and_of_what_patterns_name(tmp_path):
  path = write(tmp_path / "x_test.py", MANY)
  def run(**settings):
    return named(pytest_run.run_file(
        sys.executable, path, limit=60, env=settings))
  every = "many0 many1 many2 many3 many4 many5 named_a named_b named_c one red"
  assert run() == every
  assert run(MEND_CASE="0") == "many0 named_a one red"
  assert run(MEND_CASE="10") == "many4 named_b one red"  # modulo their number
  reds = "T.many(;n=1;)\nT.many(;n=[13];)\nT.test_red(*"
  assert run(MEND_REDS=reds) == every
  assert run(MEND_REDS=reds, MEND_ONLY_RED="1") == "many1 many3 red"
  # Cases that patterns name, of whatever reason, and the others.
  assert run(MEND_REDS=reds, MEND_CASE="1") == "many2 many3 named_b one red"
  assert run(MEND_REDS=reds, MEND_CASE="6", MEND_ONLY_RED="1") == "many1 red"
  assert run(MEND_ONLY_RED="1") == ""
  assert run(MEND_REDS=reds, MEND_ONLY_RED="1", MEND_BUT="T.many(;n=1;)") == (
      "many3 red")


def test_a_pattern_may_name_a_case_that_is_left_out(tmp_path):
  """That it names a case is judged, although another one is run."""
  path = write(tmp_path / "x_test.py", MANY)
  reds = (Red(("T.many(;n=1;)",), "^E"), Red(("T.many(;n=[135];)",), "^E"))
  def failures(*more):
    outcomes = pytest_run.run_file(sys.executable, path, limit=60, env={
        "MEND_REDS": "T.many(;n=1;)\nT.many(;n=[135];)", "MEND_CASE": "0"})
    assert outcomes["T.test_many3"].status == pytest_run.LEFT
    assert outcomes["T.test_many3"].case == "T.many(;n=3;)"
    tally = judging.judge_mended("toy", outcomes, (*reds, *more))
    assert tally.passed == 5  # many1 and what test_one_case has
    return tally.failures
  assert not failures()
  (failure,) = failures(Red(("T.many(;n=7;)",), "^E"))
  assert "no such test" in failure


def test_one_guard(tmp_path):
  """One case is left of one of the tests that no pattern names."""
  path = write(tmp_path / "x_test.py", MANY)
  run = lambda **settings: named(pytest_run.run_file(
      sys.executable, path, limit=60, env=settings))
  guards = dict(MEND_REDS="T.test_red(*", MEND_ONE_GUARD="1")
  assert run(MEND_CASE="0", **guards) == "many0 red"
  assert run(MEND_CASE="1", **guards) == "named_b red"
  assert run(MEND_CASE="2", **guards) == "one red"
  assert run(MEND_CASE="3", MEND_ONE_GUARD="1") == "red"


def test_the_settings_of_a_job_are_those_that_the_plugin_reads():
  base = bases.one("0.6.0")
  reds = (Red(("T.a(*", "T.b(*"), "^E"), Red(("T.c(*",), "^F"))
  job = jobs.Job(base, "mended", environments.Lazy(
      lambda: pathlib.Path("p")), LOOPS, reds)
  assert not jobs.settings(job) and job.extent == WHOLE
  number = bases.releases().index(base)
  assert jobs.settings(shares.one_case(job, only_red=True)) == {
      "MEND_REDS": "T.a(*\nT.b(*\nT.c(*", "MEND_ONLY_RED": "1",
      "MEND_CASE": str(number)}
  assert jobs.settings(dataclasses.replace(
      shares.one_case(job), one_guard=True))["MEND_ONE_GUARD"]
  assert jobs.settings(dataclasses.replace(
      job, but=("T.d(*", "T.e(*")))["MEND_BUT"] == "T.d(*\nT.e(*"


def test_families_alone():
  """A file is of the families whose patches name it on the release.

  What a test needs beside them is left out where it mends that release.
  """
  base, old = bases.all_bases()[-1], bases.one("0.5.3")
  every = {b: alone.jobs_of(SERIES, b, None, whole=True) for b in (base, old)}
  for found in every.values():
    assert all(dict(j.env)["JAX_MEND"] == j.alone and j.case == 0
               and j.extent == "one case of its regression tests"
               for j in found)
  some = alone.jobs_of(SERIES, base, None)
  assert {j.alone for j in some} == {j.alone for j in every[base]}
  assert 7 < len(every[base]) / len(some) < 10  # one of ten, and at least one
  of = lambda b, file: next(j for j in every[b] if j.file == file)
  extensions = "tests/varying/extensions_test.py"
  assert (of(base, extensions).alone, of(old, extensions).alone) == (
      "varying", "replication")
  compared = of(base, "tests/sanitizer/check_replication_test.py")
  assert compared.alone == "sanitizer" and compared.but
  assert not {*compared.but} & {p for r in compared.reds for p in r.tests}
  # Nothing is left of it on a release whose rules are another family's.
  assert compared.file not in {j.file for j in every[old]}


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
