# SPDX-License-Identifier: Apache-2.0
"""docs/upstream.md and candidates.md match the patches and what was seen."""

from checkouts import ONE_LINE, commit_all, git, with_block
from conftest import PATCH, write
from mend.editing import families, patches, posting
from mend.ground import pages
from mend.ground.errors import MendError
from mend.trees import sending
from mend.trees.git import commit_of
from mend.upstream import commits, main_branch
from mend.upstream import page as upstream_page
from mend.upstream.main_branch import Run
import pytest

POSTINGS = """
[[commit]]
patch = "greet/greeting"
area = "greetings"
touches = ["toy#3", "toy#4"]

[[discussion]]
title = "Small talk"
patches = ["greet/talk"]
issues = ["jax#7", "jax#8"]
form = "Ask."
"""
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
  write(project / posting.FILE, POSTINGS)
  return patches.load(project)


def test_each_patch_is_in_its_table(series, project):
  seen = Run("c" * 40, "2026-08-08", "2026-11-28",
             {"greet/talk": (2, 2), "greet/own": (1, 3)})
  page = upstream_page.tables(series, families.load(project), {}, seen,
                              posting.read(series, project))
  sent, others = page.split("## Discuss first")
  assert "3 of 5 programs" in sent and "cccccccccc of 2026-08-08" in sent
  talk, own = others.split("## The fork's")
  assert ("| 1 | `greet/greeting` | [greet] Greet politely | greetings | "
          "jax#28193 | toy#3; toy#4 | changed since | -  |" in sent)
  assert "### 1. Small talk\n\n`greet/talk`. jax#7; jax#8.\n\nAsk." in sent
  assert "not-sent" in sent and "### greet" in talk and "### greet" in own
  assert talk.count("| `greet/") == own.count("| `greet/") == 1
  assert "| yes                 | jax#7 is open" in talk
  assert "| 1 of 3              | why " in own


def test_a_report_is_on_the_page(project, series):
  folder = project / "patches"
  write(folder / "greet" / "greeting.toml", with_block().replace(
      'closes = ["28193"]',
      'report = { program = "x()", output = "oi", devices = 2 }'))
  write(folder / "greet" / "talk.toml", (
      folder / "greet" / "talk.toml").read_text(encoding="utf-8").replace(
          'open" }', 'open", report = { symptom = "It talks.", '
          'program = "y()", output = "aha" } }'))
  series = patches.load(project)
  page = upstream_page.tables(series, families.load(project), {},
                              main_branch.defects(project),
                              posting.read(series, project))
  assert ('### greet/greeting\n\n`greet` says "oi".\n\nOn 2 devices (`XLA_FLAGS'
          "=--xla_force_host_platform_device_count=2` on CPU):\n\n```python\n"
          "x()\n```\n\nprints on main:\n\n```\noi\n```") in page
  assert "alone:\n\n### greet/talk\n\nIt talks.\n\n```python\ny()" in page
  assert "Nobody has run" in page


@pytest.mark.parametrize("old, new, words", [
    ('patch = "greet/greeting"', 'patch = "greet/own"',
     "greet/greeting, greet/own: wanted each patch that is sendable once"),
    ('"greet/talk"', '"greet/walk"', "greet/walk: wanted"),
    ('area = "greetings"', "", "missing required field `area`"),
    ('area = "greetings"', "area = 1", "Expected `str`"),
    ("[[commit]]", "[[comit]]", "unknown field `comit`"),
    ("[[discussion]]", "[[commit]]\npatch = 'greet/greeting'\narea = 'x'\n"
     "[[discussion]]", "greet/greeting: wanted each")])
def test_what_to_post_that_is_refused(old, new, words, series, project):
  assert old in POSTINGS
  write(project / posting.FILE, POSTINGS.replace(old, new))
  with pytest.raises(MendError) as refused:
    posting.read(series, project)
  assert words in str(refused.value)


@pytest.mark.parametrize("needs", [True, False])
def test_a_commit_comes_after_what_it_needs(needs, series, project):
  folder = project / "patches"
  with open(folder / "series", "a", encoding="utf-8") as file:
    file.write("greet/loud\n")
  text = with_block().replace('"greet/greeting"', '"greet/loud"')
  write(folder / "greet" / "loud.toml", text.replace(
      "closes", 'after = ["greet/greeting"]\ncloses') if needs else text)
  own = POSTINGS.partition("[[discussion]]")[0].replace("greeting\"", "loud\"")
  mine = patches.load(project)
  write(project / posting.FILE, own + POSTINGS)
  if needs:
    with pytest.raises(MendError, match="greet/loud before greet/greeting"):
      posting.read(mine, project)
    write(project / posting.FILE, POSTINGS + own)
  page = upstream_page.tables(
      mine, families.load(project), {}, Run("c" * 40, "2026-08-08",
                                            "2026-11-28", {}),
      posting.read(mine, project))
  assert ("toy#4; after `greet/greeting`" in page) == needs


