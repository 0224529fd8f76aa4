# SPDX-License-Identifier: Apache-2.0
"""Upstream's checks, each by itself, of files that are made here."""

import dataclasses
import json
import sys

import checkouts
from conftest import write
from mend.ground.errors import MendError
from mend.upkeep import upstream_checks, verifying
from mend.upkeep.upstream_checks import Finding, Tools
import pytest


@pytest.fixture
def clone(tmp_path):
  """The files of a checkout that the checks read."""
  for name, text in ((upstream_checks.CONFIG, checkouts.HOOKS),
                     (upstream_checks.COPYRIGHT, checkouts.COPYRIGHT)):
    write(tmp_path / "clone" / name, text)
  return tmp_path / "clone"


@pytest.fixture
def tools():
  return Tools([sys.executable, "-m", "ruff"], [], sys.executable,
               sys.executable)


def test_the_difference_of_type_errors():
  one = upstream_checks.Errors({"a": 1, "b": 2})
  two = upstream_checks.Errors({"a": 1, "b": 3, "c": 1})
  assert upstream_checks.types(one, two, ["jax/a.py"]).problems == (
      "1 x b", "1 x c")
  assert upstream_checks.types(two, one, ["jax/a.py"]).good
  assert json.dumps(one) == json.dumps({"a": 1, "b": 2})


def test_new_circles_of_targets():
  before = {"a": {"b"}, "b": {"a"}, "c": set()}
  assert upstream_checks.circles(before, {**before, "d": {"c"}}).good
  found = upstream_checks.circles(before, {**before, "c": {"d"}, "d": {"c"}})
  assert found.problems == ("c <-> d",)
  assert not upstream_checks.circles({}, {}).good


def test_new_files_have_a_copyright_line(tools, clone):
  write(clone / "jax" / "_src" / "new.py", "x = 1\n")
  found = upstream_checks.licence(tools, clone, ["jax/_src/new.py", "a.md"])
  assert found.count == 1 and found.problems == ("jax/_src/new.py",)


def test_what_looked_at_nothing_is_not_good(tools, clone):
  assert not upstream_checks.ruff(tools, clone, ["a.md"]).good
  assert not upstream_checks.lines(clone, "").good
  assert not verifying.judged({}, {}).good
  assert str(Finding("x", 0, "files")) == "x: 0 files, looked at nothing"


def test_a_tool_that_fails(tools, clone, tmp_path):
  broken = dataclasses.replace(
      tools, pyrefly=[sys.executable, "-c", "exit('no such option')"],
      ruff=[sys.executable, "-c", "exit('no such option')"])
  with pytest.raises(MendError, match="pyrefly failed: no such option"):
    upstream_checks.type_errors(broken, clone)
  assert upstream_checks.ruff(broken, clone, ["a.py"]).problems == (
      "no such option",)


def test_the_versions_are_upstreams(clone):
  assert upstream_checks.pinned(clone) == {
      "ruff-pre-commit": "0.16.1", "pyrefly-pre-commit": "1.1.1"}
  (clone / upstream_checks.CONFIG).unlink()
  with pytest.raises(MendError, match="pins no ruff"):
    upstream_checks.pinned(clone)
