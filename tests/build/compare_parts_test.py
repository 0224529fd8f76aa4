# SPDX-License-Identifier: Apache-2.0
"""The parts of `compare` that need no jax: digests, texts, pairs, input."""

import importlib
import itertools
import sys
import time

from conftest import ROOT
import pytest

np = pytest.importorskip("numpy")


@pytest.fixture(scope="module", name="lib")
def _lib():
  """Modules of jax_mend by their names."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv("JAX_MEND", "0")
    patch.syspath_prepend(str(ROOT / "live"))
    yield lambda name: importlib.import_module(f"jax_mend.{name}")
    for name in [n for n in sys.modules if n.partition(".")[0] == "jax_mend"]:
      del sys.modules[name]


def test_digests_tell_arrays_apart(lib, tmp_path):
  """By sign, conjugate, factor and place; of each dtype, 1 to 5 long."""
  store = lib("values").Store(str(tmp_path), 0)
  for kind, length in itertools.product("f2 f4 f8 c8 c16 i1 i4 u8 ?".split(),
                                        range(1, 6)):
    x = np.arange(1, length + 1).astype(kind)
    others = [x, x[::-1], ~x if kind == "?" else -x, x * x + x, 2 * x, 4 * x]
    if x.dtype.kind == "c":
      others += [x + 1j, (x + 1j).conj()]
    if kind != "?":
      signs = itertools.product((1, -1), repeat=length)
      others += [x * np.array(s).astype(kind) for s in signs]
    distinct = {(str(o.dtype), o.tobytes()) for o in others}
    assert len({store.digest(o) for o in others}) == len(distinct)


def test_digests_of_large_arrays(lib, tmp_path):
  store = lib("values").Store(str(tmp_path), 0)
  for count in (1, 2, 3):
    x = np.ones(4096 * count)
    assert len({store.digest(x * n) for n in (1, -1, 2, 4, 8)}) == 5
  assert store.digest(np.zeros(2)) != store.digest(-np.zeros(2))
  assert store.digest(np.zeros((2, 3))) != store.digest(np.zeros((3, 2)))


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
  """What one side lacks doesn't shift those after it."""
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


def test_a_value_that_became_varying_is_the_same(lib):
  """One part that all devices have, and one of each that is equal."""
  differences = lib("differences")
  kept = differences.Values([], differences.Tolerance())
  found = differences.Difference()
  once = [[n, [[0, 1]], "float32[1]:a"] for n in range(4)]
  each = [[n, [[n, n + 1]], "float32[1]:a"] for n in range(4)]
  kept.compare(found, "", once, each)
  assert not found.unequal
  each[2][2] = "float32[1]:b"
  kept.compare(found, "", once, each)
  assert found.unequal and found.beyond and "device 2" in found.where
