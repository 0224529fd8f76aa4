# SPDX-License-Identifier: Apache-2.0
"""`build.py export`: which export its options mean, and by whose name."""

import functools
import os
import shutil

from checkouts import GREET_TEST, SENDABLE, commit_all, git, with_block
from conftest import write
from mend import cli
from mend.commands import export_command
from mend.editing import patches
from mend.releases import bases
import pytest


@pytest.fixture
def clone(upstream, tmp_path):
  folder = tmp_path / "clone"
  shutil.copytree(upstream, folder)
  write(folder / "tests" / "greet_test.py", GREET_TEST)
  commit_all(folder)
  return folder


@pytest.fixture
def run(project, clone, base, tmp_path, monkeypatch, capsys):
  """Runs the command onto the clone; its exit status and what it said."""
  folder = project / "patches"
  write(folder / "series", "greet/greeting\ngreet/hello\n")
  write(folder / "greet" / "hello.toml", with_block(SENDABLE).replace(
      '"greet/greeting"', '"greet/hello"'))
  loaded = patches.load(project)
  monkeypatch.setattr(export_command.patches, "load", lambda: loaded)
  monkeypatch.setattr(
      export_command.upstream_alone, "with_commits", functools.partial(
          export_command.upstream_alone.with_commits, root=project))
  monkeypatch.setattr(bases, "all_bases", lambda: (base,))
  home = tmp_path / "home"
  write(home / ".gitconfig", "[user]\nname = Some Body\nemail = s@b.org\n")
  monkeypatch.setenv("HOME", str(home))
  for name in ("XDG_CONFIG_HOME", *os.environ):
    if name.startswith(("XDG_CONFIG", "GIT_")):
      monkeypatch.delenv(name, raising=False)
  monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
  monkeypatch.chdir(tmp_path)

  def run(*arguments):
    status = cli.main(["export", f"--output_path={tmp_path / 'out'}",
                       f"--candidate={clone}", *arguments])
    said = capsys.readouterr()
    return status, said.out + said.err

  return run


def test_a_candidate_means_what_can_be_sent(run, tmp_path):
  status, said = run()
  assert status == 0, said
  assert "greet/hello: 2 lines of source added, 1 removed" in said
  assert "A person must read and vouch" in said
  (file,) = (tmp_path / "out").glob("*.patch")
  text = file.read_text("utf-8")
  assert "From: Some Body <s@b.org>" in text
  assert "Subject: [PATCH] [greet] Greet politely" in text


def test_without_a_name_nothing_is_written(run, tmp_path):
  write(tmp_path / "home" / ".gitconfig", "[core]\neditor = vi\n")
  status, said = run()
  assert status == 2 and "git knows no author" in said
  assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("arguments, words", [
    (["greet/greeting"], "no commit for upstream"),
    (["greet/other"], "There is no patch 'greet/other'"),
    (["--upstream", "--whole"], "different exports"),
    (["--base=1.0"], "neither --base nor --tree")])
def test_what_is_refused(arguments, words, run):
  status, said = run(*arguments)
  assert status == 2 and words in said, said


def test_nothing_has_its_place(run, clone):
  write(clone / "jax" / "_src" / "greet.py", "")
  git(clone, "commit", "--quiet", "--all", "--message=other")
  status, said = run()
  assert status == 2 and "LEFT OUT: patch greet/hello" in said
  assert "No commit has its place on jax 1.0" in said
