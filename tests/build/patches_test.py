# SPDX-License-Identifier: Apache-2.0
"""Refusals of faulty patches, and their words."""

import pathlib

from conftest import FAMILIES, PATCH, marked_pages, write
from mend.editing import families, patches, reproductions
from mend.ground.errors import MendError
from mend.house import docs, frozen
from mend.releases import bases
import pytest

REASON = '"^AssertionError: .*a rude greeting"'


def test_a_good_patch_is_read(project, base):
  (patch,) = patches.load(project)
  assert patch.id == "greet/greeting"
  assert [e.op for e in patch.edits_for(base)] == ["add_import", "replace_body"]
  assert patch.red[0].reason == "^AssertionError: .*a rude greeting"


@pytest.mark.parametrize("old, new, words", [
    ('id = "greet/greeting"', 'id = "other"', "its id is 'other'"),
    ('title = "[greet] Say hello politely"', "", "missing key title"),
    ('modules = ', 'colour = 1\nmodules = ', "unknown key colour"),
    ('[[edit]]', '[[red]]\ntests = []\n[[edit]]', "unknown key red"),
    ('op = "add_import"', 'op = "guess"', "unknown op 'guess'"),
    ('op = "add_import"', 'op = "add_import"\ntext = "x"', "unknown key text"),
    ('in = "Greeter.greet"', "", "replace_body needs in"),
    ('takes = ["self", "name"]', "", "replace_body needs takes"),
    ('bases = ">=1.0"', 'bases = "newest"', "no version specifier"),
    ('"not-sent"', '"maybe"', "upstream.status is 'maybe'"),
    ('"jax/_src/polite.py"', '"jax/_src/gone.py"', "gone.py, which does not"),
    ('"tests/greet/greeting_test.py"', '"tests/greet/gone.py"',
     "gone.py, which does not"),
    ('code = "from jax._src import polite"',
     'code = """a\nb\nc\nd\ne\nf"""', "6 lines, at most 5"),
    ('"tests/greet/greeting_test.py"', '"jax/_src/polite.py"',
     "not in tests/FAMILY"),
    ('id = "greet/greeting"', 'id = ', "no valid TOML"),
    ('file = "jax/_src/greet.py"', 'file = "/etc/passwd"',
     "edit 1: file '/etc/passwd' is no path within the tree"),
    ('file = "jax/_src/greet.py"', 'file = "jax/../../x.py"', "is no path"),
    ('file = "jax/_src/greet.py"', 'file = ""', "is no path within"),
    ('"jax/_src/polite.py"', '"../polite.py"', "is no path within"),
    ('"tests/greet/greeting_test.py"', '"/tmp/greeting_test.py"', "is no path"),
    ('"tests/greet/greeting_test.py"', "'C:\\\\a_test.py'", "is no path"),
    ('"reproductions/greet/greeting.py"', '"reproductions/../../g.py"',
     "is no path"),
])
def test_a_bad_patch_is_refused(project, old, new, words):
  assert old in PATCH
  write(project / "patches" / "greet" / "greeting.toml",
        PATCH.replace(old, new, 1))
  with pytest.raises(MendError, match=words) as error:
    patches.load(project)
  assert "greeting" in str(error.value) and "Next: edit" in str(error.value)


@pytest.mark.parametrize("old, new, words", [
    ('bases = ">=1.0"', "bases = 1.0", "bases: wanted text, found a number"),
    ('tests = ["tests/greet/greeting_test.py"]', 'tests = "x.py"',
     r"greeting: tests: wanted a list \[...\], found text"),
    ('code = "from jax._src import polite"', "code = 3",
     "edit 1: code: wanted text or a table of releases, found a whole number"),
    ('takes = ["self", "name"]', 'takes = ["self", 1]',
     "edit 2: takes 2: wanted text, found a whole number"),
    ('upstream = { status = "not-sent", pr = "", landed_in = "" }',
     'upstream = "none"', "upstream: wanted a table, found text")])
def test_a_value_of_the_wrong_type_is_named(project, old, new, words):
  test_a_bad_patch_is_refused(project, old, new, words)


def _superseding(project, text):
  write(project / "patches" / "greet" / "greeting.toml",
        f'{PATCH}\n[[supersedes]]\nwhy = "it wants to be asked"\n{text}\n')


def test_a_refusal_without_a_test_of_upstream(project):
  _superseding(project, f"refusal = {REASON}")
  (patch,) = patches.load(project)
  (item,) = patch.supersedes
  assert item.refusal in [r.reason for r in patch.red] and not item.tests
  assert "it wants to be asked" in docs.reversals([patch])
  write(project / "docs" / "proof" / "reports.md", "greet() is polite.\n")
  marked_pages(project)
  assert any("its reversals" in line for line in docs.stale(project))


@pytest.mark.parametrize("text, words", [
    ('refusal = "^KeyError: no such words"', "no test shows that refusal"),
    (f'refusal = {REASON}\ntests = ["x_test.py T.a"]',
     "a refusal has no tests of upstream"),
    ('tests = ["x_test.py T.a"]', "reason")])
