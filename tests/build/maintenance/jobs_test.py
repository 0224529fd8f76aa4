# SPDX-License-Identifier: Apache-2.0
"""The choice and order of tests on each base and side."""

import concurrent.futures
import dataclasses
import pathlib
import sys
import threading
import time
import types

from mend.editing import patches
from mend.editing.expected_failures import Red
from mend.ground.errors import MendError
from mend.proof import jobs, minimal_suite, pools, shares, testing
from mend.releases import bases
import pytest


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
  assert env["MEND_REDS"] == "red\tGreetingTest.test_polite(*"
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
      ("JAX_MEND_CACHE", "c"), ("MEND_REDS", "*"))), progress, ())
  assert seen == [("p", base, {"JAX_MEND_CACHE": "c"})]


def test_environments_are_made_while_checks_run():
  both = threading.Barrier(2)
  meet = lambda: both.wait(60)
  with concurrent.futures.ThreadPoolExecutor(2) as pool:
    made, done = pools.submit_in_turn(pool, [meet, meet], [meet, meet, int])
    assert {f.result() for f in (*made, *done[:2])} == {0, 1}
    assert done[2].result() == 0


def test_the_first_error_ends_the_run():
  ran = []
  with pytest.raises(MendError, match="no index"):
    with pools.pool() as pool:
      pool.submit(time.sleep, .2)
      for i in range(100):
        pool.submit(lambda i=i: (time.sleep(.05), ran.append(i)))
      raise MendError("no index", "try again")
  assert len(ran) < 50


LOOPS = "tests/varying/loops_test.py"  # of 0.6.0 and later
FLOW = "tests/varying/flow_test.py"


@pytest.fixture
def lists(tmp_path, monkeypatch):
  """A minimal suite: two tests of one file."""
  monkeypatch.setattr(minimal_suite, "_FOLDER", tmp_path / "mutation")
  minimal_suite.tests_of.cache_clear()
  for base in bases.whole():
    minimal_suite.write(base, [f"{LOOPS} T.test_b", f"{LOOPS} T.test_a",
                         f"{LOOPS} T.test_b", "tests/other_test.py T.c",
                         f"{FLOW} (collecting)"])
  yield
  minimal_suite.tests_of.cache_clear()


