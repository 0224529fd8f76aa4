# SPDX-License-Identifier: Apache-2.0
"""The documents: their generated parts, programs, pictures and links."""

import dataclasses
import re
import runpy

from conftest import PATCH, ROOT, marked_pages, write
from headings import anchors, without_code
from mend.editing import families, patches
from mend.editing.reproductions import Reproduction
from mend.ground import pages
from mend.ground.errors import MendError
from mend.house import change_log, docs, sources_of_page
from mend.proof.environments import Environments
from mend.proof.reproduce import Outcome
from mend.releases import bases
import pytest

MARKED = ("before\n<!-- {0}: written by build.py -->\nold\n"
          "<!-- end {0} -->\nafter\n")
RELEASES = (ROOT / "docs" / "releases.md").read_text(encoding="utf-8")


def test_only_the_text_between_the_markers_changes():
  text = pages.replace_between(MARKED.format("x"), "x", "new\n")
  assert text == MARKED.format("x").replace("old", "new")
  assert pages.replace_between(text, "x", "new") == text
  with pytest.raises(MendError, match="not there once"):
    pages.replace_between("nothing", "x", "new")


def test_the_change_log_groups_bullets_by_kind(project):
  path = project / "patches" / "greet" / "greeting.toml"
  text = PATCH.replace('bases = ">=1.0"', 'bases = ">=0.5"')
  write(path, text)
  log = change_log.bullets(patches.load(project))
  assert log == (
      "* Bug fixes:\n\n  * `greet` is polite. (toy#1) `greet/greeting`")
  write(path, text.replace('bases = ">=0.5"', 'bases = "<0.10"'))
  log = change_log.bullets(patches.load(project))
  older = bases.span("<0.10")
  assert log.endswith(f"polite. On {older}. (toy#1) `greet/greeting`")
  write(path, text.replace("Bug fixes: ", "Fixed: "))
  with pytest.raises(MendError, match="wanted one of New features"):
    change_log.bullets(patches.load(project))


def test_a_patch_is_told_once(project):
  series = patches.load(project)
  bullet = "  * `greet` is polite. (toy#1) `greet/greeting`"
  assert bullet in change_log.bullets(series)
  marked = (f"<!-- changes: written by build.py -->\n{bullet}\n"
            "<!-- end changes -->\n")
  assert bullet in change_log.bullets(series, f"## mend.2\n{marked}")
  assert not change_log.bullets(series, f"{marked}## mend.1\n\n{bullet}\n")
  # On lines as wide as a page's, by which it is found again.
  series = [dataclasses.replace(
      series[0], changelog="Bug fixes: " + "`greet` is polite, " * 12)]
  bullet = change_log.bullets(series)
  assert 3 < bullet.count("\n") and max(map(len, bullet.splitlines())) <= 90
  assert not change_log.bullets(series, f"## mend.1\n\n{bullet}\n")


def test_an_entry_is_short(project):
  path = project / "patches" / "greet" / "greeting.toml"
  for much, found in ((change_log.LONGEST, 0), (change_log.LONGEST + 1, 1)):
    write(path, PATCH.replace("`greet` is polite.", "x" * much))
    wrong = change_log.too_long(patches.load(project))
    assert len(wrong) == found
  assert "greet/greeting.toml: changelog has 301 characters" in wrong[0]


@pytest.mark.parametrize("heads,wrong", [
    (["2 (unreleased)", "1 (March 5, 2027)"], ""),
    (["2 (May 1, 2027)", "1 (March 5, 2027)"], ""),
    (["2 (unreleased)", "1 (unreleased)"], "mend.1: 'unreleased' is no date"),
    (["2", "1 (March 5, 2027)"], "mend.2: '' is no date"),
    (["2 (2027)", "1 (March 5, 2027)"], "mend.2: '2027' is no date"),
    (["1 (March 5, 2027)"], r"of \[1\], wanted \[2, 1\]"), ([], "wanted")])
def test_a_section_has_a_date(heads, wrong):
  text = "\n".join(f"## mend.{head}\n\n* Changes:\n" for head in heads)
  said = "\n".join(change_log.misdated(text, 2))
  assert re.search(wrong, said) if wrong else not said


