# SPDX-License-Identifier: Apache-2.0
"""Bases, sources, wheels and caches, and commands that go wrong."""

import errno
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile

from conftest import ROOT, write
from mend import cli
from mend.ground import bootstrap, cache, process, repository
from mend.ground.errors import MendError
from mend.house import checking
from mend.proof import building, venvs
from mend.releases import source
from mend.trees import wheel
import pytest


def test_a_download_with_the_wrong_hash_is_refused(tmp_path, base):
  archive = write(tmp_path / "jax-1.0.tar.gz", "not what was pinned")
  with pytest.raises(MendError, match="wrong hash: sha256 .* wanted 000"):
    source.verify(archive, base)
  with pytest.raises(MendError, match="brought no"):
    source.verify(tmp_path / "absent.tar.gz", base)


def test_a_spoilt_download_in_the_cache_is_fetched_again(base, monkeypatch):
  kept = write(cache.folder("sdists") / "jax-1.0.tar.gz", "spoilt")
  seen = []

  def download(wanted, folder):
    seen.append(wanted)
    (folder / kept.name).write_bytes(b"still wrong")

  monkeypatch.setattr(source, "_download", download)
  with pytest.raises(MendError, match="wrong hash"):
    source.sdist(base)
  assert seen == [base] and kept.read_text() == "spoilt"
  assert [p.name for p in kept.parent.iterdir()] == [kept.name]


def test_no_network(base, monkeypatch):
  monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
  monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
  monkeypatch.setenv("PIP_RETRIES", "0")
  with pytest.raises(MendError, match="Downloading jax 1.0.*failed") as error:
    source.sdist(base)
  assert "check the network" in str(error.value)
  assert not list(cache.folder("sdists").iterdir())


def test_a_hash_that_pip_refuses(base, monkeypatch):
  """It said to check the network."""
  def refused(*_, **__):
    raise MendError(
        "Downloading jax 1.0 with pip failed (exit 1):\n  ERROR: THESE "
        "PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.\n"
        f"    Expected sha256 {'0' * 64}\n         Got        {'1' * 64}",
        "check the network")

  monkeypatch.setattr(source.process, "run", refused)
  with pytest.raises(MendError, match="wrong hash: sha256 1+, wanted 0") as e:
    source.sdist(base)
  assert "that line of bases.toml was edited" in e.value.next_step
  assert "network" not in str(e.value)


@pytest.mark.parametrize("error", [
    PermissionError(errno.EACCES, "no"), OSError(errno.EROFS, "read-only")])
def test_a_cache_that_can_only_be_read(tmp_path, monkeypatch, error):
  (tmp_path / "cache").mkdir()
  before = sorted((tmp_path / "cache").rglob("*"))

  def refuse(self, *_, **__):
    if tmp_path / "cache" in self.parents:
      raise error

  monkeypatch.setattr(pathlib.Path, "mkdir", refuse)
  monkeypatch.setattr(cache.os, "access", lambda path, _: (
      tmp_path / "cache" not in [path, *pathlib.Path(path).parents]))
  with cache.lock("x"), cache.scratch() as made:
    assert made.is_dir() and tmp_path / "cache" not in made.parents
  assert sorted((tmp_path / "cache").rglob("*")) == before
  with pytest.raises(MendError, match="can't be made"):
    cache.folder("wheels")
  monkeypatch.undo()
  monkeypatch.setenv("MEND_CACHE", str(tmp_path / "cache"))

  def closed(*_):
    raise error

  monkeypatch.setattr(cache.filelock.FileLock, "acquire", closed)
  with cache.lock("x"):  # another user's
    pass
  error.errno = errno.ENOSPC
  if type(error) is OSError:
    with pytest.raises(OSError, match="read-only"), cache.lock("x"):
      pass