def test_releases_that_are_alike_share_the_files_out(lists):
  every, series = bases.whole(), patches.load()
  alike = [b for b in every if b.line in "EF"]
  assert len(alike) == 2
  have = {b: {*jobs.files_of(patches.for_base(series, b), (), "tests"),
              *jobs.files_of(patches.for_base(series, b), (), "unit_tests")}
          for b in every}
  of = lambda b, chosen: {job.file for job in shares.shared_out(series, [
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
  for chosen in (alike[:1], every[:every.index(alike[0]) + 1]):
    assert of(alike[0], chosen) == have[alike[0]]


def _shares(side, reds, chosen):
  """By base that has the file: the shares of regression tests and others."""
  series = patches.load()
  found = [job for b in chosen for job in shares.shared_out(series, [jobs.Job(
      b, side, pathlib.Path("p"), LOOPS, reds)], chosen)]
  envs = {job.base.version: env for job in found
          if (env := dict(job.env)).get("MEND_REDS_SHARE") != "0/0"}
  assert {e["MEND_REDS"] for e in envs.values() if e} <= {
      "^E: some words\tT.test_red*", "0\tT.test_red*"}
  return {v: (e["MEND_REDS_SHARE"], e["MEND_OTHERS_SHARE"],
              *e.get("MEND_CASES", ())) if e else None
          for v, e in envs.items()}


def test_a_run_of_all_bases_has_every_test_on_the_newest(lists):
  reds = (Red(("T.test_red*",), "^E: some words"),)
  every = bases.whole()[1:]  # the file is of 0.6.0 and later
  mended, pristine = (_shares(s, reds, every) for s in ("mended", "pristine"))
  *older, newest = mended
  assert newest == every[-1].version and len(older) == len(every) - 3
  assert mended == {newest: ("0/1", "0/1", "3"), **{
      v: (f"{i}/9999", "0/0") for i, v in enumerate(older)}}
  # What is right on pristine, too, runs there on one base.
  number = len(older)
  assert pristine == {
      newest: (f"{number}/1", f"{number}/{number + 1}", "3"), **{
          v: (f"{i}/9999", f"{i}/{number + 1}") for i, v in enumerate(older)}}


@pytest.mark.parametrize("file,kept", [(LOOPS, True), (FLOW, False)])
def test_a_run_of_one_base_has_tests_that_stand_for_all(lists, file, kept):
  reds = (Red(("T.test_red*",), "^E: some words"),)
  for base in bases.whole()[1:]:
    for side in "mended", "pristine":
      (job,) = shares.shared_out(patches.load(), [jobs.Job(
          base, side, pathlib.Path("p"), file, reds)], [base])
      env = dict(job.env)
      assert env["MEND_REDS_SHARE"].endswith("/9999")
      assert env["MEND_OTHERS_SHARE"] == (
          "0/0" if kept and side == "mended" else env["MEND_REDS_SHARE"])


def test_tests_with_one_reason_stand_for_each_other_where_the_newest_has_all(
    lists):
  words = "^E: some words"
  reds = (Red(("T.test_a*",), words), Red(("T.c*",), "^E: others", "<0.7"),
          Red(("T.d*",), "^E: others", "<0.7"), Red(("T.test_b*",), words))
  for chosen in [bases.one("0.6.0")], bases.whole():
    (job,) = shares.shared_out(patches.load(), [jobs.Job(
        bases.one("0.6.0"), "mended", pathlib.Path("p"), LOOPS, reds)], chosen)
    assert job.kinds == (("T.test_a*", "T.test_b*"), ("T.c*",), ("T.d*",))
    assert dict(job.env)["MEND_REDS"] == (
        f"{words}\tT.test_a*\n1\tT.c*\n2\tT.d*\n{words}\tT.test_b*")


def test_a_base_without_a_minimal_suite_has_its_neighbours(lists, tmp_path):
  kept = lambda v: dict(minimal_suite.tests_of(bases.one(v)))
  (tmp_path / "mutation" / "0.7.1.txt").unlink()
  minimal_suite.write(bases.one("0.6.2"), [f"{LOOPS} T.test_a",
                                           f"{FLOW} (collecting)"])
  minimal_suite.write(bases.one("0.9.2"), [f"{LOOPS} T.test_a",
                                           f"{LOOPS} T.test_c"])
  assert kept("0.7.1") == {LOOPS: ["T.test_a", "T.test_c"], FLOW: []}
  for version in "0.6.2", "0.6.0", "0.5.3":  # 0.7.1's is the nearest now
    (tmp_path / "mutation" / f"{version}.txt").unlink()
  minimal_suite.tests_of.cache_clear()
  assert kept("0.5.3") == kept("0.7.1") == {LOOPS: ["T.test_a", "T.test_c"]}


def test_what_one_base_alone_has_runs_whole():
  every, series = bases.whole(), patches.load()
  job = jobs.Job(every[0], "mended", pathlib.Path("p"),
                 "tests/replication/loops_test.py", ())
  (found,) = shares.shared_out(series, [job], every)
  env = dict(found.env)
  assert (env["MEND_REDS_SHARE"], env["MEND_OTHERS_SHARE"]) == ("0/1", "0/1")


def test_the_minimal_suite_runs_on_each_base(lists):
  every, series = bases.whole(), patches.load()
  def kept(side):
    return {job.base.version: dict(job.env).get("MEND_KEPT")
            for b in every[1:] for job in shares.shared_out(series, [jobs.Job(
                b, side, pathlib.Path("p"), LOOPS, ())], every)}
  assert kept("mended") == {
      b.version: "T.test_a\nT.test_b" for b in every[1:]}
  assert set(kept("pristine").values()) == {None}


def test_a_file_that_divides_releases_has_no_regression_tests_on_the_other(
    lists):
  every, series = bases.whole(), patches.load()
  reds = (Red(("T.test_red*",), "^E: some words"),)
  for file, of in (LOOPS, "0"), (FLOW, "9999"):
    found = [job for b in every if b.line in "EF"
             for job in shares.shared_out(series, [
                 jobs.Job(b, "mended", pathlib.Path("p"), file, reds)], every)]
    assert sorted((job.reds, dict(job.env)["MEND_OTHERS_SHARE"].split("/")[1])
                  for job in found) == [((), of), (reds, of)]


def test_a_smoke_test_of_each_base_and_every_file_on_one(monkeypatch):
  monkeypatch.setattr(jobs.environments, "mended_only", lambda *a, **k: "p")
  monkeypatch.setattr(jobs.interpreters, "for_base", lambda *a, **k: "p")
  series, base = patches.load(), bases.one("0.6.0")
  runs = [shares.smoke(series, base, n, 6, None) for n in range(6)]
  mine = patches.for_base(series, base)
  every = {f for f in jobs.files_of(mine, (), "tests")
           if jobs.reds_of(mine, base, f)}
  families = {f.split("/")[1] for f in every}
  for found in runs:
    assert {job.file.split("/")[1] for job in found} == families
    assert len(found) < len(every) / 4
    for job in found:
      assert job.side == "mended" and len(job.kinds) == 1
      assert dict(job.env)["MEND_REDS_SHARE"].endswith("/9999")
  assert {job.file for found in runs for job in found} == every


def test_shares_of_a_run_have_each_job_once(base):
  found = [jobs.Job(base, side, "p", file, ()) for side in ("a", "b")
           for file in ("x", "y", "z")]
  parts = [shares.share_of(found, number, 2) for number in (1, 2)]
  assert sorted(j.label for part in parts for j in part) == sorted(
      j.label for j in found)
  assert {j.file for j in parts[0]}.isdisjoint(j.file for j in parts[1])


def test_a_run_of_everything_installs_each_twin(monkeypatch):
  job = jobs.Job(bases.get("0.5.2"), "live", pathlib.Path("p"), LOOPS,
                 (Red(("A.b", "A.c"), ""),), env=(("MEND_SHARE", "0/5"),))
  monkeypatch.setattr(jobs, "live_for_base", lambda *a, **k: [job])
  (found,) = shares.of_twin((), job.base, None)
  env = dict(found.env)
  assert (env["MEND_SHARE"], env["MEND_REDS"]) == ("0/1", "red\tA.b\tA.c")
  assert env["MEND_REDS_SHARE"] == "0/9999" and found.kinds == (("A.b", "A.c"),)
  asked = []
  monkeypatch.setattr(shares, "of_twin",
                      lambda series, twin, python: asked.append(twin.version))
  monkeypatch.setattr(shares, "chosen_for", lambda *a: [])
  monkeypatch.setattr(jobs, "reds_live", lambda *a: [])
  for extent, wanted in ((shares.Extent.SHARED, ["0.12.0"]),
                         (shares.Extent.NEWEST, [])):
    asked.clear()
    for prepare in testing._preparations((), testing.Request(
        bases.all_bases()[-2:], extent=extent)):
      prepare()
    assert asked == wanted


def test_a_plain_run_has_the_newest_base_whole(monkeypatch):
  monkeypatch.setattr(sys, "version_info", (3, 11, 0))  # older than some base
  chosen, newest = bases.one_of_each_line(), bases.default_base()
  others = [b for b in chosen if b != newest]
  assert newest != chosen[-1] and shares.tested_whole(others) == others[-1]
  monkeypatch.setattr(shares, "smoke",
                      lambda series, b, n, of, python: [(n, of)])
  job = jobs.Job(newest, "mended", pathlib.Path("p"), LOOPS, ())
  monkeypatch.setattr(jobs, "for_base", lambda *a: [job])
  run = lambda extent, b: shares.chosen_for(extent, (), b, chosen, None)
  assert [run(shares.Extent.NEWEST, b) for b in others] == [
      [(n, len(others))] for n in range(len(others))]
  (found,) = run(shares.Extent.NEWEST, newest)
  assert dict(found.env)["MEND_OTHERS_SHARE"] == "0/1"
  monkeypatch.setattr(jobs, "for_base", lambda *a: [
      dataclasses.replace(job, side="pristine")])
  (red,) = run(shares.Extent.NEWEST, newest)
  assert dict(red.env)["MEND_REDS_SHARE"] == "0/9999"
  assert run(shares.Extent.EVERY, others[0]) == [dataclasses.replace(
      job, side="pristine")]
