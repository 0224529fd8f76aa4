# SPDX-License-Identifier: Apache-2.0
"""Mutation testing: the last run, and what has changed since."""

import dataclasses
import types

from mend import cli
from mend.editing import patches
from mend.ground.errors import MendError
from mend.mutation import age, score
from mend.releases import bases
import msgspec
import pytest


def patch(name, **changed):
  (found,) = (p for p in patches.load() if p.id == "varying/loops")
  return dataclasses.replace(found, id=name, **changed)


def test_too_many_changes_or_a_release_are_too_late():
  series = [patch(f"f{i % 4}/p{i}") for i in range(64)]  # 16 of each family
  digests = {p.id: age.digest(p) for p in series}
  def late(count, step, release=bases.release()):
    changed = [p.id for p in series[::step]][:count]
    run = age.Run("2026-11-26", release, {
        n: "0" if n in changed else d for n, d in digests.items()})
    return len(age.too_late(series, run))
  assert late(12, 1) == 0 and late(13, 1) == 13
  assert late(4, 4) == 0 and late(5, 4) == 5  # a quarter of one family
  assert late(1, 1, bases.release() - 1) == 1
  assert late(0, 1, bases.release() - 1) == 0
  two = [patch("g/a"), patch("g/b")]  # of a small one, one may be late
  run = age.Run("2026-11-26", bases.release(), {"g/a": age.digest(two[0])})
  assert not age.too_late(two, run)
  run.patches.clear()
  assert age.too_late(two, run) == ["g/a", "g/b"]


def test_many_changes_fail(tmp_path, capsys):
  series = [patch(f"a/p{n}") for n in range(13)]
  (tmp_path / age.FILE).parent.mkdir()
  age.note(series, root=tmp_path)
  run = age.last(tmp_path)
  few = dict.fromkeys([*run.patches][:3], "0")
  for changed in (few, dict.fromkeys(run.patches, "0")):
    run.patches = {**run.patches, **changed}
    (tmp_path / age.FILE).write_bytes(msgspec.json.encode(run))
    passes = changed is few
    assert age.good(series, tmp_path) == passes
    said = capsys.readouterr().out
    assert f"{len(changed)} changed since" in said
    assert (f"too many: {age.COMMAND}" in said) != passes
    assert ("NO MUTANT: a/p0" in said) != passes


def test_what_was_run_is_noted(tmp_path, capsys):
  first, second = series = [patch("a/one"), patch("b/two")]
  (tmp_path / age.FILE).parent.mkdir()
  age.note(series, root=tmp_path)
  assert age.unseen(series, age.last(tmp_path)) == []
  changed = [
      dataclasses.replace(first, modules=(*first.modules, "jax/_src/new.py")),
      dataclasses.replace(second, edits=second.edits[1:])]
  assert age.unseen(changed, age.last(tmp_path)) == ["a/one", "b/two"]
  assert age.good(changed, tmp_path)  # one of each family
  run = age.last(tmp_path)
  run.release -= 1
  (tmp_path / age.FILE).write_bytes(msgspec.json.encode(run))
  assert age.good(series, tmp_path) and not age.good(changed, tmp_path)
  said = capsys.readouterr().out
  assert "NO MUTANT: a/one has changed since" in said
  assert "test --mutation --since --write" in said
  # Of those that ran since, and no others.
  age.note(changed, ["a/one"], tmp_path)
  assert age.unseen(changed, age.last(tmp_path)) == ["b/two"]
  assert not age.good([], tmp_path)


@pytest.mark.parametrize("names, survivors, noted", [
    (["a/one", "b/two"], ["b/two"], [["a/one"]]),
    (["b/two"], ["b/two"], []), ([], ["b/two"], [[]])])
def test_named_patches_are_noted_that_have_no_survivor(monkeypatch, names,
                                                       survivors, noted):
  asked = []
  monkeypatch.setattr(age, "note",
                      lambda _, names=(): asked.append([*names]))
  score._note([], names, survivors)
  assert asked == noted


@pytest.mark.parametrize("options", [
    "--mutation --since=HEAD", "--mutation --since -- varying/loops"])
def test_since_the_last_run_takes_no_revision_and_no_patch(options):
  args = cli._parser().parse_args(["test", *options.split()])
  with pytest.raises(MendError, match="--mutation --since runs the patches"):
    args.function(args)


def test_since_the_last_run_runs_what_has_changed(monkeypatch):
  series = [patch("a/one"), patch("b/two")]
  run = age.Run("2026-11-26", 1, {"a/one": age.digest(series[0])})
  monkeypatch.setattr(patches, "load", lambda: series)
  monkeypatch.setattr(age, "last", lambda: run)
  asked = []
  def made(base, series, names):
    asked.append(list(names))
    return types.SimpleNamespace(todo=[])
  monkeypatch.setattr(score, "_Mutants", made)
  monkeypatch.setattr(score, "_run_on", lambda *_, **__: [])
  score.run(bases.all_bases()[-1:], (), False, since=True)
  assert asked == [["b/two"]]
  run.patches["b/two"] = age.digest(series[1])
  assert score.run(bases.all_bases()[-1:], (), False, since=True).good
  assert len(asked) == 1