def test_a_source_is_unpacked_whole(tmp_path, base, monkeypatch):
  tree = tmp_path / "jax-1.0"
  write(tree / "jax" / "version.py", "")
  archive = tmp_path / "jax-1.0.tar.gz"
  with tarfile.open(archive, "w:gz") as tar:
    tar.add(tree, "jax-1.0")
  monkeypatch.setattr(source, "sdist", lambda _: archive)
  found = source.pristine(base)
  assert (found / "jax" / "version.py").is_file()
  assert source.pristine(base) == found
  for damage in (lambda: (found / "jax" / "version.py").write_text("# other"),
                 lambda: (found / "jax" / "version.py").unlink(),
                 lambda: write(found / "jax" / "more.py", "")):
    damage()
    source._pristine.cache_clear()
    assert not cache.intact(found)
    assert source.pristine(base) == found and cache.intact(found)
    assert (found / "jax" / "version.py").read_text() == ""
    assert not (found / "jax" / "more.py").exists()


def test_a_damaged_wheel_is_made_again(tmp_path):
  made = []

  def make(folder):
    made.append(write(folder / "x.whl", "whole"))

  for content in ("whole", "damaged", ""):
    path = wheel.kept(tmp_path / "x", "x", make)
    assert path.read_text() == "whole"
    path.write_text(content)
  wheel.kept(tmp_path / "x", "x", make)
  assert len(made) == 3  # made once, found damaged twice


def test_what_a_killed_run_left_is_cleared_away(tmp_path):
  dead = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"],
                        capture_output=True, text=True, check=True)
  left = tmp_path / (cache._mark(int(dead.stdout)) + "abc")
  alive = tmp_path / (cache._mark(os.getpid()) + "abc")
  others = tmp_path / ".mend-a1b2c3-1-abc"
  old = tmp_path / ".mend-a1b2c4-1-abc"
  for folder in (left, alive, others, old):
    write(folder / "deep" / "file", "")
  os.utime(old, (1, 1))
  with cache.scratch(tmp_path) as made:
    assert made.is_dir() and not left.exists() and not old.exists()
    assert alive.is_dir() and others.is_dir()
  assert not made.exists()


def test_a_wheel_of_other_content_is_kept(tmp_path, capsys):
  first = write(tmp_path / "a" / "x.whl", "one")
  second = write(tmp_path / "b" / "x.whl", "two")
  dist = tmp_path / "dist"
  assert building.deliver(first, dist).read_text() == "one"
  assert building.deliver(first, dist).read_text() == "one"
  assert not capsys.readouterr().out
  assert building.deliver(second, dist).read_text() == "two"
  (kept,) = dist.glob("replaced/*/x.whl")
  assert kept.read_text() == "one" and str(kept) in capsys.readouterr().out


def test_what_is_not_whole_is_not_kept(tmp_path):
  target = tmp_path / "made"
  with pytest.raises(KeyboardInterrupt):
    with cache.whole(target) as made:
      made.write_text("half")
      raise KeyboardInterrupt
  assert not list(tmp_path.glob("*made*")) and not target.exists()
  with cache.whole(target) as made:
    made.write_text("whole")
  assert target.read_text() == "whole"


def test_a_killed_environment_is_made_again(monkeypatch):
  broken = cache.folder("envs") / "x-test"
  write(broken / "half", "")
  monkeypatch.setattr(venvs.process, "run", lambda *a, **k: "")
  monkeypatch.setattr(venvs.shutil, "rmtree", lambda path: (
      (path / "half").unlink(), path.rmdir(), path.mkdir()))
  made = venvs._environment("x-test", sys.executable, [], "nothing")
  assert made == broken and not (broken / "half").exists()


def test_the_cache_folder_must_be_writable(tmp_path, monkeypatch):
  monkeypatch.setenv("MEND_CACHE", str(write(tmp_path / "file", "")))
  with pytest.raises(MendError, match="can't be made.*\n*.*MEND_CACHE=DIR"):
    cache.folder("sdists")


def command(*args, **env):
  return subprocess.run(
      [sys.executable, str(ROOT / "build" / "build.py"), *args],
      capture_output=True, text=True, check=False, cwd=ROOT,
      env={**os.environ, **env})


def tool_cache() -> str:
  """The cache that this very environment lies in: nothing is installed."""
  return str(pathlib.Path(sys.prefix).parent)


