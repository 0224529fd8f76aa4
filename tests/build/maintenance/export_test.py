# SPDX-License-Identifier: Apache-2.0
"""Export: `git am` of the series gives what `apply --tree` gives."""

import shutil
import subprocess
import sys

from checkouts import (
    BUILD, LOG, SECOND, TESTS_BUILD, commit_all, git, snapshot, with_block)
from conftest import PATCH, write
from mend.editing import patches
from mend.ground.errors import MendError
from mend.releases import bases
from mend.trees import checkout, export, in_place, tree
from mend.trees.git import Git
from mend.upkeep import candidates
import pytest

SHARED = "jax/_src/internal_test_util/polite_shared_testing.py"


@pytest.fixture
def series(project):
  write(project / "patches" / "series", "greet/fork\ngreet/greeting\n")
  write(project / "patches" / "greet" / "fork.toml", SECOND)
  tests = project / "tests" / "greet"
  write(tests / "fork_test.py", "from greet.testing.shared import SHARED\n")
  write(tests / "testing" / "shared.py", "SHARED = 1\n")
  write(tests / "greeting_test.py", "GREETING = 1\n")
  return patches.load(project)


@pytest.fixture
def clone(upstream, tmp_path):
  """A git checkout of the invented base, with what a release leaves out."""
  folder = tmp_path / "clone"
  shutil.copytree(upstream, folder)
  write(folder / "jax" / "BUILD", BUILD)
  write(folder / "tests" / "BUILD", TESTS_BUILD)
  write(folder / "CHANGELOG.md", LOG)
  commit_all(folder)
  return folder


def exported(series, base, upstream, target, clone, project):
  return export.export(series, base, upstream, target, clone, project)


def am(clone, folder):
  git(clone, "am", "--quiet", "--keep-non-patch",
      *(str(p) for p in sorted(folder.glob("*.patch"))))


@pytest.mark.parametrize("names", [
    ("greet/fork", "greet/greeting"), ("greet/greeting",)])
def test_git_am_gives_what_apply_gives(names, series, base, upstream, clone,
                                       project, tmp_path):
  chosen = patches.select(series, names)
  other = tmp_path / "other"
  shutil.copytree(clone, other)
  exported(chosen, base, upstream, tmp_path / "out", clone, project)
  am(other, tmp_path / "out")
  result = checkout.mended(chosen, base, upstream, clone, project)
  in_place.write(result, upstream, clone, sys.executable)
  assert snapshot(other) == snapshot(clone)
  assert "tests/polite_greeting_test.py" in snapshot(other)
  assert (SHARED in snapshot(other)) == ("greet/fork" in names)
  assert not git(other, "status", "--porcelain")


def test_without_a_checkout_it_fits_the_source_distribution(
    series, base, upstream, project, tmp_path):
  other = tmp_path / "other"
  shutil.copytree(upstream, other)
  commit_all(other)
  exported(series, base, upstream, tmp_path / "out", None, project)
  am(other, tmp_path / "out")
  target = tmp_path / "target"
  shutil.copytree(upstream, target)
  result = checkout.mended(series, base, upstream, target, project)
  in_place.write(result, upstream, target, sys.executable)
  assert snapshot(other) == snapshot(target)


def test_one_commit_for_each_patch_and_the_fork_last(
    series, base, upstream, clone, project, tmp_path):
  out = tmp_path / "out"
  names = exported(series, base, upstream, out, clone, project)
  assert names == ["0001-greet-Say-hello-politely.patch",
                   "0002-mend-Say-which-fork-this-is.patch"]
  first = (out / names[0]).read_text(encoding="utf-8")
  assert tree.MANIFEST not in first and tree.MANIFEST in (
      out / names[1]).read_text(encoding="utf-8")
  for file in ("jax/BUILD", "tests/BUILD", "tests/polite_greeting_test.py",
               "jax/_src/polite.py"):
    assert f"diff --git a/{file} b/{file}" in first
  assert "CHANGELOG" not in first
  assert "vouch" not in first and "be able to answer" in (
      out / export.README).read_text(encoding="utf-8")


def test_the_change_log_on_request(series, base, upstream, clone, project,
                                   tmp_path):
  out = tmp_path / "out"
  export.export(series, base, upstream, out, clone, project, changelog=True)
  am(clone, out)
  log = tree.read(clone / "CHANGELOG.md")
  assert log.count("## Unreleased") == 1 and "says so" not in log


def test_the_message(series, project):
  assert export.message(series[1], project) == (
      "[greet] Say hello politely\n\nA user sees a rude greeting.\n\n"
      "Regression test: tests/polite_greeting_test.py\n\nSee toy#1\n")


def test_only_an_issue_that_a_commit_ends_is_fixed(project):
  path = project / "patches" / "greet" / "greeting.toml"
  write(path, PATCH.replace("toy#1", "jax#28193"))
  said = export.message(patches.load_patch(project, "greet/greeting"), project)
  assert "Fixes" not in said and "See jax#28193\n" in said
  write(path, with_block().replace("toy#1", "jax#28193"))
  said = export.message(patches.load_patch(project, "greet/greeting"), project)
  assert "Fixes #28193\n" in said and "See" not in said


