# SPDX-License-Identifier: Apache-2.0
"""Executables and outcomes that one run of tests leaves to the next."""

import dataclasses
import os
import pathlib

from conftest import write
from mend.ground import cache
from mend.proof import kept, pristine_runs
from mend.proof.pytest_run import Outcome
from mend.releases import bases
import pytest


def test_what_was_used_longest_ago_goes_first(tmp_path):
  for age, name in enumerate("abcd"):
    path = write(tmp_path / "x" / name, "1234567890")
    os.utime(path, (1e9 - age, 1e9 - age))
  os.utime(write(tmp_path / "empty", ""), (2e9, 2e9))  # a killed run's
  cache.bound(tmp_path, 25)
  assert sorted(p.name for p in tmp_path.rglob("*") if p.is_file()) == [
      "a", "b"]


def test_each_jaxlib_has_a_folder_of_its_own(base, monkeypatch):
  base = dataclasses.replace(base, requirements=("numpy==1", "jaxlib==1"))
  other = dataclasses.replace(base, requirements=("numpy==1", "jaxlib==2"))
  twin = dataclasses.replace(base, requirements=("numpy==2", "jaxlib==1"))
  first = kept.executables(base)
  assert first == kept.executables(twin) != kept.executables(other)
  monkeypatch.setattr(kept, "processor", lambda: "another")
  assert kept.executables(base) != first


FOUND = {"T.t": Outcome("failed", "ValueError: x", case="T.t()"),
         "T.u": Outcome("passed")}


@pytest.fixture
def remember(tmp_path, monkeypatch):
  monkeypatch.setattr(bases, "ROOT", tmp_path)
  write(tmp_path / "tests" / "a_test.py", "from testing import shared\n")
  write(tmp_path / "tests" / "testing" / "shared.py", "import other.deep\n")
  write(tmp_path / "tests" / "other" / "deep.py", "x = 1\n")
  def memory(python="envs/pristine-1/bin/python", settings=None, options=()):
    return pristine_runs.Memory(pathlib.Path(python), "tests/a_test.py",
                                settings or {"A": "1"}, options)
  return memory


def test_outcomes_are_those_that_were_kept(remember):
  assert remember().read() is None
  remember().keep(FOUND)
  found = remember().read()
  assert found == FOUND and found["T.t"].case == "T.t()"


@pytest.mark.parametrize("change", [
    dict(python="envs/pristine-2/bin/python"), dict(settings={"A": "2"}),
    dict(options=("-x",))])
def test_another_wheel_or_way_to_run_is_run(remember, change):
  remember().keep(FOUND)
  assert remember(**change).read() is None


@pytest.mark.parametrize("name", [
    "a_test.py", "testing/shared.py", "other/deep.py"])
def test_a_change_of_the_file_or_of_what_it_imports_is_run(
    remember, tmp_path, name):
  remember().keep(FOUND)
  path = tmp_path / "tests" / name
  path.write_text(path.read_text() + "y = 2\n")
  assert remember().read() is None


def test_a_file_that_reads_others_is_run_each_time(remember, tmp_path):
  write(tmp_path / "tests" / "other" / "deep.py", "open(__file__)\n")
  remember().keep(FOUND)
  assert remember().read() is None
