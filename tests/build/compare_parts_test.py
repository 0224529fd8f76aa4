# SPDX-License-Identifier: Apache-2.0
"""The parts of `compare` that need neither jax nor numpy: texts and pairs."""

import importlib
import sys
import time

from conftest import ROOT
import pytest

@pytest.fixture(scope="module", name="lib")
def _lib():
  """Modules of jax_mend by their names."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv("JAX_MEND", "0")
    patch.syspath_prepend(str(ROOT / "live"))
    yield lambda name: importlib.import_module(f"jax_mend.{name}")
    for name in [n for n in sys.modules if n.partition(".")[0] == "jax_mend"]:
      del sys.modules[name]


def test_words_that_are_not_the_same_twice_are_left_out(lib):
  texts = lib("texts")

  def differing(one, two, *repeats):
    found = texts.stable(one, two, repeats)
    return found and [*texts.differing(*found)]

  again = ["loss 1.5", "at 0x12"], ["loss 1.5", "at 0x34"]
  assert differing(again[0], ["loss 1.5", "at 0x56"]) == [
      ("at 0x12", "at 0x56")]
  assert not differing(again[0], ["loss 1.5", "at 0x56"], again)
  assert differing(again[0], ["loss 2.5", "at 0x56"], again) == [
      ("loss 1.5", "loss 2.5")]
  assert differing(["a"], ["b"], (["a"], ["a", "a"])) is None
  assert differing(["a"], ["a", "b"], (["a"], ["c"])) == [(None, "b")]


def test_ranks_that_meet_in_another_order_are_left_out(lib):
  meets = "[Gloo] Rank {} is connected to 3 peer ranks. Expected number: 3"
  lines = [meets.format(3), "loss 1.5", meets.format(0), "at [Gloo] Rank 1"]
  assert lib("texts").own(lines) == ["loss 1.5", "at [Gloo] Rank 1"]


def test_other_lines_are_found_in_linear_time(lib):
  texts = lib("texts")
  one = [f"step {n} of 60000" for n in range(60_000)]
  two = [f"{line}!" for line in one]
  began = time.monotonic()
  assert len([*texts.differing(one, two)]) == 60_000
  assert [*texts.differing(one, one[:30_000] + ["x"] + one[30_000:])]
  assert time.monotonic() - began < 5
  assert [*texts.differing(list("abc"), list("axbc"))] == [(None, "x")]
  assert texts.off_by([("6.0 0.0", "6.0 6.0")]) == (6., 1.)


def programs(lib, *facts):
  made = lib("runs").Program
  return [made(n, name, "a:1", code, operations=dict.fromkeys(operations, 1),
               given={0: given})
          for n, (name, code, operations, given) in enumerate(facts)]


def test_programs_are_paired_by_their_code(lib):
  """A program that one side lacks doesn't shift those after it."""
  found = lib("pairing").pairs(
      programs(lib, ("f", "1", "a", ""), ("f", "3", "ab", ""),
               ("f", "4", "d", "")),
      programs(lib, ("f", "1", "a", ""), ("f", "2", "xyz", ""),
               ("f", "5", "abc", ""), ("f", "4", "d", "")))
  assert [(a and a.code, b and b.code) for a, b in found] == [
      ("1", "1"), (None, "2"), ("3", "5"), ("4", "4")]
  # In any order, as threads have them.
  facts = [("f", str(n), "a", "") for n in range(9)]
  found = lib("pairing").pairs(programs(lib, *facts),
                               programs(lib, *facts[::-1]))
  assert all(a.code == b.code for a, b in found)


def test_calls_are_paired_by_their_arguments(lib):
  one, two = programs(lib, ("f", "1", "a", ""), ("f", "1", "a", ""))
  one.given, one.calls = {0: "x", 1: "y", 2: "z"}, {0: "X", 1: "Y", 2: "Z"}
  two.given, two.calls = {0: "y", 1: "w", 2: "x"}, {0: "Y", 1: "W", 2: "X"}
  assert [*lib("pairing").calls(one, two)] == [
      (0, True, "X", "X"), (1, True, "Y", "Y"), (2, False, "Z", "W")]
