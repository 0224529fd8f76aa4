# SPDX-License-Identifier: Apache-2.0
"""docs/upstream.md and candidates.md match the patches and what was seen."""

from checkouts import ONE_LINE, git, with_block
from conftest import PATCH, write
from mend.editing import families, patches
from mend.ground.errors import MendError
from mend.house import upstream_main, upstream_page
from mend.trees.git import commit_of
import pytest

MARKED = ("before\n<!-- upstream: written by build.py -->\nold\n"
          "<!-- end upstream -->\n")


@pytest.fixture
def series(project):
  folder = project / "patches"
  write(folder / "series", "greet/greeting\ngreet/talk\ngreet/own\n")
  write(folder / "greet" / "greeting.toml", with_block())
  for name, said in (("talk", "discuss: jax#7 is open"), ("own", "fork: why")):
    write(folder / "greet" / f"{name}.toml", PATCH.replace(
        '"greet/greeting"', f'"greet/{name}"').replace(
            ONE_LINE, ONE_LINE.replace(" }", f', sendable = "{said}" }}')))
  return patches.load(project)


def test_each_patch_is_in_its_table(series, project):
  page = upstream_page.tables(series, families.load(project))
  sent, others = page.split("## Discuss first")
  talk, own = others.split("## The fork's")
  assert "| `greet/greeting` | [greet] Greet politely | jax#28193 |" in sent
  assert "not-sent" in sent and "### greet" in talk and "### greet" in own
  assert talk.count("| `greet/") == own.count("| `greet/") == 1
  assert "jax#7 is open" in talk and "| why |" in own


def test_what_is_stale(series, project):
  for page in ("docs/upstream.md", "README.md"):
    write(project / page, MARKED)
  assert [line.partition(":")[0] for line in upstream_page.stale(project)] == [
      "README.md", "docs/upstream.md"]
  upstream_page.write(project)
  assert not upstream_page.stale(project)
  readme = (project / "README.md").read_text(encoding="utf-8")
  assert "Of the 3 patches, 1 can be sent" in readme


def test_a_patch_that_says_nothing(project):
  with pytest.raises(MendError, match="greet/greeting: .*no `sendable`"):
    upstream_page.tables(patches.load(project), {})


def test_the_page_is_of_the_newest_commit_looked_at(project, tmp_path):
  clone = tmp_path / "clone"
  write(clone / "x", "")
  git(clone, "init", "--quiet")
  git(clone, "add", "--all")
  git(clone, "commit", "--quiet", "--message=main")
  write(project / upstream_main.PAGE, "Nothing.")
  (project / "build").mkdir()
  (line,) = upstream_main.stale(project)
  assert "names no commit" in line
  upstream_main.note(clone, project)
  commit, date = upstream_main.newest(project)
  assert (commit, date) == commit_of(clone)
  (line,) = upstream_main.stale(project)
  assert f"is not of {commit[:10]} (1980-01-01)" in line
  write(project / upstream_main.PAGE, upstream_main.named(commit, date))
  assert not upstream_main.stale(project)
  git(clone, "commit", "--quiet", "--allow-empty", "--message=same day")
  upstream_main.note(clone, project)
  assert upstream_main.newest(project) == (commit, date)
  assert commit_of(tmp_path / "none") == ("", "")
