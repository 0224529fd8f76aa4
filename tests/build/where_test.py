# SPDX-License-Identifier: Apache-2.0
"""`build.py where`: from a file to its patch, tests and pages in one step."""

from conftest import ROOT, write
from mend.editing import patches
from mend.ground.errors import MendError
from mend.house import where
import pytest

GREETING = "patches/greet/greeting.toml"


def found(project, file, scope=""):
  return where.rows(file, patches.load(project), project, scope)


@pytest.mark.parametrize("file", [
    "jax/_src/polite.py", GREETING, "tests/greet/greeting_test.py",
    "reproductions/greet/greeting.py", "jax/_src/greet.py"])
def test_each_file_of_a_patch_leads_to_all(project, file):
  rows = found(project, file)
  for row in (("family", "greet"), ("page", "docs/greet.md"),
              ("patch", "greet/greeting: [greet] Say hello politely"),
              ("edit", f"{GREETING}: replace_body in jax/_src/greet.py "
               "Greeter.greet"),
              ("test", "tests/greet/greeting_test.py"),
              ("reproduction", "reproductions/greet/greeting.py")):
    assert row in rows


def test_who_imports_it(project):
  write(project / "jax" / "_src" / "greeting" / "user.py",
        "from jax._src import polite\n")
  assert [row for row in found(project, "jax/_src/polite.py")
          if row[0] == "imported by"] == [
              ("imported by", "jax/_src/greeting/user.py")]


def test_a_line_of_upstreams_has_its_definitions_edits(project, upstream):
  path = upstream / "jax" / "_src" / "greet.py"
  lines = path.read_text("utf-8").splitlines()
  line = lines.index('    out = "oi " + name') + 1
  scope = where.scope_of(path, line)
  assert scope == "Greeter.greet"
  assert where._from_root(str(path), project) == "jax/_src/greet.py"
  edits = [v for k, v in found(project, "jax/_src/greet.py", scope)
           if k == "edit"]
  assert edits == [f"{GREETING}: replace_body in jax/_src/greet.py "
                   "Greeter.greet"]
  assert not found(project, "jax/_src/greet.py", "Greeter.leave")
  assert not where.scope_of(path, 1)


@pytest.mark.parametrize("place,words", [
    ("jax/_src/nothing.py", "is no file of a patch"),
    ("jax/_src/polite.py:x", "'x' is no line")])
def test_what_is_nowhere_is_refused(project, place, words):
  with pytest.raises(MendError, match=words):
    where.show(place, project)


def test_each_module_that_ships_is_found():
  series = patches.load()
  for patch in series[::20]:
    for module in patch.modules[:1]:
      rows = where.rows(module, series, ROOT)
      assert any(v.startswith(f"{patch.id}: ") for _, v in rows)
