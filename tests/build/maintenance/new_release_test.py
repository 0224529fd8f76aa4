# SPDX-License-Identifier: Apache-2.0
"""Taking a release in: the entry, what has changed, and what is left to do."""

import dataclasses
import functools
import re
import shutil

from conftest import write
from mend.editing import patches
from mend.ground.errors import MendError
from mend.releases import bases
from mend.trees import drift
from mend.upkeep import candidates, new_release
from packaging.requirements import Requirement
import pytest


@pytest.fixture
def toml(tmp_path, monkeypatch):
  """A bases.toml with two releases, 1.0 and 3.0."""
  text = "release = 1  # ours\n" + "".join(f"""
[[base]]
version = "{v}"
line = "{line}"
sha256 = "{'0' * 64}"
python = ">=3.10,<3.14"
requirements = ["jaxlib=={v}", "numpy==2.0"]
""" for v, line in (("1.0", "A"), ("3.0", "B")))
  path = write(tmp_path / "bases.toml", text)
  monkeypatch.setattr(bases, "BASES_FILE", path)
  bases.forget()
  yield path
  monkeypatch.undo()
  bases.forget()


@pytest.mark.parametrize("version,twin,line,more", [
    ("2.0", "", "A", {"proof": "sample"}), ("4.0", "", "B", {}),
    ("2.0", "1.0", "A", {"twin_of": "1.0"})])
def test_a_release_is_recorded_where_it_belongs(
    toml, monkeypatch, version, twin, line, more):
  monkeypatch.setattr(candidates, "release", lambda v: bases.Base(
      v, "f" * 64, ">=3.11", ("jaxlib<=2.0",)))
  monkeypatch.setattr(candidates, "requirements", lambda tree_of: (
      ">=3.11", [Requirement("numpy>=2"), Requirement("jaxlib<=2.0")]))
  for name, value in (("pristine", lambda b: None),
                      ("differences", lambda one, other: []
                       if other.version == twin else ["core.py"])):
    monkeypatch.setattr(new_release.source, name, value)
  monkeypatch.setattr(new_release.interpreters, "for_base",
                      lambda b, lowest: "python")
  monkeypatch.setattr(new_release.venvs, "of_packages", lambda *a: "made")
  ran = []
  monkeypatch.setattr(new_release.process, "run", lambda command, **k:
                      ran.append(command) or "jaxlib==2.0\nnumpy==2.4\n")
  monkeypatch.setattr(new_release, "_has_wheel",
                      lambda requirement, minor: minor < 14)
  base = new_release.add(version)
  assert (ran[0][0], *ran[0][-2:]) == ("made", "jaxlib", "numpy")
  assert base == bases.Base(version, "f" * 64, ">=3.11,<3.14",
                            ("jaxlib==2.0", "numpy==2.4"), line, **more)
  assert [b.version for b in bases.releases()] == sorted(
      ["1.0", "3.0", version])
  assert toml.read_text().startswith("release = 1  # ours\n\n[[base]]\n")
  with pytest.raises(MendError, match="a base already"):
    new_release.add(version)


def test_the_running_python_does_not_count(monkeypatch):
  ran = []
  monkeypatch.setattr(new_release.process, "run",
                      lambda command, **k: ran.append(command))
  assert new_release._has_wheel("jaxlib==9.0", 99)
  assert {"--python-version=3.99", "--ignore-requires-python"} < set(ran[0])

  def fail(*args, **more):
    raise MendError("no such wheel", "")

  monkeypatch.setattr(new_release.process, "run", fail)
  assert not new_release._has_wheel("jaxlib==9.0", 99)


def test_a_new_release_ends_with_what_is_left(monkeypatch, base, capsys):
  monkeypatch.setattr(new_release, "add", lambda version: base)
  monkeypatch.setattr(patches, "load", lambda: ())
  monkeypatch.setattr(new_release, "_look", lambda *a: ["port 2 edits"])
  ran = []
  monkeypatch.setattr(new_release, "_sample", lambda s, b, ported:
                      ran.append(ported) or ["3 failed"])
  verdict = new_release.run("1.0", True)
  assert ran == [False] and not verdict.good
  said = capsys.readouterr().out
  assert "  1. port 2 edits\n  2. 3 failed\n  3. " in said
  assert "test --base=1.0" in said and "2 findings" in verdict.words
  verdict = new_release.run("1.0", False)
  assert "3 failed" not in capsys.readouterr().out and ran == [False]


def test_what_has_to_be_read_and_ported_is_shown(
    project, upstream, base, monkeypatch, capsys):
  later = dataclasses.replace(base, version="1.1")
  other = upstream.parent / "later"
  shutil.copytree(upstream, other)
  monkeypatch.setattr(bases, "all_bases", lambda: (base, later))
  monkeypatch.setattr(new_release.source, "pristine",
                      lambda b: other if b == later else upstream)
  series = patches.load(project)
  states = drift.states(series, base, upstream, project)
  drift.record(states, project)
  monkeypatch.setattr(new_release.drift, "states", functools.partial(
      drift.states, root=project))
  assert not new_release._look(series, later)
  assert "0 to read" in capsys.readouterr().out
  (edit,) = {s.edit for s in states if s.fingerprint}
  file = other / edit.file
  text = file.read_text()
  name = edit.scope.split(".")[-1]
  changed = re.sub(rf"(def {name}\(.*?:\n)", r"\1    changed = 1\n", text,
                   count=1)
  assert changed != text
  file.write_text(changed)
  (todo,) = new_release._look(series, later)
  said = capsys.readouterr().out
  assert todo.startswith("read 1 definition (READ")
  assert "+    changed = 1" in said
  file.write_text("")
  (todo,) = new_release._look(series, later)
  assert todo.startswith("port") and "PORT: " in capsys.readouterr().out
