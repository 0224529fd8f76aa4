"""What is refused as a patch, and by which words."""

from conftest import PATCH, write
from mend import patches
from mend.errors import MendError
import pytest


def test_a_good_patch_is_read(project, base):
  (patch,) = patches.load(project)
  assert patch.id == "greeting"
  assert [e.op for e in patch.edits_for(base)] == ["add_import", "replace_body"]
  assert patch.red[0].reason == "rude"


@pytest.mark.parametrize("old, new, words", [
    ('id = "greeting"', 'id = "other"', "its id is 'other'"),
    ('title = "[greet] Say hello politely"', "", "missing key title"),
    ('[[red]]', 'colour = 1\n[[red]]', "unknown key colour"),
    ('op = "add_import"', 'op = "guess"', "unknown op 'guess'"),
    ('op = "add_import"', 'op = "add_import"\ntext = "x"', "unknown key text"),
    ('in = "Greeter.greet"', "", "replace_body needs in"),
    ('takes = ["self", "name"]', "", "replace_body needs takes"),
    ('bases = ">=1.0"', 'bases = "newest"', "no version specifier"),
    ('"not-sent"', '"maybe"', "upstream.status is 'maybe'"),
    ('reason = "rude"', 'reason = "("', "no regular expression"),
    ('"jax/_src/polite.py"', '"jax/_src/gone.py"', "gone.py, which does not"),
    ('"tests/greeting_test.py"', '"tests/gone.py"', "gone.py, which does not"),
    ('code = "from jax._src import polite"',
     'code = """a\nb\nc\nd\ne\nf"""', "6 lines, at most 5"),
    ('id = "greeting"', 'id = ', "no valid TOML"),
])
def test_a_bad_patch_is_refused(project, old, new, words):
  assert old in PATCH
  write(project / "patches" / "greeting.toml", PATCH.replace(old, new, 1))
  with pytest.raises(MendError, match=words) as error:
    patches.load(project)
  assert "greeting" in str(error.value) and "Next: edit" in str(error.value)


@pytest.mark.parametrize("extra, words", [
    ('op = "insert"\ncode = "x"', "insert needs before or after or at"),
    ('op = "insert"\ncode = "x"\nbefore = "if"\nafter = "if"', "exactly one"),
    ('op = "insert"\ncode = "x"\nbefore = "x = 1"', "is not kind"),
    ('op = "insert"\ncode = "x"\nat = "middle"', "wanted start or end"),
    ('op = "wrap_call"\ncode = "x"\ncall = "bind"', "is not kind"),
])
def test_a_bad_edit_is_refused(project, extra, words):
  text = f'{PATCH}\n[[edit]]\nfile = "jax/_src/greet.py"\n{extra}\n'
  write(project / "patches" / "greeting.toml", text)
  with pytest.raises(MendError, match=words):
    patches.load(project)


def test_series_names_each_patch_once_and_only_what_exists(project):
  write(project / "patches" / "series", "greeting\ngreeting\n")
  with pytest.raises(MendError, match="twice"):
    patches.load(project)
  write(project / "patches" / "series", "absent\n")
  with pytest.raises(MendError, match=r"absent\.toml"):
    patches.load(project)
  (project / "patches" / "series").unlink()
  with pytest.raises(MendError, match="no .*series"):
    patches.load(project)


def test_dependencies_come_first_and_must_be_chosen(project):
  text = PATCH.replace('id = "greeting"',
                       'id = "second"\ndepends = ["greeting"]')
  write(project / "patches" / "second.toml", text)
  write(project / "patches" / "series", "second\ngreeting\n")
  with pytest.raises(MendError, match="does not stand before"):
    patches.load(project)
  write(project / "patches" / "series", "greeting\nsecond\n")
  series = patches.load(project)
  with pytest.raises(MendError, match="depends on greeting"):
    patches.select(series, ["second"])
  with pytest.raises(MendError, match="no patch 'third'"):
    patches.select(series, ["third"])
  assert [p.id for p in patches.select(series, ["second", "greeting"])] == [
      "greeting", "second"]
