# SPDX-License-Identifier: Apache-2.0
"""Applying a series: whole or not at all, once, and only to the right tree."""

import dataclasses
import os
import pathlib
import re
import shutil
import sys

from conftest import GREET, PATCH, write
from mend.editing import patches
from mend.ground.errors import MendError
from mend.trees import drift, in_place, tree
import pytest


def snapshot(folder: pathlib.Path) -> dict[str, bytes]:
  return {str(p.relative_to(folder)): p.read_bytes()
          for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.fixture
def result(project, upstream, base):
  return tree.mended(patches.load(project), base, upstream, project)


def add_edits(project, text):
  write(project / "patches" / "greet" / "greeting.toml", PATCH + text)
  return patches.load(project)


def test_the_mended_tree(result, upstream, tmp_path):
  before = snapshot(upstream)
  out = tmp_path / "out"
  tree.write_copy(result, upstream, out, sys.executable)
  greet = (out / "jax/_src/greet.py").read_text(encoding="utf-8")
  assert "import os\nfrom jax._src import polite\n" in greet
  assert '"""Greets somebody."""\n    return polite.greeting(name)\n' in greet
  assert "oi" not in greet and "héllo" in greet
  assert (out / "jax/_src/polite.py").exists()
  manifest = (out / tree.MANIFEST).read_text()
  assert 'PATCHES = (\n    "greet/greeting",\n)' in manifest
  assert "tag_build = +mend." in (out / "setup.cfg").read_text()
  assert snapshot(upstream) == before


def test_two_runs_give_the_same_bytes(result, upstream, tmp_path):
  for name in ("a", "b"):
    tree.write_copy(result, upstream, tmp_path / name, sys.executable)
  assert snapshot(tmp_path / "a") == snapshot(tmp_path / "b")


def test_an_output_folder_must_be_new_or_empty(result, upstream, tmp_path):
  out = tmp_path / "out"
  out.mkdir()
  tree.write_copy(result, upstream, out, sys.executable)
  before = snapshot(out)
  with pytest.raises(MendError, match="not empty"):
    tree.write_copy(result, upstream, out, sys.executable)
  assert snapshot(out) == before
  with pytest.raises(MendError, match="can't be written"):
    tree.write_copy(result, upstream, out / "setup.cfg" / "x", sys.executable)


def test_a_result_that_does_not_parse_leaves_nothing(
    project, upstream, base, tmp_path):
  series = add_edits(project, """
[[edit]]
file = "jax/_src/greet.py"
op = "append"
code = "def broken(:"
""")
  out = tmp_path / "out"
  broken = tree.mended(series, base, upstream, project)
  with pytest.raises(MendError, match="does not parse") as error:
    tree.write_copy(broken, upstream, out, sys.executable)
  assert str(error.value).startswith(
      "patch greet/greeting, edit 3 (append jax/_src/greet.py), base 1.0: ")
  assert "patches/greet/greeting.toml" in error.value.next_step
  assert not out.exists()
  assert not list(tmp_path.glob(".mend-*"))


def test_overlapping_edits_are_refused_by_name(project, upstream, base):
  series = add_edits(project, """
[[edit]]
file = "jax/_src/greet.py"
op = "insert"
in = "Greeter.greet"
before = "return"
code = "out = out.lower()"
""")
  with pytest.raises(MendError, match=r"edit 2 .*edit 3 |edit 3 .*edit 2 "):
    tree.mended(series, base, upstream, project)


@pytest.mark.parametrize("edit, words", [
    ('op = "insert"\nin = "Greeter.greet"\nbefore = "raise"\ncode = "x"',
     "found: 0 matches"),
    ('op = "insert"\nin = "Nobody"\nat = "end"\ncode = "x"',
     "found: 0 definitions"),
    ('op = "replace_body"\nin = "Greeter.greet"\ntakes = ["name"]\ncode = "x"',
     "found: parameters"),
])
def test_a_place_that_is_not_there(project, upstream, base, edit, words):
  series = add_edits(
      project, f'\n[[edit]]\nfile = "jax/_src/greet.py"\n{edit}\n')
  with pytest.raises(MendError, match=words) as error:
    tree.mended(series, base, upstream, project)
  for part in ("patch greet/greeting, edit 3", "base 1.0", "greet.py",
               "Next: "):
    assert part in str(error.value)


def test_a_place_that_is_there_twice(project, upstream, base):
  write(upstream / "jax/_src/greet.py", GREET + "\n\nclass Greeter:\n  pass\n")
  with pytest.raises(MendError, match="found: 2 definitions"):
    tree.mended(patches.load(project), base, upstream, project)


def test_a_file_or_module_that_clashes_with_the_base(project, upstream, base):
  write(upstream / "jax/_src/polite.py", "")
  with pytest.raises(MendError, match="already exists in jax 1.0"):
    tree.mended(patches.load(project), base, upstream, project)
  (upstream / "jax/_src/greet.py").unlink()
  with pytest.raises(MendError, match="there is no jax/_src/greet.py"):
    tree.mended(patches.load(project), base, upstream, project)


def test_apply_onto_a_tree_once(result, upstream, tmp_path):
  target = tmp_path / "checkout"
  for name, data in snapshot(upstream).items():
    (target / name).parent.mkdir(parents=True, exist_ok=True)
    (target / name).write_bytes(data)
  write(target / "README.md", "a git checkout has more files\n")
  in_place.write(result, upstream, target, sys.executable)
  once = snapshot(target)
  assert "polite" in (target / "jax/_src/greet.py").read_text(encoding="utf-8")
  assert not (target / "setup.cfg").exists()
  with pytest.raises(MendError, match="already mended"):
    in_place.write(result, upstream, target, sys.executable)
  assert snapshot(target) == once


def test_apply_onto_another_tree_is_refused(result, upstream, tmp_path):
  target = tmp_path / "checkout"
  write(target / "jax/version.py", "")
  write(target / "jax/_src/greet.py", GREET + "# changed\n")
  before = snapshot(target)
  with pytest.raises(MendError, match="greet.py differs") as error:
    in_place.write(result, upstream, target, sys.executable)
  assert "jax-v1.0" in str(error.value)
  with pytest.raises(MendError, match="no jax source tree"):
    in_place.write(result, upstream, tmp_path, sys.executable)
  assert snapshot(target) == before


@pytest.fixture
def checkout(upstream, tmp_path):
  shutil.copytree(upstream, tmp_path / "checkout")
  return tmp_path / "checkout"


@pytest.mark.parametrize("nth", [0, 1, 2])
def test_a_write_that_fails_puts_all_back(result, upstream, checkout,
                                          monkeypatch, nth):
  before, replace, done = snapshot(checkout), os.replace, []

  def full(source, target):
    if checkout / ".mend-staged" in pathlib.Path(source).parents:
      done.append(target)
      if len(done) > nth:
        raise OSError(28, "No space left on device")
    replace(source, target)

  monkeypatch.setattr(os, "replace", full)
  with pytest.raises(MendError, match="No space left.*it is as it was"):
    in_place.write(result, upstream, checkout, sys.executable)
  assert len(result.files) == 3 and len(done) == nth + 1
  assert snapshot(checkout) == before


def test_a_run_that_was_killed_is_undone_by_the_next(
    result, upstream, checkout, monkeypatch, capsys):
  before = snapshot(checkout)
  with monkeypatch.context() as killed:
    killed.setattr(in_place, "restore", lambda target: None)  # never gets to it
    replace = os.replace

    def die(source, target):
      if str(target).endswith(tree.MANIFEST):
        raise KeyboardInterrupt
      replace(source, target)

    killed.setattr(os, "replace", die)
    with pytest.raises(KeyboardInterrupt):
      in_place.write(result, upstream, checkout, sys.executable)
  assert snapshot(checkout) != before
  in_place.restore(checkout)
  assert snapshot(checkout) == before
  assert "as it was before" in capsys.readouterr().out
  in_place.write(result, upstream, checkout, sys.executable)
  assert not list(checkout.glob(".mend*"))


@pytest.mark.parametrize("linked", ["jax/_src", "jax/_src/greet.py"])
def test_a_link_that_leads_out_is_not_followed(
    result, upstream, checkout, tmp_path, linked):
  outside = tmp_path / "outside"
  (checkout / linked).rename(outside)
  (checkout / linked).symlink_to(outside)
  before = snapshot(tmp_path)
  with pytest.raises(MendError, match="leads out of the tree.*by a symbolic"):
    in_place.write(result, upstream, checkout, sys.executable)
  assert snapshot(tmp_path) == before


def test_a_part_of_the_series_has_a_name_of_its_own(project, upstream, base):
  series = patches.load(project)
  whole = tree.mended(series, base, upstream, project)
  part = tree.mended(series, base, upstream, project, part=True)
  other = tree.mended((), base, upstream, project, part=True)
  assert whole.version == base.mended
  assert re.fullmatch(re.escape(base.mended) + r"\.p[0-9a-f]{8}", part.version)
  assert part.version != other.version
  assert f'VERSION = "{part.version}"' in part.files[tree.MANIFEST]
  assert patches.is_part((), series, base)
  assert not patches.is_part(series, series, base)
  newer = dataclasses.replace(base, version="0.5")  # no patch is for it
  assert not patches.is_part((), series, newer)


def states(project, upstream, base):
  series = patches.load(project)
  return drift.states(series, base, upstream, project)


def test_a_fingerprint_sees_how_statements_are_nested():
  inside = "def f(x):\n  if x:\n    g(x)\n    h(x)\n"
  moved = "def f(x):\n  if x:\n    g(x)\n  h(x)\n"
  deeper = "def f(x):\n    if x:\n\n      g(x)  \n      h(x)"
  assert drift.fingerprint(inside) != drift.fingerprint(moved)
  assert drift.fingerprint(inside) == drift.fingerprint(deeper)


def test_drift(project, upstream, base):
  found = states(project, upstream, base)
  # Nothing is read for what stands at a module's end.
  assert [s.state for s in found] == ["exact", "new"]
  assert drift.record(found, project) == 1
  assert {s.state for s in states(project, upstream, base)} == {"exact"}
  path = upstream / "jax/_src/greet.py"
  write(path, GREET.replace("oi ", "oy "))
  assert [s.state for s in states(project, upstream, base)] == [
      "exact", "drifted"]
  write(path, GREET.replace('out = "oi " + name',
                            "return polite.greeting(name)"))
  assert states(project, upstream, base)[1].state == "already there"
  write(path, GREET.replace("def greet(", "def salute("))
  assert states(project, upstream, base)[1].state == "gone"
  path.unlink()
  assert {s.state for s in states(project, upstream, base)} == {"gone"}
