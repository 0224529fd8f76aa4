# SPDX-License-Identifier: Apache-2.0
"""Lists, renamed definitions, implied imports; releases that are left out."""

import dataclasses

from conftest import write
from mend.editing import patches, placing
from mend.ground.errors import MendError
from mend.house import anchors
from mend.releases import bases
from mend.trees import drift, tree
import pytest

HEAD = '''\
id = "greet/greeting"
title = "t"
why = "w"
bases = ">=1"
issues = []
upstream = { status = "not-sent" }
modules = ["jax/_src/greeting/kind.py"]
tests = []
changelog = "c"
'''
GREET = '\n[[edit]]\nfile = "jax/_src/greet.py"'
OLD = "import os\n\ndef greet(name):\n  return name\n"
NEW = "import os\n\ndef salute(name):\n  return name\n\ndef bow(name): pass\n"


@pytest.fixture
def given(project, upstream, base):
  """A function that reads a patch with these edits for the invented base."""
  write(project / "jax/_src/greeting/kind.py", "def to(name): return name\n")
  write(project / "jax/_src/greeting/deep/far.py", "")
  write(project / "jax/_src/greeting/deep/kind_two.py", "")

  write(upstream / "jax/_src/greet.py", OLD)

  def read(edits, more=""):
    write(project / "patches/greet/greeting.toml", HEAD + more + edits)
    series = patches.load(project)
    return series, tree.mended(series, base, upstream, project)
  return read


def test_a_name_implies_its_import_wherever_the_module_is(given):
  _, result = given(GREET + '''
op = "append"
code = "x = greet_kind.to(other.greet_far, greet_nothing, greet_far)"
''')
  text = result.edited["jax/_src/greet.py"]
  assert text.count("from jax._src.greeting import kind as greet_kind\n") == 1
  assert "from jax._src.greeting.deep import far as greet_far\n" in text
  assert "nothing as" not in text
  assert text.index("as greet_kind") < text.index("def greet")
  assert result.edits == 1


def test_what_the_code_imports_itself_is_left_to_it(given):
  _, result = given(GREET + '''
op = "insert"
in = "greet"
at = "start"
code = """
from jax._src.greeting import kind as greet_kind
name = greet_kind.to(name)"""
''')
  assert result.edited["jax/_src/greet.py"].count("import kind") == 1


def test_a_late_import_stands_at_the_end_once(given, base):
  _, result = given(GREET + '''
op = "append"
code = "greet_kind.to(1)"
''', 'late_imports = ["jax/_src/greet.py"]\n')
  text = result.edited["jax/_src/greet.py"]
  assert text.index("def greet") < text.index("as greet_kind")
  assert text.index("as greet_kind") < text.index("greet_kind.to(1)")


def test_one_import_of_two_patches_and_the_late_one_counts():
  make = lambda op, patch: placing.Edit(
      patch, 0, "f.py", op, "import a as b", files=("f.py",))
  kept = placing.once([make("add_import", "p"), make("append", "q"),
                       make("append", "r")])
  assert [(e.op, e.patch) for e in kept] == [("append", "q")]


def test_the_first_file_that_has_the_definition(given, upstream):
  write(upstream / "jax/_src/moved.py", NEW)
  edit = '''
[[edit]]
file = ["jax/_src/gone.py", "jax/_src/moved.py", "jax/_src/greet.py"]
op = "insert"
in = ["bow", "greet", "greet|salute"]
at = "start"
code = "name = greet_kind.to('{in}')"
'''
  with pytest.raises(Exception, match="bow"):  # its body is on its line
    given(edit)
  write(upstream / "jax/_src/moved.py", NEW.replace(": pass", ":\n  pass"))
  _, result = given(edit.replace('"greet|salute"', '"none|salute"'))
  assert "to('bow')" in result.edited["jax/_src/moved.py"]
  assert "to('salute')" in result.edited["jax/_src/moved.py"]
  assert "to('greet')" in result.edited["jax/_src/greet.py"]
  assert "jax/_src/gone.py" not in result.edited


def test_a_definition_that_was_read_is_read_wherever_it_is(
    given, project, upstream, base):
  series, _ = given('''
[[edit]]
file = ["jax/_src/moved.py", "jax/_src/greet.py"]
op = "insert"
in = "greet"
at = "end"
code = "pass"
''')
  def states(version):
    there = dataclasses.replace(base, version=version)
    return [s.state for s in drift.states(series, there, upstream, project)]
  assert states("1.0") == ["new"]
  drift.record(drift.states(series, base, upstream, project), project)
  text = (upstream / "jax/_src/greet.py").read_text(encoding="utf-8")
  write(upstream / "jax/_src/moved.py", "# elsewhere\n" + text)
  assert states("2.0") == ["exact"]


