# SPDX-License-Identifier: Apache-2.0
"""Finds the patch that a difference comes of, by mending without it.

What a patch needs stands before it in the series, so the series can be cut
anywhere. At most four runs cut it: of two neighbouring cuts, with one of which
a program has the code that it has on the stock jax and with the other not, the
patch between is the cause. Each cut halves the likelihood. The mended run has
noted for each program the patches whose code ran while it was traced; those
that ran for no program that is the same are likeliest, and those that ran for
none at all are left out of account. Patches that no cut has parted are named
together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import dataclasses

from jax_mend import pairing
from jax_mend.pairing import Row
from jax_mend.runs import Run

MOST = 4  # runs
_OWN, _SHARED, _SILENT = 9., 3., 1.  # likelihoods
_Key = tuple[str, str, str, int]


@dataclasses.dataclass(frozen=True)
class Patches:
  """The patches that are applied: `ids`, in the series' order.

  Attributes:
    silent: those whose edits leave no evidence.
  """
  ids: Sequence[str]
  silent: frozenset[str] = frozenset()


def differing(found: Sequence[Row]) -> list[Row]:
  """The rows to be explained: another code, or only there on one side."""
  return [r for r in found if r.kind != pairing.SAME and not r.same_code
          and not r.again]


def likelihoods(row: Row, found: Sequence[Row],
                patches: Patches) -> dict[str, float]:
  """The likelihood of each patch that may be the cause, in their order."""
  same = {p for r in found if r.kind == pairing.SAME for p in r.patches}
  at = next(i for i, r in enumerate(found) if r is row)
  # A function may have been traced for an earlier program.
  before = {p for r in found[:at] for p in r.patches}
  own = {p: _OWN for p in row.patches if p not in same}
  shared = dict.fromkeys([*before, *row.patches], _SHARED)
  weights = {**dict.fromkeys(patches.silent, _SILENT), **shared, **own}
  return {p: weights[p] for p in patches.ids if p in weights}


@dataclasses.dataclass
class _Search:
  """The search for a row's patch, which is in ids[low:high].

  Attributes:
    known: whether a cut at `low` has brought back the stock code.
  """
  ids: list[str]
  weights: list[float]
  low: int = 0
  high: int = -1
  known: bool = False

  def cut(self) -> str:
    """The patch before which to cut the series; "" where all is known."""
    inside = self.weights[self.low:self.high]
    if len(inside) < 2 and (self.known or not inside):
      return ""
    if len(inside) < 2:  # nothing has brought it back as yet
      return self.ids[self.low]
    options = range(self.low + 1, self.high)
    return self.ids[min(options, key=lambda at: abs(
        sum(self.weights[self.low:at]) - sum(self.weights[at:self.high])))]

  def told(self, gone: Sequence[str], restored: bool) -> None:
    """Takes in a run without the patches `gone`, the end of the series."""
    at = next((i for i, p in enumerate(self.ids) if p in gone), len(self.ids))
    if restored and at >= self.low:
      self.low, self.known = at, True
    elif not restored:
      self.high = min(self.high, at)


def search(found: Sequence[Row], patches: Patches,
           restored: Callable[[Sequence[str]], set[_Key]],
           agree: Callable[[str], str] = lambda cut: cut,
           ) -> dict[_Key, list[str]]:
  """The patches of each row; of one that isn't found, none.

  Args:
    found: all rows.
    patches: those that are applied.
    restored: runs it without some patches; tells the rows that are as on the
      stock jax.
    agree: makes one cut of those that several processes want; "" for none.
  """
  states = {}
  for row in differing(found):
    likely = likelihoods(row, found, patches)
    states[row.key] = _Search([*likely], [*likely.values()], high=len(likely))
  for _ in range(MOST):
    cuts = [s.cut() for s in sorted(
        states.values(), key=lambda s: s.low - s.high)]
    cut = agree(next(filter(None, cuts), ""))
    if not cut:
      break
    gone = patches.ids[patches.ids.index(cut):]
    back = restored(gone)
    for key, state in states.items():
      state.told(gone, key in back)
  return {key: s.ids[s.low:s.high] if s.known else []
          for key, s in states.items()}


def said(patches: Sequence[str], page: Callable[[str], str]) -> str:
  """One sentence about the patches that were found."""
  if not patches:
    return f"no patch was found in {MOST} runs"
  named = f"one of {', '.join(patches)}" if len(patches) > 1 else patches[0]
  pages = [*dict.fromkeys(map(page, patches))]
  return f"{named} ({', '.join(pages[:2])})"


def words(gone: Sequence[str]) -> str:
  """The value of JAX_MEND that leaves patches out."""
  return ",".join(f"-{patch}" for patch in gone)


def as_on_stock(stock: Run, other: Run, found: Sequence[Row]) -> set[_Key]:
  """The rows whose programs another run has as the stock jax does."""
  now = {r.key: r for r in pairing.rows(stock, other, pairing.Tolerance())}
  return {row.key for row in found
          if (now[row.key].same_code if row.key in now else
              row.kind == pairing.ONLY_MENDED)}
