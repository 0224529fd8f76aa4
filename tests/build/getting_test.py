"""Bases, sources, wheels and caches, and commands that go wrong."""

import email
import errno
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tarfile

from conftest import OUTER, ROOT, write
from mend import cli
from mend.ground import bootstrap, cache, process, repository
from mend.ground.errors import MendError
from mend.house import checking
from mend.proof import building, reproduce, venvs
from mend.releases import bases, source
from mend.trees import backend, wheel
from packaging.version import Version
import pytest


def test_the_bases_are_in_order():
  versions = [Version(b.version) for b in bases.releases()]
  assert versions == sorted(set(versions))
  lines = [b.line for b in bases.releases()]
  assert lines == sorted(lines)
  for base in bases.releases():
    assert not base.twin_of or bases.get(base.twin_of).line == base.line
    assert base.proof in ("whole", "sample")
    assert len(base.sha256) == 64 and base.mended.startswith(base.version + "+")


def test_an_unknown_base_is_named_with_the_known_ones():
  with pytest.raises(MendError, match=r"9\.9\.9 is not a base.*0\.5\.3, "):
    bases.chosen("9.9.9")
  assert [b.version for b in bases.chosen("0.6.0,0.5.3")] == ["0.6.0", "0.5.3"]
  assert bases.chosen("all") == bases.all_bases()


@pytest.mark.parametrize("version,python,near", [
    ("0.6.9", "", "0.6.2"), ("0.4.38", "", "0.5.1"), ("0.9.0.7", "", "0.9.0.1"),
    ("99.1", "3.10.1", "0.6.2"), ("0.6.1.dev2", "", "0.6.0"),
    ("banana", "3.10.1", "0.6.2"), ("0.8.0", "2.7", "0.8.0")])
def test_the_nearest_release(version, python, near):
  assert bases.nearest(version, python).version == near


@pytest.mark.parametrize("settings,named,running,words,following", [
    (None, "0.7.1", (3, 10, 13), "needs Python >=3.11,<3.14, and this is "
     "3.10.13.", "MEND_BASE=0.6.2 PYTHON -m pip install . (the nearest that "
     "Python 3.10.13 can have)"),
    (None, "0.6.9", (3, 12, 1), "jax 0.6.9 is none of the releases",
     "MEND_BASE=0.6.2 PYTHON -m pip install . ("),
    ({"base": "0.13"}, None, (3, 12, 1), "jax 0.13 is none of the releases",
     "PYTHON -m pip install . -C base=0.12.0.1 (")])
def test_pip_is_told_what_pip_can_do(monkeypatch, settings, named, running,
                                     words, following):
  monkeypatch.setattr(sys, "version_info", running)
  monkeypatch.delenv("MEND_BASE", raising=False)
  if named:
    monkeypatch.setenv("MEND_BASE", named)
  for make in (backend.build_wheel, backend.build_sdist):
    with pytest.raises(SystemExit) as stopped:
      make("/nowhere", settings)
    said = str(stopped.value.code).replace(sys.executable, "PYTHON")
    assert words in said and f" Next: {following}" in said
    assert "--base" not in said


def broken(text, *, old="", new=""):
  assert old in text
  return text.replace(old, new, 1)


@pytest.mark.parametrize("old,new,words", [
    ("release = 1", "release =", "no valid TOML"),
    ("release = 1", "release = 0", r"[$]\.release"),
    ('version = "0.5.1"\n', "", r"\[\[base\]\] 1: .*`version`"),
    ('sha256 = "', 'sha256 = "x', r"\[\[base\]\] 1: .*sha256"),
    ('"sample"', '"some"', r"'some'"), ('line = "A"', "lines = 1", "lines"),
    ('twin_of = "0.5.1"', 'twin_of = "1"', "0.5.2 is the twin of no release"),
    ('version = "0.5.2"', 'version = "0.5.1"', "there twice"),
    ('">=3.10,<3.14"', '"new"', "'new'"), ("# The", "\udcff", "no UTF-8 text")])
def test_a_broken_list_of_releases(tmp_path, monkeypatch, old, new, words):
  text = broken(bases.BASES_FILE.read_text("utf-8"), old=old, new=new)
  path = tmp_path / "bases.toml"
  path.write_bytes(text.encode("utf-8", "surrogateescape"))
  monkeypatch.setattr(bases, "BASES_FILE", path)
  bases.forget()
  try:
    with pytest.raises(MendError, match=words) as error:
      bases.releases()
    assert str(path) in error.value.what
    with pytest.raises(SystemExit) as stopped:
      backend.build_sdist(str(tmp_path))
    assert str(stopped.value.code).startswith("FAILED: Mend: ")
  finally:
    monkeypatch.undo()
    bases.forget()


def test_the_help_of_a_broken_list_of_releases_is_one_line(tmp_path):
  build = shutil.copytree(ROOT / "build", tmp_path / "build")
  (build / "bases.toml").write_bytes(b"release = \xff")
  done = subprocess.run(
      [sys.executable, build / "build.py", "--help"], text=True,
      env={**os.environ, "MEND_CACHE": str(OUTER)}, capture_output=True,
      check=False)
  assert done.returncode == 2, done.stderr
  assert done.stderr.splitlines()[-1].startswith("FAILED: build.py: ")
  assert " Next: " in done.stderr and "Traceback" not in done.stderr