def test_the_form_of_a_change_log_is_looked_at(project, capsys):
  log = write(project / "CHANGELOG.md", "## mend.1 (unreleased)\n")
  assert change_log.good(project)
  assert "1 entries of at most 300 characters, 0" in capsys.readouterr().out
  log.write_text("## mend.1\n", encoding="utf-8")
  assert not change_log.good(project)
  write(project / "patches" / "series", "")
  log.write_text("## mend.1 (unreleased)\n", encoding="utf-8")
  assert not change_log.good(project)  # nothing looked at is no success


def written(project):
  """The parts that need no run, as `build.py docs` writes them."""
  series, known = patches.load(project), families.load(project)
  pages.put(project, docs._from_text(project, series, known))


def test_stale_documents_are_found(project):
  reports = project / "docs" / "proof" / "reports.md"
  write(reports, "greet() is polite.\n")
  marked_pages(project)
  assert [line.partition(" do not")[0] for line in docs.stale(project)] == [
      "README.md: its releases", "README.md: its families",
      "docs/releases.md: its releases", "docs/differences.md: its reversals",
      "CHANGELOG.md: its changes", "docs/greet.md: its sources"]
  written(project)
  assert not docs.stale(project)
  write(reports, "")
  (problem,) = docs.stale(project)
  assert "docs/proof/reports.md lacks 'greet() is polite.'" in problem
  write(reports, "greet() is polite.\n")
  readme = project / "README.md"
  write(readme, readme.read_text(encoding="utf-8").replace("politeness", ""))
  (problem,) = docs.stale(project)
  assert problem.startswith("README.md: its families do not match")


def test_reports_are_grouped_by_family(project):
  known = families.load(project)
  rows = {"greet": [["toy#1", "greet() is polite.", "fixed"],
                    ["toy#2", "part() is polite.", "works"]]}
  chosen = [bases.Base("1.0", "0" * 64, ">=3.10", ())]
  page = docs.report_tables(rows, chosen, known)
  assert page.startswith("## greet\n\nPoliteness: [greet.md](../greet.md).\n")
  assert page.count("toy#") == 2
  (line,) = docs.summary(rows, chosen, known).splitlines()[2:]
  assert line.split() == ["|", "[greet](#greet)", "|", "1", "|"]
  (line,) = docs.families_table(known).splitlines()[2:]
  assert line.split() == ["|", "politeness", "|", "[greet](docs/greet.md)", "|"]


def test_the_readme_begins_with_a_program_that_is_tested():
  readme = (ROOT / "README.md").read_text(encoding="utf-8")
  program = re.search(r"```python\n(.*?)```", readme, re.DOTALL)[1]
  assert program.count("\n") == 9
  program = program.replace(  # tests have eight devices already
      'jax.config.update("jax_num_cpu_devices", 4)  # on any laptop\n', "")
  tests = ROOT / "tests" / "varying" / "loops_test.py"
  assert f"PROGRAM = '''\\\n{program}'''\n" in tests.read_text("utf-8")


def test_the_page_of_releases_has_each_once():
  section = RELEASES.partition("<!-- releases:")[2].partition("<!-- end")[0]
  first_cells = [line.split("|")[1] for line in section.splitlines()
                 if line.startswith("| ")][1:]
  listed = [v.strip() for cell in first_cells for v in cell.split(",")]
  assert listed == [b.version for b in reversed(bases.releases())]


def test_the_pythons_and_the_proof_of_a_release_are_told(monkeypatch, base):
  make = lambda version, python, **more: dataclasses.replace(
      base, version=version, python=python, line="X", **more)
  monkeypatch.setattr(bases, "releases", lambda: (
      make("0.9", ">=3.10,<3.11"), make("1.0", ">=3.11,<3.14", proof="sample"),
      make("1.1", ">=3.11,<3.14"), make("1.2", ">=3.11,<3.14", twin_of="1.1"),
      make("2.0", ">=3.12")))
  cells = lambda *frozen: [
      [cell.strip() for cell in line.split("|")[1:-1]]
      for line in docs.releases_table(frozen).splitlines()[2:]]
  assert cells() == [
      ["2.0", "3.12 or newer", "every test"],
      ["1.2, 1.1, 1.0", "3.11 to 3.13", "1.2: has the files of 1.1; "
       "1.1: every test; 1.0: a sample of the tests"],
      ["0.9", "3.10", "every test"]]
  assert [row[2].endswith("; frozen") for row in cells("X")] == [
      True] * 3
  assert cells("Y") == cells()


