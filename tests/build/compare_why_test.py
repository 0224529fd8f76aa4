# SPDX-License-Identifier: Apache-2.0
"""The search of `compare` for a patch, among invented ones."""

import importlib
import random
import sys

from conftest import ROOT
import pytest


@pytest.fixture(scope="module")
def lib():
  """jax_mend.why and jax_mend.rows."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv("JAX_MEND", "0")
    patch.syspath_prepend(str(ROOT / "live"))
    yield importlib.import_module("jax_mend.why"), importlib.import_module(
        "jax_mend.rows")
    for name in [n for n in sys.modules if n.partition(".")[0] == "jax_mend"]:
      del sys.modules[name]


class World:
  """A series in which `causes` change a program together.

  Attributes:
    runs: the probes that were made.
  """

  def __init__(self, lib, ids, causes, ran, needs=(), silent=()):
    self.why, self.rows = lib
    self.causes, self.runs = {*causes}, []
    self.patches = self.why.Patches(ids, frozenset(silent), dict(needs))
    self.row = self.rows.Row(
        self.rows.CODE, "f", "a:1", patches={
            p: [f"{p}.{n}" for n in range(count)] for p, count in ran.items()})

  def restored(self, probe, gone):
    self.runs.append(f"{probe.kind} {probe.patch}")
    return {self.row.key: self.causes <= {*gone}}

  def answer(self):
    (answer,) = self.why.search(
        [self.row], self.patches, self.restored).values()
    return answer


def test_the_likeliest_is_left_out_alone(lib):
  world = World(lib, ["a", "b", "c"], ["b"], {"a": 1, "b": 4, "c": 1})
  assert world.answer() == lib[0].Answer(
      ["b"], True, "confirmed: without it the stock code is back")
  assert world.runs == ["alone b"]


def test_what_needs_it_is_left_out_alone_too(lib):
  world = World(lib, ["a", "b", "c"], ["b"], {"a": 1, "b": 4},
                {"c": ["b"]})
  answer = world.answer()
  assert answer.patches == ["b"] and answer.confirmed
  assert "it was left out with c, without which alone it is not" in answer.proof
  assert world.runs == ["alone b", "above b"]


def test_it_is_what_needs_the_likeliest(lib):
  world = World(lib, ["a", "b", "c"], ["c"], {"b": 4, "c": 1}, {"c": ["b"]})
  answer = world.answer()
  assert answer.patches == ["c"] and answer.confirmed
  assert world.runs[0] == "alone b"


def test_what_four_runs_do_not_part_is_not_confirmed(lib):
  ids = [f"p{n}" for n in range(16)]
  needs = {p: ids[:n] for n, p in enumerate(ids)}
  confirmed = 0
  for cause in ids:
    answer = World(lib, ids, [cause], dict.fromkeys(ids, 1), needs).answer()
    assert cause in answer.patches
    confirmed += answer.confirmed
    assert answer.confirmed == answer.proof.startswith("confirmed: ")
    assert answer.confirmed or answer.proof.startswith("not confirmed: ")
  assert 0 < confirmed < 16


def test_another_patch_changes_the_program_too(lib):
  world = World(lib, ["a", "b"], ["a", "b"], {"a": 2, "b": 1})
  answer = world.answer()
  assert answer.patches == ["a"] and not answer.confirmed
  assert "another patch changes the program" in answer.proof
  assert len(world.runs) <= 4


def test_a_run_that_is_ended_early_tells_nothing(lib):
  """It is no sign that the stock code isn't back; what was known stays."""
  for last, patches, confirmed in ((0, [], False), (1, ["b"], False),
                                   (2, ["b"], True)):
    world = World(lib, ["a", "b", "c"], ["b"], {"a": 1, "b": 4}, {"c": ["b"]})
    whole = world.restored

    def restored(probe, gone):
      back = whole(probe, gone)
      return back if len(world.runs) <= last else {}

    world.restored = restored
    answer = world.answer()
    assert (answer.patches, answer.confirmed) == (patches, confirmed)
    assert confirmed or "--timeout ended" in answer.proof
    assert len(world.runs) == min(last + 1, 2)


def test_what_a_run_has_not_come_to(lib, tmp_path):
  why, rows = lib
  runs = importlib.import_module("jax_mend.runs")

  def ran(status, *codes):
    return runs.Run(str(tmp_path), "", status, 1., 0, [runs.Program(
        n, name, "a:1", code) for n, (name, code) in enumerate(codes)])

  stock = ran(0, ("f", "0"), ("g", "0"))
  mended = ran(0, ("f", "1"), ("g", "1"), ("h", "1"))
  found = rows.rows(stock, mended, rows.Tolerance())
  f, g, h = (row.key for row in found)
  back = lambda other: why.as_on_stock(stock, mended, other, found)
  assert back(ran(0, ("f", "0"), ("g", "1"))) == {f: True, g: False, h: True}
  assert back(ran(None, ("f", "0"))) == {f: True}  # was ended
  assert back(ran(1, ("f", "0"))) == {f: True, g: False, h: True}


def test_none_is_named_that_was_not_found(lib):
  answer = World(lib, ["a", "b", "c"], ["a"], {"b": 2, "c": 1}).answer()
  assert answer == lib[0].Answer([])


def test_those_that_run_for_any_program_are_no_likelier(lib):
  why, rows = lib
  row = rows.Row(rows.CODE, "f", "a:1", patches={
      "a": ["a.x", "a.y"], "b": ["b.x", "b.y"]})
  found = why.likelihoods(row, [row], why.Patches(
      ["a", "b", "c"], ordinary=frozenset(["b.x", "b.y"])))
  assert [*found] == ["a", "b"] and found["a"] > 5 * found["b"]


def invented(lib, rng):
  """A random series of which one patch is the cause."""
  ids = [f"p{n}" for n in range(rng.choice([3, 8, 20, 60]))]
  cause = rng.choice(ids)
  silent = [p for p in ids if rng.random() < .1]
  ran = {p: rng.choice([1, 1, 2, 3]) for p in ids
         if p not in silent and (p == cause or rng.random() < .2)}
  needs = {p: [q for q in ids[:n] if rng.random() < .6 / max(n, 1)]
           for n, p in enumerate(ids)}
  return World(lib, ids, [cause], ran, needs, silent)


def test_random_series(lib):
  """Whatever is confirmed is right, and most are, in four runs."""
  rng, confirmed, several = random.Random(0), 0, 0
  for _ in range(500):
    world = invented(lib, rng)
    answer = world.answer()
    assert world.causes <= {*answer.patches} and len(world.runs) <= 4
    if answer.confirmed:
      assert {*answer.patches} == world.causes
    confirmed, several = confirmed + answer.confirmed, several + (
        len(answer.patches) > 1)
  assert confirmed > 350 and several > 5


def test_an_end_is_explained_once(lib):
  """Those after an error of one side come of what kept it from the first."""
  why, rows = lib
  found = [rows.Row(rows.SAME, "f", "a:1", same_code=True),
           rows.Row(rows.ONLY_MENDED, "g", "a:2"),
           rows.Row(rows.ONLY_MENDED, "h", "a:3", follows=True)]
  assert why.differing(found) == found[1:2]
  values = rows.Row(rows.VALUES, "v", "a:1", same_code=True)
  assert why.differing([values, *found]) == [values, found[1]]
  assert why.differing([*found, values]) == found[1:2]