def test_only_what_is_as_it_was_verified_can_be_sent(series, project):
  def counted():
    mine = patches.load(project)
    known = commits.verified(project)
    return (upstream_page.counted(mine, known),
            upstream_page.tables(mine, families.load(project), known,
                                 main_branch.defects(project),
                                 posting.read(mine, project)))

  said, page = counted()
  assert "0 can be sent to upstream and 1 when verified" in said
  assert "None of 1 commit is verified." in page
  (project / "build").mkdir()
  commit = series[0].upstream.commit
  made = sending.Made("greet/greeting", "", {}, 2, 1, (), commit)
  passed = [(made, ("a", "b", "c"), 2)]
  commits.store(passed, {}, project, series, project)
  assert "| 2 red of 3 | main |" in counted()[1]
  commits.store(passed, {"greet/greeting": "1.0"}, project, series,
                          project)
  said, page = counted()
  assert "| 2 red of 3 | main, 1.0 |" in page
  assert "1 of them are red without the source and green with it on jax" in page
  assert "1 can be sent to upstream, 1 need" in said
  assert "1 of 1 commit pass" in page and "2 red of 3" in page
  assert "3 to 3 lines" in page and "3 tests, 2 of them red" in page
  write(project / "patches" / "greet" / "greeting.toml",
        with_block().replace("Hello, ", "Hi, "))
  said, page = counted()
  assert "0 can be sent" in said and "| changed since |" in page


def test_what_main_has(project):
  (project / "build").mkdir()
  run = Run("c", "2026-08-08", "2026-11-28", {"a/b": (1, 2), "a/c": (0, 1)})
  main_branch.store(run, project)
  found = main_branch.defects(project)
  assert found == run and found.counts == (1, 3)
  assert [found.said_of(p) for p in ("a/b", "a/c", "a/d")] == [
      "1 of 2", "no", "-"]


def test_what_is_stale(series, project):
  for page in ("docs/upstream.md", "README.md"):
    write(project / page, MARKED)
  assert [line.partition(":")[0] for line in upstream_page.stale(project)] == [
      "README.md", "docs/upstream.md"]
  pages.put(project, upstream_page.parts(project))
  assert not upstream_page.stale(project)
  readme = (project / "README.md").read_text(encoding="utf-8")
  assert "Of the 3 patches, 0 can be sent" in readme


def test_a_patch_that_says_nothing(project):
  with pytest.raises(MendError, match="greet/greeting: .*no `sendable`"):
    upstream_page.tables(patches.load(project), {}, {}, Run("", "", "", {}),
                         posting.Postings())


def test_the_commit_that_a_checkout_stands_on(tmp_path):
  main = tmp_path / "main"
  write(main / "x", "")
  commit_all(main, "main")
  on_main = main_branch.upstreams_commit(main)
  git(tmp_path, "clone", "--quiet", str(main), "clone")
  git(tmp_path / "clone", "commit", "--quiet", "--allow-empty", "--message=m")
  assert main_branch.upstreams_commit(tmp_path / "clone") == on_main
  assert commit_of(tmp_path / "clone")[0] != on_main[0]
  assert main_branch.upstreams_commit(tmp_path) == ("", "")


def test_the_page_is_of_the_newest_commit_looked_at(project, tmp_path):
  clone = tmp_path / "clone"
  write(clone / "x", "")
  commit_all(clone, "main")
  write(project / main_branch.PAGE, "Nothing.")
  (project / "build").mkdir()
  (line,) = main_branch.stale(project)
  assert "names no commit" in line
  main_branch.note(clone, project)
  commit, date = main_branch.newest(project)
  assert (commit, date) == commit_of(clone)
  (line,) = main_branch.stale(project)
  assert f"is not of {commit[:10]} (1980-01-01)" in line
  write(project / main_branch.PAGE, main_branch.named(commit, date))
  assert not main_branch.stale(project)
  git(clone, "commit", "--quiet", "--allow-empty", "--message=same day")
  main_branch.note(clone, project)
  assert main_branch.newest(project) == (commit, date)
  assert commit_of(tmp_path / "none") == ("", "")
