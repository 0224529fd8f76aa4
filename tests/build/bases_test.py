# SPDX-License-Identifier: Apache-2.0
"""The releases: which are known, meant by default, and named to a user."""

import os
import shutil
import signal
import subprocess
import sys

from conftest import OUTER, ROOT
from mend.ground.errors import MendError
from mend.releases import bases
from mend.trees import backend
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
