# SPDX-License-Identifier: Apache-2.0
"""The set of commits for upstream, on stand-ins of upstream's test files."""

import ast

from checkouts import GREET_TEST, SENDABLE, with_block
from conftest import write
from mend.editing import patches
from mend.ground.errors import MendError
from mend.trees import stand_ins
from mend.upstream import commits
import pytest


@pytest.fixture
def places(project, tmp_path):
  """Stores the places of the edits that a patch makes."""
  (project / "build").mkdir()

  def run(*blocks):
    write(project / "patches" / "series", "".join(
        f"greet/patch{i}\n" for i, _ in enumerate(blocks)))
    for i, block in enumerate(blocks):
      write(project / "patches" / "greet" / f"patch{i}.toml", with_block(
          block).replace('"greet/greeting"', f'"greet/patch{i}"'))
    series = patches.load(project)
    write(tmp_path / "clone" / "tests" / "greet_test.py", GREET_TEST)
    found = stand_ins.found_in(
        tmp_path / "clone", [p.upstream.commit for p in series])
    stand_ins.store(found, project)
    return series, found
  return run


def test_names_in_their_order_and_nothing_else(places, tmp_path):
  _, found = places(SENDABLE.replace('after = "def:test_first"', ""),
                    SENDABLE.replace("test_first", "test_second").replace(
                        "[[upstream.edit]]", """[[upstream.edit]]
file = "tests/greet_test.py"
op = "insert"
before = "import:config"
code = "import os"

[[upstream.edit]]""", 1))
  assert found == {"tests/greet_test.py": [
      "import config", "GreetTest", "GreetTest.test_second"]}
  stand_ins.write({**found, "tests/empty_test.py": ["Alone"]}, tmp_path)
  text = (tmp_path / "tests" / "greet_test.py").read_text("utf-8")
  first, second = ast.parse(text).body
  assert first.names[0].name == "config" and second.name == "GreetTest"
  assert "test_first" not in text
  ast.parse((tmp_path / "tests" / "empty_test.py").read_text("utf-8"))


def test_the_set_applies(places, project, base, upstream):
  series, _ = places(SENDABLE)
  assert commits.check(series, base, upstream, project) == (1, [])


@pytest.mark.parametrize("old, new, words", [
    ("assign:out", "assign:gone", "upstream edit 1"),
    ("def:test_first", "def:test_gone", "upstream edit 2"),
    ("in = \"GreetTest\"", "in = \"Gone\"", "upstream edit 2"),
    ("tests/greet_test.py", "tests/gone_test.py", "no stand-in")])
def test_what_has_no_place(old, new, words, places, project, base, upstream):
  series, _ = places(SENDABLE.replace(old, new))
  count, (line,) = commits.check(series, base, upstream, project)
  assert count == 1 and words in line


def test_an_edit_of_a_tests_body_needs_none(places, project, base, upstream):
  series, _ = places(SENDABLE.replace("[[upstream.edit]]", """[[upstream.edit]]
file = "tests/greet_test.py"
op = "replace_statement"
in = "GreetTest.test_first"
value = "call:assertEqual#1"
code = ""

[[upstream.edit]]""", 1))
  assert commits.check(series, base, upstream, project) == (1, [])


def test_two_that_conflict(places, project, base, upstream):
  series, _ = places(SENDABLE, SENDABLE.replace("Hello", "Hi"))
  count, (line,) = commits.check(series, base, upstream, project)
  assert count == 2 and "not after those before it (greet/patch0)" in line


def test_none_are_counted_as_none(project, base):
  assert commits.check(
      patches.load(project), base, root=project) == (0, [])


def test_places_that_nobody_stored(project):
  with pytest.raises(MendError, match="There is no build/upstream_places.json"):
    stand_ins.read(project)
