"""Tests that environments keep one copy of the files that they have alike."""

import os

from mend.proof import shared_files
import pytest

LARGE = b"x" * (1 << 17)


def environment(folder, name, content, size=None):
  """An environment with one package of one large file and a small one."""
  packages = folder / name / "lib" / "site-packages"
  info = packages / "numpy-1.0.dist-info"
  info.mkdir(parents=True)
  (packages / "large.so").write_bytes(content)
  (packages / "small.py").write_bytes(b"1")
  digest = "sha256=" + content[:1].decode()
  (info / "RECORD").write_text(
      f"large.so,{digest},{size or len(content)}\nsmall.py,sha256=1,1\n"
      "numpy-1.0.dist-info/RECORD,,\n", encoding="utf-8")
  return packages


def done(packages):
  (packages.parent.parent / ".done").write_text("")


def test_a_file_that_is_the_same_is_there_once(tmp_path):
  first = environment(tmp_path, "first", LARGE)
  done(first)
  second = environment(tmp_path, "second", LARGE)
  assert shared_files.share(second, tmp_path, ".done") == len(LARGE)
  assert (second / "large.so").samefile(first / "large.so")
  assert not (second / "small.py").samefile(first / "small.py")
  assert shared_files.share(second, tmp_path, ".done") == 0  # it is already
  assert sorted(os.listdir(second)) == [
      "large.so", "numpy-1.0.dist-info", "small.py"]


@pytest.mark.parametrize("why", ["incomplete", "another", "cut"])
def test_other_files_stay(tmp_path, why):
  first = environment(tmp_path, "first",
                      b"y" + LARGE[1:] if why == "another" else LARGE)
  if why != "incomplete":
    done(first)
  if why == "cut":
    (first / "large.so").write_bytes(LARGE[1:])
  second = environment(tmp_path, "second", LARGE)
  assert shared_files.share(second, tmp_path, ".done") == 0
  assert (second / "large.so").read_bytes() == LARGE


def test_where_links_cannot_be_made_it_stays(tmp_path, monkeypatch):
  done(environment(tmp_path, "first", LARGE))
  second = environment(tmp_path, "second", LARGE)

  def link(*_):
    raise OSError("no links here")
  monkeypatch.setattr(os, "link", link)
  assert shared_files.share(second, tmp_path, ".done") == 0
  assert (second / "large.so").read_bytes() == LARGE