def test_the_readme_says_what_stock_jax_has(project, base, monkeypatch):
  series = patches.load(project)
  monkeypatch.setattr(docs.environments, "build",
                      lambda *a, **k: Environments("", "", ""))
  monkeypatch.setattr(docs.reproductions, "collect", lambda s: [
      Reproduction("greet/greeting", "", "toy#1", f"{n}", "f", "", "")
      for n in range(3)])
  monkeypatch.setattr(docs.reproduce, "remembered", lambda *a: [
      Outcome("FAIL", ""), Outcome("PASS", ""), Outcome("n/a", "")])
  (line,) = docs.of_stock(series, base).splitlines()[2:]
  assert line.split() == ["|", "greet", "|", "1", "|", "2", "|"]


def test_the_picture_is_as_it_is_drawn():
  drawn = runpy.run_path(str(ROOT / "docs" / "draw.py"))["picture"]()
  assert (ROOT / "docs" / "types.svg").read_text(encoding="utf-8") == drawn


def headings(page):
  return re.findall(r"^## (.*)$", without_code(page), re.MULTILINE)


FAMILY_PAGES = sorted({p for f in families.load().values() for p in f.pages})


@pytest.mark.parametrize("page", [*FAMILY_PAGES, "docs/live.md"])
def test_pages_read_in_one_order(page):
  assert headings(ROOT / page) == [
      "What goes wrong", "What to expect", "Limits", "How it works"]


@pytest.mark.parametrize("page", FAMILY_PAGES)
def test_each_page_has_a_program_that_is_run(page):
  named = f"page = '{page.removeprefix('docs/')}'\n"
  (test,) = [str(t.relative_to(ROOT))
             for t in (ROOT / "tests").glob("*/*doc_test.py")
             if named in t.read_text(encoding="utf-8")]
  assert [p.id for p in patches.load() if test in p.unit_tests]
  before, _, _ = (ROOT / page).read_text("utf-8").partition("## What to expect")
  assert "```python\n>>> " in before


def test_the_readme_is_in_its_order():
  assert headings(ROOT / "README.md") == [
      "Am I affected?", "Install", "What changes", "Two commands",
      "Further reading"]
  readme = (ROOT / "README.md").read_text("utf-8")
  assert readme.count("\n") <= 110
  assert readme.partition("\n| ")[0].count("\n") < 40  # before the first table


def test_links_between_pages_lead_somewhere():
  links = [(page, *found)
           for page in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"))
           for found in re.findall(r"\]\(([\w./-]*)(?:#([\w-]*))?\)",
                                   without_code(page))]
  for page, link, anchor in links:
    target = page.parent / link if link else page
    assert target.exists(), f"{page.name}: {link}"
    assert not anchor or anchor in anchors(target), (
        f"{page.name}: {link}#{anchor}")
  assert len(links) > 20
  assert sum(bool(anchor) for *_, anchor in links) > 10


def test_each_patch_is_on_one_page_and_its_files_are_there():
  series, known = patches.load(ROOT), families.load(ROOT)
  found = sources_of_page.by_page(series, known)
  assert sorted(p.id for those in found.values() for p in those) == sorted(
      p.id for p in series)
  linked = 0
  for page, those in found.items():
    table = sources_of_page.table(page, those)
    for target in re.findall(r"\]\(([^)]+)\)", table):
      assert (ROOT / page).parent.joinpath(target).is_file(), target
      linked += 1
  assert linked > 3 * len(series)


@pytest.mark.parametrize("page,name", [
    ("docs/other.md", "loops"), ("docs/varying.md", "no_such_patch")])
def test_a_page_about_what_is_not_there_is_refused(page, name):
  known = families.load(ROOT)
  varying = dataclasses.replace(known["varying"], about={page: [name]})
  with pytest.raises(MendError, match=f"{page} is said to be about {name}"):
    sources_of_page.by_page(patches.load(ROOT), {**known, "varying": varying})