def test_a_bad_refusal_is_refused(project, text, words):
  _superseding(project, text)
  with pytest.raises(MendError, match=words):
    patches.load(project)


@pytest.mark.parametrize("extra, words", [
    ('op = "insert"\ncode = "x"', "insert needs before or after or at"),
    ('op = "insert"\ncode = "x"\nbefore = "if"\nafter = "if"', "exactly one"),
    ('op = "insert"\ncode = "x"\nbefore = "x = 1"', "is not kind"),
    ('op = "insert"\ncode = "x"\nat = "middle"', "wanted start or end"),
    ('op = "wrap_call"\ncode = "x"\ncall = "bind"', "is not kind"),
])
def test_a_bad_edit_is_refused(project, extra, words):
  text = f'{PATCH}\n[[edit]]\nfile = "jax/_src/greet.py"\n{extra}\n'
  write(project / "patches" / "greet" / "greeting.toml", text)
  with pytest.raises(MendError, match=words):
    patches.load(project)


def test_series_names_each_patch_once_and_only_what_exists(project):
  write(project / "patches" / "series", "greet/greeting\ngreet/greeting\n")
  with pytest.raises(MendError, match="twice"):
    patches.load(project)
  write(project / "patches" / "series", "greet/greeting\n\ngreet/greetin\n")
  with pytest.raises(MendError, match=(
      r"patches/series, line 3: there is no patch 'greet/greetin': no file "
      r"patches/greet/greetin\.toml; did you mean greet/greeting\?")) as error:
    patches.load(project)
  assert error.value.next_step.startswith("correct line 3 of patches/series")
  (project / "patches" / "series").unlink()
  with pytest.raises(MendError, match="no file .*series"):
    patches.load(project)


@pytest.mark.parametrize("file", [
    "patches/series", "patches/families.toml", "patches/greet/greeting.toml",
    "reproductions/greet/greeting.py", "tests/greet/greeting_test.py"])
def test_a_file_that_is_no_text_is_named(project, file):
  """Each was a traceback."""
  with open(project / file, "ab") as handle:
    handle.write(b"\xff\xfe")
  with pytest.raises(MendError, match="is no UTF-8 text") as error:
    reproductions.collect(patches.load(project), project)
  assert str(project / file) in error.value.what
  assert f"checkout -- {pathlib.Path(file).name}" in error.value.next_step


def test_a_reproduction_that_does_not_parse(project):
  write(project / "reproductions/greet/greeting.py", "def (")
  with pytest.raises(MendError, match="greeting.py does not parse"):
    reproductions.collect(patches.load(project), project)


def test_dependencies_come_first_and_are_chosen_too(project):
  text = PATCH.replace('id = "greet/greeting"',
                       'id = "greet/second"\ndepends = ["greet/greeting"]')
  write(project / "patches" / "greet" / "second.toml", text)
  write(project / "patches" / "series", "greet/second\ngreet/greeting\n")
  with pytest.raises(MendError, match="does not stand before"):
    patches.load(project)
  write(project / "patches" / "series", "greet/greeting\ngreet/second\n")
  series = patches.load(project)
  assert [p.id for p in patches.select(series, ["greet/second"])] == [
      "greet/greeting", "greet/second"]
  with pytest.raises(MendError, match="third is no family and no patch"):
    patches.select(series, ["third"])
  chosen = patches.select(series, ["greet/second", "greet/greeting"])
  assert [p.id for p in chosen] == ["greet/greeting", "greet/second"]


def test_no_patch_is_added_to_a_frozen_line(project, monkeypatch, capsys):
  make = lambda version, line: bases.Base(version, "0" * 64, ">=3.10", (),
                                          line=line)
  monkeypatch.setattr(bases, "releases", lambda: (
      make("1.0", "A"), make("1.1", "A"), make("2.0", "B")))
  path = project / "patches" / "families.toml"

  def wrong(line, most):
    write(path, f'{FAMILIES}frozen = "{line}"\nmost_patches = {most}\n')
    return frozen.faults(patches.load(project), families.load(project))

  assert wrong("A", 1) == wrong("A", 2) == []
  (said,) = wrong("A", 0)
  assert said == ("line A is frozen with 0 patches, and 1 apply to it: a new "
                  "one begins after 1.1")
  assert not frozen.good(patches.load(project), families.load(project))
  assert "FROZEN: line A" in capsys.readouterr().out
  assert "no line that a patch is for" in wrong("Z", 1)[0]
  write(project / "patches" / "greet" / "greeting.toml",
        PATCH.replace('bases = ">=1.0"', 'bases = ">=2.0"'))
  assert "no line that a patch is for" in wrong("A", 1)[0]
  assert wrong("B", 1) == []


def test_the_oldest_line_is_frozen():
  known = families.load()
  assert frozen.lines(known) == {"A"} and not frozen.faults(
      patches.load(), known)
