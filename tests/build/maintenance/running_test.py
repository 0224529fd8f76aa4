# SPDX-License-Identifier: Apache-2.0
"""Test files that pass, fail, crash and hang."""

import concurrent.futures
import os
import sys
import threading
import time

from conftest import write
from mend.proof import fork_servers, judging, pools, pytest_run
from mend.proof.pytest_run import Outcome
from mend.releases import bases
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
    with pools.pool() as pool:
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


def test_a_file_without_tests_is_a_failure(tmp_path):
  out = run(write(tmp_path / "empty_test.py", ""))
  assert judging.judge_mended("empty", out, ()).failures == [
      "empty: no test ran"]


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