def test_an_interrupt_while_the_environment_is_made(tmp_path):
  child = subprocess.Popen(
      [sys.executable, ROOT / "build" / "build.py", "status"],
      env={**os.environ, "MEND_CACHE": str(tmp_path)}, text=True,
      stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
  assert "preparing build.py's own" in child.stderr.readline()
  os.killpg(child.pid, signal.SIGINT)
  _, said = child.communicate(timeout=60)
  assert child.returncode == 130
  assert said == "FAILED: stopped. Next: run it again; it recovers\n"


def test_a_line_names_its_releases():
  in_e = bases.chosen("E")
  assert in_e and {b.line for b in in_e} == {"E"}
  assert bases.chosen("E,E-G,0.10.2") == tuple(dict.fromkeys(
      [*in_e, *bases.chosen("E-G")]))
  with pytest.raises(MendError, match="no release is of that line"):
    bases.chosen("Z")


def test_a_plain_run_is_of_one_release_of_each_line(monkeypatch):
  monkeypatch.setattr(sys, "version_info", (3, 11, 0))
  found = bases.one_of_each_line()
  assert [b.line for b in found] == [b.line for b in bases.representatives()]
  assert bases.default_base() in found


def test_the_default_base_is_the_newest_for_this_python(monkeypatch):
  every, seen = bases.all_bases(), set()
  for running in (3, 10, 1), (3, 11, 0), (3, 12, 0), (3, 13, 5):
    monkeypatch.setattr(sys, "version_info", running)
    found, python = bases.default_base(), ".".join(map(str, running))
    assert found.supports(python)
    assert not any(b.supports(python) for b in every[every.index(found) + 1:])
    seen.add(found)
  assert len(seen) == 3 and every[-1] in seen
  monkeypatch.setattr(sys, "version_info", (3, 9, 1))
  with pytest.raises(MendError, match="No base release supports Python 3.9.1"):
    bases.default_base()


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


def test_the_table_of_a_proof_is_in_a_file(tmp_path, capsys):
  """143 rows buried the line that says what to install."""
  base = bases.get("0.6.2")
  file = building._table_file(tmp_path / "jax-0.6.2+mend.1-py3-any.whl", base)
  assert file == tmp_path / "jax-0.6.2+mend.1-proof.md"
  assert building._table_file(tmp_path / "jax_mend-1.0-py3.whl", base
                              ).name == "jax_mend-1.0-jax-0.6.2-proof.md"
  rows = [["jax#1", "one", "FAIL: x", "PASS"], ["jax#2", "two", "n/a", "n/a"]]
  good = [reproduce.Outcome("PASS", ""), reproduce.Outcome("n/a", "")]
  building._show(rows, good, file, "a wheel", base)
  (line,) = capsys.readouterr().out.split("\n")[1:-1]
  assert line == f"Each regression, before and after: {file}"
  text = file.read_text("utf-8")
  assert text.startswith("# a wheel against jax 0.6.2\n\n| report")
  assert "| jax#1  | one        | FAIL: x  | PASS   |\n" in text
  bad = [good[0], reproduce.Outcome("FAIL", "bad")]
  building._show(rows, bad, file, "a wheel", base)
  out = capsys.readouterr().out
  assert "jax#2" in out and "jax#1" not in out


@pytest.mark.parametrize("running,said", [
    ((3, 10, 13), "jax 0.6.2 is the newest release that Python 3.10.13 can "
     "have, so it is chosen; 0.7.0 needs Python 3.11 to 3.13, 0.12.0.1 needs "
     "Python 3.12 or newer. --base=V builds another"), ((3, 12, 1), "")])
def test_what_is_newer_and_not_chosen(monkeypatch, capsys, running, said):
  monkeypatch.setattr(sys, "version_info", running)
  building.say_what_is_newer(bases.default_base())
  out = capsys.readouterr().out
  assert out.startswith(said) and bool(out) == bool(said)


def test_a_source_distribution_says_whose_it_is(tmp_path, monkeypatch):
  monkeypatch.setattr(backend.repository, "files", lambda _: [])
  made = backend.build_sdist(str(tmp_path))
  with tarfile.open(tmp_path / made) as tar:
    (info,) = [tar.extractfile(m).read() for m in tar.getmembers()
               if m.name.endswith("/PKG-INFO")]
  said = email.message_from_bytes(info)
  assert said["Name"] == "jax" and "+mend." in said["Version"]
  assert said["Author"] and said["License"] == "Apache-2.0"
  assert said["Requires-Python"] == ">=3.10"
  assert len(said.get_all("Project-URL")) == 2 and said.get_payload()
  assert len(said.get_all("Classifier")) > 5


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
    (["build", "--patches=nothing"], "no patch 'nothing'"),
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
