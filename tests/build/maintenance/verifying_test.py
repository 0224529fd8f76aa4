# SPDX-License-Identifier: Apache-2.0
"""Upstream's checks of commits, on a small checkout that is made here."""

import re
import shutil
import sys

import checkouts
from checkouts import BUILD, SENDABLE, TESTS_BUILD, git, with_block
from conftest import write
from mend.editing import patches
from mend.trees import export, sending
from mend.trees.git import Author
from mend.upkeep import copies, upstream_checks, verifying
from mend.upkeep.upstream_checks import Tools
import pytest

HEAD = "# Copyright 2026 The JAX Authors.\n"
AUTHOR = Author("Some Body", "some@body.example", "1700000000 +0200")
TEST = HEAD + """
import unittest

from jax._src import greet


class GreetTest(unittest.TestCase):

  def test_first(self):
    greet.Greeter()

  def test_second(self):
    greet.Greeter()
"""


@pytest.fixture
def clone(upstream, tmp_path):
  folder = tmp_path / "clone"
  shutil.copytree(upstream, folder)
  greet = folder / "jax" / "_src" / "greet.py"
  write(greet, HEAD + "# a wrong type of old\n" + greet.read_text(
      "utf-8").lstrip().replace("import os\n", ""))
  for name, text in (("tests/greet_test.py", TEST),
                     ("pyproject.toml", checkouts.SETTINGS),
                     (upstream_checks.CONFIG, checkouts.HOOKS),
                     (upstream_checks.COPYRIGHT, checkouts.COPYRIGHT)):
    write(folder / name, text)
  git(folder, "init", "--quiet")
  git(folder, "add", "--all", "--force")
  git(folder, "commit", "--quiet", "--message=upstream")
  return folder


@pytest.fixture
def tools(tmp_path):
  types = write(tmp_path / "type_checker.py", checkouts.TYPES)
  return Tools([sys.executable, "-m", "ruff"], [sys.executable, str(types)],
               sys.executable, sys.executable)


@pytest.fixture
def kept():
  """The runs that a verification stores."""
  return []


@pytest.fixture
def verified(project, base, clone, tools, tmp_path, capsys, kept):
  """Exports a block, verifies it; the verdict and what was said."""
  def run(block, *more):
    names = [f"patch{i}" for i in range(1 + len(more))]
    write(project / "patches" / "series", "".join(
        f"greet/{name}\n" for name in names))
    for name, text in zip(names, (block, *more)):
      write(project / "patches" / "greet" / f"{name}.toml", with_block(
          text).replace('"greet/greeting"', f'"greet/{name}"'))
    made, _ = sending.all_made(patches.load(project), base, clone)
    out = tmp_path / "out"
    files, _ = sending.write(made, base, clone, out, AUTHOR)
    found = verifying.verify(out, dict(zip(files, made)), clone, tools,
                             kept.append)
    return found, capsys.readouterr().out
  return run


def test_a_good_commit(verified):
  verdict, said = verified(SENDABLE)
  assert verdict.good, said
  assert "1 commit with 1 test pass" in verdict.words
  for words in ("ruff: 2 files, clean", "copyright: 2 files, clean",
                "lines: 5 added lines, clean", "pyrefly: 1 changed files, cle",
                "collection: 3 tests, clean", "red to green: 1 tests, clean",
                "all 1, one after another", "tests: 1 tests, clean"):
    assert words in said, said


@pytest.mark.parametrize("old, new, words", [
    ("out += name\n", "out += name\nunused = 1\n", "ruff: .*F841"),
    ("out += name\n", "out += name  # a wrong type\n",
     r"pyrefly: 1 x .*greet.py: .*wrong type \[bad\]"),
    ("out += name\n", f"out += name  # {'long ' * 15}here\n",
     "lines: 9. columns"),
    ("out += name\n", "out += name\n\n# Two.\n\n", None),
    ('"Hello", greet', '"oi", greet', "red to green: .*test_hello: failed wi"),
    ('"Hello", greet', '"you", greet', "no test fails without the source"),
    ("def test_hello", "def hello", "collection: it adds or changes no test"),
    ("self.assertIn", "import os\n  os._exit(3)\n  self.assertIn",
     "test_hello: died with the source"),
    ('self.assertIn("H', 'self.skipTest("no")\n  self.assertIn("H',
     "test_hello: skipped with the source"),
])
def test_what_upstream_would_refuse(old, new, words, verified):
  assert old in SENDABLE
  verdict, said = verified(SENDABLE.replace(old, new))
  assert verdict.good == (words is None), said
  if words:
    assert re.search("WRONG: .*" + words, said), said
    assert "upstream would refuse 0001-" in verdict.words


def test_only_a_good_run_is_kept(verified, kept):
  verdict, _ = verified(SENDABLE)
  ((made, tests, red),) = kept[0]
  assert verdict.good and (made.patch, len(tests), red) == (
      "greet/patch0", 1, 1)


@pytest.mark.parametrize("old, new, good", [
    ("oi", "oi", True), ("oi", "Hello", False)])
def test_on_a_releases_sources(old, new, good, verified, kept, clone, tools,
                               project, base, upstream, tmp_path, capsys):
  verified(SENDABLE)
  greet = upstream / "jax" / "_src" / "greet.py"
  write(greet, "# A release.\n" + greet.read_text("utf-8").replace(old, new))
  copy = copies.Copy(clone, tmp_path, tools, upstream)
  commits, _ = sending.all_made(patches.load(project), base, copy.folder)
  folder = tmp_path / "released"
  names, _ = sending.write(commits, base, copy.folder, folder, AUTHOR)
  found = verifying.on_release(dict(zip(names, commits)), folder, kept[0], copy)
  assert found == (["greet/patch0"] if good else [])
  assert ("no test fails without the source" in capsys.readouterr().out) != good