@pytest.mark.parametrize("args, words", [
    (["build", "--base=9.9"], "9.9 is not a base"),
    (["build", "--wheels=jaxlib"], "--wheels=jaxlib is not built here"),
    (["build", "--output_path=/dev/null/x"], "can't be written"),
    (["build", "--python_version=2.7"], "--python_version=2.7 was given"),
    (["test", "--base=all", "--python_version=2.7"], "jax 0.5.3 needs"),
    (["build", "--patches=nothing"], "nothing is no family and no patch"),
    (["apply"], "needs one of --output_path"),
    (["apply", "--output_path=build"], "not empty"),
    (["test", "tests/nothing_test.py"], "no test file and no patch"),
    (["reproduce", "--python=/nowhere/python"], "can't be run"),
])
def test_the_command_says_what_is_wrong(args, words):
  done = command(*args, MEND_CACHE=tool_cache())
  assert done.returncode == 2
  assert words in done.stderr and " Next: " in done.stderr
  assert "Traceback" not in done.stderr


def test_an_old_python_is_told_so(monkeypatch):
  monkeypatch.setattr(sys, "version_info", (3, 9, 0))
  with pytest.raises(SystemExit, match="3.10 is the oldest"):
    bootstrap.ensure("build.py")


def test_no_home_says_how_to_name_a_cache(monkeypatch, capsys):
  for name in ("MEND_CACHE", "XDG_CACHE_HOME"):
    monkeypatch.delenv(name, raising=False)
  def no_home():
    raise RuntimeError("Could not determine home directory.")
  monkeypatch.setattr(pathlib.Path, "home", no_home)
  with pytest.raises(SystemExit) as e:
    bootstrap.cache_root()
  assert "no home folder" in str(e.value) and "MEND_CACHE=DIR" in str(e.value)


def test_a_cache_that_may_not_be_looked_into(monkeypatch, capsys, tmp_path):
  monkeypatch.setenv("MEND_CACHE", str(tmp_path / "kept"))

  def refuse(*_, **__):
    raise PermissionError(errno.EACCES, "Permission denied")

  monkeypatch.setattr(pathlib.Path, "mkdir", refuse)
  monkeypatch.setattr(os, "stat", refuse)
  with pytest.raises(SystemExit, match="can't be used.*MEND_CACHE=DIR"):
    bootstrap.ensure("build.py")


def test_a_program_that_hides_that_the_disk_is_full(monkeypatch):
  usage = shutil.disk_usage(ROOT)
  assert not bootstrap.full("ensurepip returned 1")
  monkeypatch.setattr(bootstrap.shutil, "disk_usage",
                      lambda _: usage._replace(free=0))
  assert bootstrap.full("ensurepip returned 1")


def test_a_full_disk_is_called_that(monkeypatch, capsys):
  code = "print('[Errno 28] No space left on device'); raise SystemExit(1)"
  with pytest.raises(MendError, match="disk is full.*MEND_CACHE=DIR"):
    process.run([sys.executable, "-c", code], what="Installing it",
                next_step="check the network")
  def fill(*_):
    raise OSError(errno.ENOSPC, "No space left on device")
  monkeypatch.setattr(checking, "check", fill)
  assert cli.main(["check"]) == 2
  assert "the disk is full: make room" in capsys.readouterr().err


def test_without_git_what_is_ignored_is_left_out(tmp_path, monkeypatch):
  for name in ("jax/a.py", "dist/a.whl", "jax/__pycache__/a.pyc", "a.pyc",
               ".git/HEAD", "live/build/x", "live/x", "x.egg-info/y",
               "build/lib/z", "build/z"):
    write(tmp_path / name, "")
  write(tmp_path / ".gitignore", (ROOT / ".gitignore").read_text())
  monkeypatch.setenv("PATH", str(tmp_path))  # no git there
  found = {str(p.relative_to(tmp_path)) for p in repository.files(tmp_path)}
  assert found == {".gitignore", "jax/a.py", "live/x", "build/z"}