@pytest.mark.parametrize("spec, found", [
    ("B", "1.1"), ("B-C", "1.1 1.2"), (">=1.1", "1.1 1.2"),
    ("A-B,>=1.1", "1.1"), ("", "1.0 1.1 1.2"), ("D", "")])
def test_lines(base, spec, found):
  known = [dataclasses.replace(base, version=f"1.{i}", line=line)
           for i, line in enumerate("ABC")]
  assert " ".join(b.version for b in known if b.within(spec)) == found
  bases.check_specifier(spec)


def test_what_is_no_line(base):
  for spec in ("AB", "B-", "newest", "a"):
    with pytest.raises(ValueError):
      bases.check_specifier(spec)


@pytest.mark.parametrize("middle, count", [("1.1", 0), ("1.2", 1)])
def test_a_release_between_is_left_out(given, base, middle, count):
  edits = "".join(f'''
[[edit]]
file = "jax/_src/greet.py"
op = "insert"
in = "greet"
at = "{at}"
code = "{code}"
bases = "{releases}"
''' for at, code, releases in (("start", "x = 1", "<1.1"),
                               ("end", "x = 2", f">={middle}")))
  series, _ = given(edits)
  known = [dataclasses.replace(base, version=f"1.{i}") for i in range(3)]
  looked, found = anchors.gaps(series, known)
  assert (looked, len(found)) == (1, count)
  assert all("nothing for 1.1" in line for line in found)


def test_a_name_that_is_not_there(given, base, upstream, monkeypatch,
                                  kept_cache):
  del kept_cache  # where ruff is installed
  series, result = given(GREET + '''
op = "append"
code = "tangents_ft = lacking_p"
''')
  monkeypatch.setattr(anchors.source, "pristine", lambda _: upstream)
  monkeypatch.setattr(
      anchors.tree, "mended",
      lambda *_, made=result: made)
  looked, found = anchors.undefined(series, [base])
  assert looked == 1
  assert found == ["jax 1.0/jax/_src/greet.py: Undefined name `lacking_p`"]


def test_an_import_that_nothing_uses_any_more(given, base, upstream, project,
                                              monkeypatch, kept_cache):
  del kept_cache
  edit = '''
[[edit]]
file = "jax/_src/greet.py"
op = "replace_body"
in = "greet"
takes = ["name"]
code = "return name"
'''
  monkeypatch.setattr(anchors.source, "pristine", lambda _: upstream)
  make = tree.mended
  for more, count in (("", 1), ('''
[[edit]]
file = "jax/_src/greet.py"
op = "drop_import"
value = "import:os"
''', 0)):
    series, _ = given(edit + more)
    write(upstream / "jax/_src/greet.py", OLD.replace(
        "  return", "  os.stat(name)\n  return"))
    result = make(series, base, upstream, project)
    monkeypatch.setattr(
        anchors.tree, "mended", lambda *_, made=result: made)
    assert len(anchors.undefined(series, [base])[1]) == count


def test_an_edited_file_that_does_not_parse(given, base, upstream, monkeypatch,
                                            kept_cache):
  """`check` took it for sound: tree-sitter reads whatever it is given."""
  del kept_cache
  series, result = given(GREET + '''
op = "append"
code = "fine = 1"

[[edit]]
file = "jax/_src/greet.py"
op = "insert"
in = "greet"
before = "return"
code = "info += ("
''')
  monkeypatch.setattr(anchors.source, "pristine", lambda _: upstream)
  monkeypatch.setattr(anchors.tree, "mended", lambda *_: result)
  looked, (line,) = anchors.undefined(series, [base])
  assert looked == 1
  assert line.startswith(f"patch {series[0].id}, edit 2 (insert jax/_src/")
  assert "jax/_src/greet.py then does not parse: " in line
  assert line.endswith("(jax 1.0)") and "edit 1" not in line


def test_what_releases_spell_otherwise_is_a_table_of_them(given, base):
  series, result = given(GREET + '''
op = "replace_value"
in = "greet"

[edit.value]
"<1" = "assign:name"
">=1" = "return"

[edit.code]
"<1" = "greet_kind.to({})"
">=1" = "greet_kind.to({}, 1)"
''')
  assert "return greet_kind.to(name, 1)" in result.edited["jax/_src/greet.py"]
  assert [(e.number, e.bases) for e in series[0].edits] == [
      (1, "<1"), (1, ">=1")]
  assert len(series[0].edits_for(base)) == 1


@pytest.mark.parametrize("more, problem", [
    ('bases = ">=1"', "say of which releases the edit is"),
    ('[edit.call]\n">=2" = "call:f"', "wanted the same releases in each"),
    ("[edit.value]\nx = 1", "wanted text"),
])
def test_a_table_of_releases_is_refused(given, more, problem):
  with pytest.raises(MendError, match=problem):
    given(f'''
[[edit]]
file = "jax/_src/greet.py"
op = "append"
code = {{ ">=1" = "x = 1" }}
{more}
''')
