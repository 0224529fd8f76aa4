"""The generated parts of the documents."""

from conftest import PATCH, write
from mend import docs, patches
from mend.errors import MendError
import pytest

MARKED = ("before\n<!-- {0}: written by build.py docs -->\nold\n"
          "<!-- end {0} -->\nafter\n")


def test_only_the_text_between_the_markers_changes():
  text = docs.replace_between(MARKED.format("x"), "x", "new\n")
  assert text == MARKED.format("x").replace("old", "new")
  assert docs.replace_between(text, "x", "new") == text
  with pytest.raises(MendError, match="not there once"):
    docs.replace_between("nothing", "x", "new")


def test_the_change_log_groups_bullets_by_kind(project):
  path = project / "patches" / "greeting.toml"
  text = PATCH.replace('bases = ">=1.0"', 'bases = ">=0.5"')
  write(path, text)
  log = docs.changelog(patches.load(project))
  assert log == "* Bug fixes:\n\n  * `greet` is polite. (toy#1)"
  write(path, text.replace('bases = ">=0.5"', 'bases = "<0.10"'))
  log = docs.changelog(patches.load(project))
  assert log.endswith("is polite. On 0.5.3, 0.6.0. (toy#1)")
  write(path, text.replace("Bug fixes: ", "Fixed: "))
  with pytest.raises(MendError, match="wanted one of New features"):
    docs.changelog(patches.load(project))


def test_stale_documents_are_found(project):
  write(project / "README.md", "greet() is polite.\n")
  write(project / "CHANGELOG.md", MARKED.format("changes"))
  assert len(docs.stale(project)) == 1
  write(project / "README.md", "")
  log = docs.changelog(patches.load(project))
  write(project / "CHANGELOG.md",
        docs.replace_between(MARKED.format("changes"), "changes", log))
  (problem,) = docs.stale(project)
  assert "README.md's table lacks" in problem
