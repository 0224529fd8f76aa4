# SPDX-License-Identifier: Apache-2.0
"""Our tests as upstream has them: names, imports, and those that stay here."""

import subprocess
import sys

from checkouts import BUILD, SECOND, TESTS_BUILD, git
from conftest import PATCH, write
from mend.editing import patches
from mend.trees import export, test_files, wrapping
import pytest

MODULES = {"testing.sharding": "sharding_testing",
           "greet.testing.common": "polite_common_testing",
           "greet.testing.other": "polite_other_testing"}
FOLDER = "jax._src.internal_test_util"


@pytest.mark.parametrize("ours, theirs", [
    ("from testing.sharding import a, b",
     f"from {FOLDER}.sharding_testing import a, b"),
    ("import jax\nimport numpy as np\nfrom testing.sharding import a",
     f"import jax\nfrom {FOLDER}.sharding_testing import a\n"
     "import numpy as np"),
    ("from greet.testing import common",
     f"from {FOLDER} import polite_common_testing as common"),
    ("from greet.testing import common as c, more",
     f"from greet.testing import more\n"
     f"from {FOLDER} import polite_common_testing as c"),
    ("import greet.testing.common as smt  # noqa: F401",
     f"from {FOLDER} import (  # noqa: F401\n"
     "    polite_common_testing as smt)"),
    ("from greet.testing.common import (\n    a, b)\nimport abc",
     f"import abc\nfrom {FOLDER}.polite_common_testing import (\n    a, b)"),
    ("def f():\n  from greet.testing.other import x",
     f"def f():\n  from {FOLDER}.polite_other_testing import x"),
    ("from greet.testing.common import " + ", ".join("abcdefghijkl"),
     f"from {FOLDER}.polite_common_testing import (\n"
     "    a, b, c, d, e, f, g, h, i, j, k, l)"),
    ("from greet.testings import common", "from greet.testings import common"),
])
def test_imports_of_shared_modules(ours, theirs):
  assert test_files.renamed(f"{ours}\n", MODULES) == f"{theirs}\n"


def test_words_of_a_docstring_are_no_import():
  text = ('"""Doors.\n\nfrom here to there\n"""\nimport os\n'
          "from testing.sharding import a\n\nx = 1\n")
  assert test_files.renamed(text, MODULES) == (
      '"""Doors.\n\nfrom here to there\n"""\n'
      f"from {FOLDER}.sharding_testing import a\nimport os\n\nx = 1\n")


@pytest.mark.parametrize("before, after", [
    ("  x = f(" + "argument, " * 8 + "argument)",
     "  x = f(" + "argument, " * 6 + "argument,\n        argument, argument)"),
    ("  x = ffffffffffffffffffffffffff.ggggggggggggggggggggg(hhhhhhhhhhh(iiiii,"
     " jjjjjjj), kkk)",
     "  x = ffffffffffffffffffffffffff.ggggggggggggggggggggg(\n"
     "      hhhhhhhhhhh(iiiii, jjjjjjj), kkk)"),
    ("  x = [" + "'a, b', " * 10 + "'a, b']",
     "  x = [" + "'a, b', " * 8 + "'a, b',\n       'a, b', 'a, b']"),
    ("  x = '" + "(a, b) " * 15 + "'", None),
    ("  # " + "(a, b) " * 15, None),
    ("  x = " + "yyyyyyyyy + " * 9 + "1", None),
])
def test_long_lines(before, after):
  text = f"def g():\n{before.rstrip()}\n  return x\n"
  found = wrapping.wrapped(text, "")
  assert found == (text if after is None else text.replace(before, after))
  assert "".join(found.split()) == "".join(text.split())
  assert wrapping.wrapped(text, text) == text


def test_a_line_behind_an_open_bracket():
  text = "x = f(\n    a,\n    g(" + "bbbbbbbbb, " * 8 + "b), c)\n"
  found = wrapping.wrapped(text, "")
  assert found == ("x = f(\n    a,\n    g(" + "bbbbbbbbb, " * 5 + "bbbbbbbbb,\n"
                   "      bbbbbbbbb, bbbbbbbbb, b), c)\n")


def test_upstreams_tests_can_be_run_alone():
  head, body = '"""About it."""\nimport os\n\n', (
      "import jax\nfrom jax._src import test_util as jtu\n\n"
      "jax.config.parse_flags_with_absl()\n")
  found = test_files.runnable(head + body)
  assert found == head + "from absl.testing import absltest\n" + body + (
      "\n\nif __name__ == '__main__':\n"
      "  absltest.main(testLoader=jtu.JaxTestLoader())\n")
  assert test_files.runnable(found) == found
  other = "import jax\n"  # not a test of absltest
  assert test_files.runnable(other) == other


@pytest.fixture
def exported(project, base, upstream, tmp_path):
  """Exports named patches, each alone, to a clone that they apply to."""
  tests = project / "tests" / "greet"
  write(project / "patches" / "series", "greet/greeting\ngreet/fork\n")
  write(project / "patches" / "greet" / "greeting.toml", PATCH.replace(
      'tests = ["tests/greet/greeting_test.py"]',
      'tests = ["tests/greet/greeting_test.py", "tests/greet/doc_test.py"]'))
  write(project / "patches" / "greet" / "fork.toml", SECOND.replace(
      "jax/_src/greet.py", "jax/version.py"))
  write(tests / "testing" / "pages.py", "raise FileNotFoundError\n")
  write(tests / "doc_test.py", "from greet.testing import pages\n")
  write(tests / "testing" / "shared.py", "SHARED = 1\n")
  body = "\n\n\ndef test_it():\n  assert True\n"
  write(tests / "fork_test.py",
        "from greet.testing.shared import SHARED" + body)
  write(tests / "greeting_test.py", "import jax" + body)
  series = patches.load(project)
  clone = tmp_path / "clone"
  write(clone / "pyproject.toml", "[tool.pytest.ini_options]\n"
        'addopts = "--import-mode=importlib"\n')
  other = TESTS_BUILD.partition("\n\n")[2].replace("old", "other")
  for name, text in (("jax/BUILD", BUILD),
                     ("tests/BUILD", f"{TESTS_BUILD}\n{other}"),
                     ("jax/_src/internal_test_util/__init__.py", "")):
    write(clone / name, text)
  for path in upstream.rglob("*.py"):
    write(clone / path.relative_to(upstream), path.read_text("utf-8"))
  git(clone, "init", "--quiet")
  git(clone, "add", "--all", "--force")
  git(clone, "commit", "--quiet", "--message=upstream")

  def run():
    for patch in series:
      out = tmp_path / patch.id.replace("/", "-")
      export.export([patch], base, upstream, out, clone, project)
    for file in sorted(tmp_path.glob("greet-*/0001-*.patch")):
      git(clone, "am", "--quiet", "--keep-non-patch", str(file))
    return clone
  return run


def test_commits_made_alone_apply_and_their_tests_collect(exported):
  clone = exported()
  done = subprocess.run(
      [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider",
       "tests"], cwd=clone, capture_output=True, text=True, check=False)
  assert "2 passed" in done.stdout, done.stdout + done.stderr
  assert sorted(p.name for p in (clone / "tests").iterdir()
                if p.suffix == ".py") == [
      "polite_fork_test.py", "polite_greeting_test.py"]


def test_the_tests_of_pages_stay_here(exported, project):
  exported()
  series = patches.load(project)
  assert [*test_files.names(series, project)] == [
      "tests/greet/greeting_test.py", "tests/greet/fork_test.py",
      "tests/greet/testing/shared.py"]
  assert "doc_test" not in export.message(series[0], project)