def test_what_fails_together_is_not_kept(verified, kept):
  verdict, _ = verified(SENDABLE.replace('"Hello", greet', '"oi", greet'))
  assert not verdict.good and not kept


REPORT = '''report = { program = \"\"\"
from jax._src import greet
print(greet.Greeter().greet("you"))
\"\"\", output = "%s" }'''


@pytest.mark.parametrize("output, words", [
    ("oi you", None), ("moin", "report: without the commit it prints 'oi you"),
    ("you", "report: with the commit it prints the same")])
def test_the_program_of_a_report(output, words, verified):
  verdict, said = verified(SENDABLE.replace(
      'closes = ["28193"]', REPORT % output))
  assert verdict.good == (words is None), said
  assert f"WRONG: {words}" in said if words else (
      "report: 1 program, clean" in said)


@pytest.mark.parametrize("word, good", [("you", True), ("Hello", False)])
def test_a_commit_that_guards(word, good, verified):
  head, _, test = SENDABLE.split("[[upstream.edit]]")
  verdict, said = verified(f"{head}[[upstream.edit]]{test}".replace(
      'closes = ["28193"]', "guard = true").replace('"Hello"', f'"{word}"'))
  assert verdict.good == good, said
  assert "guards: 1 tests, " + ("clean" if good else "1 wrong") in said


@pytest.mark.parametrize("needs", [True, False])
def test_a_commit_that_needs_another(needs, verified, kept):
  head, *_ = SENDABLE.split("[[upstream.edit]]")
  if needs:
    head = head.replace("closes", 'after = ["greet/patch0"]\ncloses')
  verdict, said = verified(SENDABLE, head + '''
[[upstream.edit]]
file = "jax/_src/greet.py"
op = "insert"
after = "assign:__all__"
code = """
def loud(name):
  return Greeter().greet(name).upper()
"""

[[upstream.edit]]
file = "tests/greet_test.py"
op = "add_member"
in = "GreetTest"
after = "def:test_second"
code = """
def test_loud(self):
  self.assertEqual(greet.loud("you"), "HELLO, YOU")
"""
''')
  assert verdict.good == needs, said
  assert [made.patch for made, _, red in kept[0] if red == 1] == [
      "greet/patch0", "greet/patch1"][:1 + needs]
  assert ("test_loud: failed with the source" in said) != needs, said


def test_a_test_that_is_changed(verified):
  verdict, said = verified(SENDABLE.replace(
      "add_member", "replace_body").replace(
      'in = "GreetTest"\nafter = "def:test_first"',
      'in = "GreetTest.test_second"\ntakes = ["self"]').replace(
          "def test_hello(self):\n  self", "self"))
  assert verdict.good, said
  assert "red to green: 1 tests, clean" in said


def test_the_tests_whose_code_changes():
  before = "class A:\n  def test_a(self): pass\n  def test_a_b(self): pass\n"
  after = before.replace("b(self): pass", "b(self): return")
  ids = ["f.py::A::test_a", "f.py::A::test_a0", "f.py::A::test_a_b1"]
  assert upstream_checks.changed_tests(before, after, ids) == [ids[2]]
  assert not upstream_checks.changed_tests("", after, ids)


def test_a_crash_without_the_source_is_red_and_others_are_guards(verified):
  verdict, said = verified(SENDABLE.replace("  self.assertIn", """
  if "oi" in greet.Greeter().greet("you"):
    import os
    os._exit(3)

def test_guard(self):
  self.assertIn("you", greet.Greeter().greet("you"))

def test_polite(self):
  self.assertIn""".lstrip("\n")))
  assert verdict.good, said
  assert "red to green: 2 tests and 1 guard, clean" in said


def test_a_test_that_needs_the_other_commit(verified, kept):
  other = SENDABLE.replace("test_hello", "test_other").replace(
      "test_first", "test_second").replace(
          'in = "Greeter.greet"\nvalue = "assign:out"',
          'value = "assign:__all__"').replace(
              "out = \"Hello, \"\nout += name", "__all__ = []")
  verdict, said = verified(SENDABLE, other)
  assert not verdict.good
  assert "GreetTest::test_other: failed with the source" in said
  assert [made.patch for made, *_ in kept[0]] == ["greet/patch0"]
  assert "all 2, one after another: ruff: 2 files, clean" in said


@pytest.fixture
def series(project, base, clone, tools, tmp_path, capsys):
  """Exports the whole series, verifies it; the verdict and what was said."""
  def run():
    out = tmp_path / "out"
    git(clone, "add", "--all", "--force")
    git(clone, "commit", "--quiet", "--allow-empty", "--message=more")
    names = export.export(patches.load(project), base, clone, out, clone,
                          project)
    found = verifying.verify_series(out, names, clone, tools)
    return found, capsys.readouterr().out
  return run


def test_a_whole_series(series, project, clone):
  write(clone / "jax" / "BUILD", BUILD)
  write(clone / "tests" / "BUILD", TESTS_BUILD)
  write(project / "tests" / "greet" / "greeting_test.py", TEST)
  verdict, said = series()
  assert verdict.good, said
  assert re.search("ruff: 4 files, clean; lines: [0-9]+ added lines, clean; "
                   "Bazel: 5 targets, clean; collection: 2 tests in 1 files, "
                   "clean", said), said


def test_a_whole_series_that_is_refused(series, project):
  write(project / "tests" / "greet" / "greeting_test.py",
        TEST + "from nowhere import nothing\n")
  verdict, said = series()
  assert not verdict.good
  assert "WRONG: ruff" in said and "WRONG: collection" in said
