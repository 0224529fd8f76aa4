# SPDX-License-Identifier: Apache-2.0
"""The choice and order of tests on each base and side."""

import concurrent.futures
import pathlib
import threading
import time
import types

from mend.editing import patches
from mend.editing.expected_failures import Red
from mend.ground.errors import MendError
from mend.proof import environments, jobs, pools, testing
import pytest

HERE = environments.Lazy(lambda: pathlib.Path("env/bin/python"))


def test_the_longest_files_on_mended_begin(base):
  make = lambda side, file: jobs.Job(base, side, HERE, file, ())
  small, large = "docs/patches.md", "CHANGELOG.md"
  made = [make(s, f) for f in (small, large) for s in ("pristine", "mended")]
  assert [(j.side, j.file) for j in jobs.longest_first(made)] == [
      ("mended", large), ("mended", small), ("pristine", large),
      ("pristine", small)]


@pytest.mark.parametrize("newer,given,wanted", [
    (("3.13.1", "p"), None, "3.13"), (None, None, None),
    (("3.13.1", "p"), "3.12", "3.12")])
def test_some_regression_tests_run_live_on_a_newer_python(
    project, base, monkeypatch, newer, given, wanted):
  asked = []
  monkeypatch.setattr(jobs.interpreters, "newer", lambda b: newer)
  monkeypatch.setattr(environments.interpreters, "for_base",
                      lambda b, version, lowest: asked.append(version) or "p")
  monkeypatch.setattr(environments, "with_jax_mend",
                      lambda *a, **k: pathlib.Path("env/bin/python"))
  (job,) = jobs.reds_live(patches.load(project), base, given)
  assert not asked  # nothing is built for the list
  env = jobs.settings(job)
  assert (job.side, asked) == ("live", [wanted])
  assert job.newer == ("3.13" if wanted == "3.13" else "")
  assert env["MEND_REDS"] == "GreetingTest.test_polite(*"
  assert env["MEND_ONLY_RED"] and "MEND_CASE" not in env
  assert env["JAX_MEND_CACHE"]  # read as jax is imported


def test_what_jax_reads_as_it_is_imported_is_its_servers(monkeypatch, base):
  seen = []
  monkeypatch.setattr(testing.pytest_run, "run_file",
                      lambda *a, server, **k: seen.append(server) or {})
  servers = types.SimpleNamespace(of=lambda *a: a)
  progress = types.SimpleNamespace(begin=lambda label: None)
  testing._run_job(servers, jobs.Job(
      base, "mended", HERE, "x.py", (Red(("T.a(*",), "^E"),), case=3,
      env=(("JAX_MEND", "c"),)), progress)
  assert seen == [(HERE.python, base, {"JAX_MEND": "c"})]


def test_an_environment_is_made_once_and_when_it_is_asked_for():
  made = []
  lazy = environments.Lazy(lambda: made.append(1) or pathlib.Path("p"))
  assert not made
  with concurrent.futures.ThreadPoolExecutor(4) as pool:
    found = list(pool.map(lambda _: lazy.python, range(8)))
  assert made == [1] and set(found) == {pathlib.Path("p")}


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