def test_the_users_git_settings_change_nothing(
    series, base, upstream, clone, project, tmp_path, monkeypatch):
  exported(series, base, upstream, tmp_path / "a", clone, project)
  home = tmp_path / "home"
  write(home / ".gitconfig", """
      [user]
        name = Somebody
      [diff]
        noprefix = true
        algorithm = histogram
        context = 9
        mnemonicPrefix = true
      [format]
        signature = hello
        numbered = true
        subjectPrefix = RFC
        attach = true
        thread = deep
        signoff = true
      [core]
        autocrlf = true
      [commit]
        gpgsign = true
      """)
  monkeypatch.setenv("HOME", str(home))
  monkeypatch.setenv("GIT_AUTHOR_NAME", "Somebody Else")
  monkeypatch.setenv("GIT_DIR", "/nowhere")
  monkeypatch.setenv("LANG", "de_DE.UTF-8")
  exported(series, base, upstream, tmp_path / "b", clone, project)
  assert snapshot(tmp_path / "a") == snapshot(tmp_path / "b")


def test_a_checkout_must_be_clean_and_the_bases(
    series, base, upstream, clone, project, tmp_path):
  greet = clone / "jax" / "_src" / "greet.py"
  greet.write_text(greet.read_text(encoding="utf-8") + "# mine\n",
                   encoding="utf-8")
  with pytest.raises(MendError, match="changed files.*greet"):
    exported(series, base, upstream, tmp_path / "out", clone, project)
  git(clone, "commit", "--quiet", "--all", "--message=mine")
  with pytest.raises(MendError, match="not an unmodified jax 1.0"):
    exported(series, base, upstream, tmp_path / "out", clone, project)
  with pytest.raises(MendError, match="no git checkout"):
    exported(series, base, upstream, tmp_path / "out", upstream, project)
  with pytest.raises(MendError, match="no jax source tree"):
    exported(series, base, upstream, tmp_path / "out", tmp_path, project)
  assert not (tmp_path / "out").exists()


def test_the_commit_of_a_release_is_named(series, base, upstream, clone,
                                         project, tmp_path):
  commit = "0123456789" * 4
  write(upstream / "jax" / "version.py",
        f"_version = '1.0'\n_git_hash: str = '{commit}'\n")
  with open(clone / "jax" / "_src" / "greet.py", "a", encoding="utf-8") as f:
    f.write("# mine\n")
  git(clone, "commit", "--quiet", "--all", "--message=mine")
  with pytest.raises(MendError) as refused:
    exported(series, base, upstream, tmp_path / "out", clone, project)
  assert f"tag jax-v1.0 (commit {commit})" in refused.value.next_step
  assert "export --candidate=DIR" in refused.value.next_step


def test_onto_a_checkout_of_no_base(series, clone, project, tmp_path,
                                    monkeypatch, base):
  monkeypatch.setattr(bases, "all_bases", lambda: (base,))
  write(clone / "jax" / "version.py", '_version = "1.1"\n')
  path = clone / "jax" / "_src" / "greet.py"
  write(path, "# The next release's licence.\n" + path.read_text(
      encoding="utf-8").lstrip("\n") + "\n\ndef more():\n  return 1\n")
  git(clone, "commit", "--quiet", "--all", "--message=main")
  found = candidates.find(str(clone))
  mine = [p for p, _ in candidates.adapted(series, found, project)]
  want = checkout.mended(mine, found.base, clone, clone, project)
  names = exported(mine, found.base, clone, tmp_path / "out", clone, project)
  assert len(names) == len(series)
  am(clone, tmp_path / "out")
  for name, text in want.files.items():
    assert tree.read(clone / name) == text
  assert "def more():" in tree.read(path)
  assert "return polite.greeting(name)" in tree.read(path)


def test_the_output_folder_must_be_empty(series, base, upstream, project,
                                         tmp_path):
  write(tmp_path / "out" / "mine.txt", "keep")
  with pytest.raises(MendError, match="not empty"):
    exported(series, base, upstream, tmp_path / "out", None, project)
  assert (tmp_path / "out" / "mine.txt").exists()


def test_nothing_to_export(base, upstream, project, tmp_path):
  with pytest.raises(MendError, match="No patch of the series is for jax 1.0"):
    exported((), base, upstream, tmp_path / "out", None, project)


def test_the_change_log():
  once = checkout.add_bullet(LOG.lstrip(), "Bug fixes: " + "long " * 30)
  assert once.index("## Unreleased") < once.index("## toy 1.0")
  assert max(len(line) for line in once.splitlines()) <= 80
  twice = checkout.add_bullet(once, "Bug fixes: a second one.")
  assert twice.count("Bug fixes") == 1
  assert twice.index("long") < twice.index("a second one")
  third = checkout.add_bullet(twice, "Changes: a third one.")
  assert third.index("second") < third.index("* Changes\n  * a third one.")
  assert third.endswith(LOG[LOG.index("## toy"):])
  old = "## Unreleased\n\n* Bug Fixes:\n  * One.\n\n* Changes\n  * Two.\n\n## 1"
  assert checkout.add_bullet(old, "Bug fixes: Three.") == (
      "## Unreleased\n\n* Bug Fixes:\n  * One.\n  * Three.\n\n"
      "* Changes\n  * Two.\n\n## 1")


def test_no_git(monkeypatch, tmp_path):
  monkeypatch.setattr(subprocess, "run", _missing)
  with pytest.raises(MendError, match="no git on PATH"):
    Git(tmp_path).run("status")


def _missing(*_, **__):
  raise FileNotFoundError
