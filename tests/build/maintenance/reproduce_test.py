# SPDX-License-Identifier: Apache-2.0
"""The reports' programs, run on a Python."""

import pathlib
import sys

from conftest import REPRODUCTION, write
from mend.editing import patches, reproductions
from mend.ground.errors import MendError
from mend.proof import reproduce
from mend.releases import bases
import pytest


def reproduction(body, tmp_path):
  path = write(
      tmp_path / "r.py",
      f'REPORT = "toy#1"\n\ndef seen():\n  "Line."\n  {body}\n')
  (item,) = reproductions._read_file(path, "greeting", "", "f.py")
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
  items = [*reproductions._read_file(path, "old", "<0.6", "f.py"),
           *reproductions._read_file(path, "new", ">=0.6.0", "f.py")]
  for jax, wanted in (("0.5.3+mend.2", ["PASS", "n/a"]),
                      ("0.7.0", ["n/a", "PASS"])):
    what = reproduce.Environment(jax, "0.7.0")
    outcomes = reproduce.run_for(items, sys.executable, what)
    assert [o.status for o in outcomes] == wanted
  assert "Mend, on jax 0.5.3" in str(reproduce.Environment("0.5.3+mend.2", ""))


def test_a_python_may_be_named_from_here(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  named = tmp_path / "bin" / "python"
  assert reproduce.absolute_path("bin/python") == str(named)
  assert reproduce.absolute_path("python3") == "python3"


def test_what_crashed_is_not_remembered(tmp_path, monkeypatch):
  path = write(tmp_path / "r.py", 'REPORT = "toy#1"\n\ndef seen():\n  '
               '"Line."\n  import os; os._exit(3)\n')
  items = reproductions._read_file(path, "greeting", "", "f.py")
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
  with pytest.raises(MendError, match="no jax that can be imported") as error:
    reproduce.describe(sys.executable)
  running = ".".join(map(str, sys.version_info[:3]))
  newest = bases.nearest("99", running).version
  assert f"pip install 'jax[cpu]=={newest}'" in error.value.next_step


@pytest.mark.parametrize("name", ("jax.py", "jax/__init__.py"))
def test_what_is_called_jax_and_is_not_jax(tmp_path, monkeypatch, name):
  fake = write(tmp_path / "fake" / name, "")
  monkeypatch.setenv("PYTHONPATH", str(tmp_path / "fake"))
  with pytest.raises(MendError, match=f"gives {fake}, which is not") as error:
    reproduce.describe(sys.executable)
  assert error.value.next_step.startswith(f"rename {fake}, ")


@pytest.mark.parametrize("jax,words", [
    ("0.6.2", "python -m pip install ./live, and import"),
    ("0.4.30", "python -m pip install 'jax==0.5.1' (jax 0.4.30 is none of"),
    ("0.6.9+x.1", "pip install 'jax==0.6.2' (jax 0.6.9+x.1 is"),
    ("0.6.2+mend.0", "build it anew, python3 build/build.py build "
     "--base=0.6.2")])
def test_what_to_do_is_what_will_be_accepted(jax, words):
  """It named `pip install ./live` for each, which is refused on another."""
  step = reproduce.next_step("python", reproduce.Environment(jax, jax))
  assert words in step
  assert ("./live" in step) == ("+mend" not in jax)
