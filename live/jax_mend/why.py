# SPDX-License-Identifier: Apache-2.0
"""Finds the patch that a difference comes of, by mending without it.

At most four runs. The mended run has noted the patches whose code ran while a
program was traced, and by which functions. The more of these run neither for
one that is the same nor for an ordinary one, the likelier a patch is; those of
which none ran at all don't count. A patch that is much likelier than the others
is left out alone. Else the series is cut, halving the likelihood: what a patch
needs stands before it, so the series can be cut anywhere. Of two neighbouring
cuts, with one of which a program has the code that it has on the stock jax and
with the other not, the patch between is the cause; it is left out alone, then,
too.

A patch is confirmed if the stock code is back without it, and isn't without the
patches that need it. Several that no run has parted are named together. A run
that ends before it has come to a program tells nothing of it, and ends its
search.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import dataclasses

from jax_mend import pairing, rows
from jax_mend.rows import Row
from jax_mend.runs import Run

MOST = 4  # runs
_SHARED, _ORDINARY, _SILENT, _UNSEEN = .3, .2, .15, .01  # likelihoods
_SEEN = .1  # times that of its own functions, where others ran them, too
_OWN = 3.  # for each function that ran for no program that is the same
_MOST_OWN = 5  # such functions that count
_TRIED = .1  # times the likelihood, where it wasn't back without a patch alone
_LIKELY = .4  # of all the likelihood: worth a run of its own
_Key = tuple[str, int | None, int | None]
Restored = Mapping[_Key, bool]  # a run has not come to those that it lacks


@dataclasses.dataclass(frozen=True)
class Patches:
  """The patches that are applied: `ids`, in the series' order.

  Attributes:
    silent: those whose edits leave no evidence.
    needs: the patches that a patch needs itself.
    ordinary: the functions that run for any program.
  """
  ids: Sequence[str]
  silent: frozenset[str] = frozenset()
  needs: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
  ordinary: frozenset[str] = frozenset()

  def that_need(self, patch: str) -> list[str]:
    """The patches that are left out with a patch."""
    found = {patch}
    for other in self.ids:
      if not found.isdisjoint(self.needs.get(other, ())):
        found.add(other)
    return [p for p in self.ids if p in found and p != patch]


@dataclasses.dataclass(frozen=True)
class Probe:
  """The patches that a run does without.

  Attributes:
    kind: "cut", it and those after it; "alone", it and those that need it;
      "above", these without it.
  """
  kind: str
  patch: str

  def gone(self, patches: Patches) -> list[str]:
    if self.kind == "cut":
      return [*patches.ids[patches.ids.index(self.patch):]]
    own = [self.patch] if self.kind == "alone" else []
    return own + patches.that_need(self.patch)


@dataclasses.dataclass(frozen=True)
class Answer:
  """The patches of which one is the cause of a difference.

  Attributes:
    patches: none, if the cause wasn't found.
    confirmed: whether the one patch was confirmed.
    proof: the reason why it was, or was not.
  """
  patches: Sequence[str]
  confirmed: bool = False
  proof: str = ""


def differing(found: Sequence[Row]) -> list[Row]:
  """The rows to explain: the first one, and those of other code.

  Others are given other arguments, by a row before them.
  """
  counted = [r for r in found if r.kind in rows.COUNTED and not r.again
             and not r.follows]
  return counted[:1] + [r for r in counted[1:] if not r.same_code]


def likelihoods(row: Row, found: Sequence[Row],
                patches: Patches) -> dict[str, float]:
  """The likelihood of each patch that may be the cause, in their order."""
  same = patches.ordinary.union(*(
      f for r in found if r.kind == rows.SAME for f in r.patches.values()))
  at = next(i for i, r in enumerate(found) if r is row)
  # A function may have been traced for an earlier program, also for one that
  # is the same: a loop is, of which a later operation has another type.
  seen: dict[str, set[str]] = {}
  for program in found[:at + 1]:
    for patch, functions in program.patches.items():
      seen.setdefault(patch, set()).update(
          f for f in functions if f not in patches.ordinary)
  shared = {p: max(_SHARED, _SEEN * _powered(len(f))) if f else _ORDINARY
            for p, f in seen.items()}
  own = {p: _powered(len(new)) for p, functions in
         row.patches.items() if (new := {*functions} - same)}
  # What is printed, and an end, may come of what no function has told.
  others = patches.ids if row.kind in (rows.OUTPUT, rows.END) else ()
  weights = {**dict.fromkeys(others, _UNSEEN),
             **dict.fromkeys(patches.silent, _SILENT), **shared, **own}
  return {p: weights[p] for p in patches.ids if p in weights}


def _powered(functions: int) -> float:
  return _OWN ** min(functions, _MOST_OWN)


class _Search:
  """The search for a row's patch, which is one of `likely`.

  Args:
    likely: their likelihoods, in the series' order.
    patches: all of them.
  """

  def __init__(self, likely: dict[str, float], patches: Patches):
    self.likely = likely
    self._patches = patches
    self._runs: list[tuple[frozenset[str], bool]] = []
    self._late = False

  @property
  def known(self) -> bool:
    """True if a run has brought back the stock code."""
    return any(back for _, back in self._runs)

  def told(self, probe: Probe, back: bool | None) -> None:
    """Takes in a run: whether the stock code is back, None if unknown."""
    if back is None:
      self._late |= self.next(MOST) is not None
      return
    gone = frozenset(probe.gone(self._patches))
    self._runs.append((gone, back))
    if not back and probe.kind == "alone":  # another one may be in it, too
      if probe.patch in self.likely:
        self.likely[probe.patch] *= _TRIED
    else:
      self.likely = {p: w for p, w in self.likely.items()
                     if (p in gone) == back}

  def _alone(self, patch: str) -> bool | None:
    """Tells if the stock code is back without a patch; None if unknown."""
    gone = {patch, *self._patches.that_need(patch)}
    return next((back for g, back in self._runs if g == gone), None)

  def _needed(self, patch: str) -> bool:
    """True if it hasn't sufficed to leave out all that need a patch."""
    above = {*self._patches.that_need(patch)}
    return not above or any(above <= gone and patch not in gone and not back
                            for gone, back in self._runs)

  def next(self, left: int) -> Probe | None:
    """The run to make, of so many that are left; None where all is known."""
    if not self.likely or self._late:
      return None
    best = max(self.likely, key=lambda p: self.likely[p])
    alone = self._alone(best)
    if len(self.likely) == 1:
      if alone is None:
        return Probe("alone", best)
      if alone and not self._needed(best):
        return Probe("above", best)
      return None if self.known else Probe("cut", best)
    ids, before, whole = [*self.likely], 0., sum(self.likely.values())
    if left == 1 and not self.known:  # to name some at least
      return Probe("cut", ids[0])
    if alone is None and (left == 1 or self.likely[best] > _LIKELY * whole):
      return Probe("alone", best)
    halves = {}
    for patch, following in zip(ids, ids[1:]):
      before += self.likely[patch]
      halves[following] = abs(whole - 2 * before)
    return Probe("cut", min(halves, key=lambda p: halves[p]))

  def answer(self) -> Answer:
    ids = [*self.likely] if self.known else []
    if self._late:
      return Answer(ids, proof="not confirmed: --timeout ended the search")
    if not ids:
      return Answer([])
    if len(ids) > 1:
      return Answer(ids, proof=f"not confirmed: {MOST} runs didn't part them")
    above = _listed(self._patches.that_need(ids[0]))
    alone = self._alone(ids[0])
    if alone is None:
      return Answer(ids, proof=f"not confirmed: {MOST} runs were made before "
                    "one without it alone")
    if not alone:
      return Answer(ids, proof="not confirmed: without it alone the stock code "
                    "isn't back: another patch changes the program, too or "
                    "instead")
    if not self._needed(ids[0]):
      return Answer(ids, proof=f"not confirmed: {above} depends on it, and was "
                    "left out with it")
    return Answer(ids, True, "confirmed: without it the stock code is back" + (
        f" (it was left out with {above}, without which alone it is not)"
        if above else ""))


def search(found: Sequence[Row], patches: Patches,
           restored: Callable[[Probe, Sequence[str]], Restored],
           agree: Callable[[str], str] = lambda probe: probe,
           ) -> dict[_Key, Answer]:
  """The patches of each row; of one that isn't found, none.

  Args:
    found: all rows.
    patches: those that are applied.
    restored: makes a run without some patches; tells whether the rows are as
      on the stock jax.
    agree: makes one probe of those that several processes want; "" for none.
  """
  states = {row.key: _Search(likelihoods(row, found, patches), patches)
            for row in differing(found)}
  for left in range(MOST, 0, -1):
    wanted = [s.next(left) for s in sorted(
        states.values(), key=lambda s: -len(s.likely))]
    first = next(filter(None, wanted), None)
    kind, _, patch = agree(f"{first.kind} {first.patch}" if first
                           else "").partition(" ")
    if not kind:
      break
    probe = Probe(kind, patch)
    back = restored(probe, probe.gone(patches))
    for key, state in states.items():
      state.told(probe, back.get(key))
  return {key: state.answer() for key, state in states.items()}


def said(patches: Sequence[str], page: Callable[[str], str]) -> str:
  """The patches that were found, and their pages."""
  if not patches:
    return f"no patch was found in {MOST} runs"
  named = f"one of {', '.join(patches)}" if len(patches) > 1 else patches[0]
  pages = [*dict.fromkeys(map(page, patches))]
  return f"{named} ({', '.join(pages[:2])})"


def _listed(patches: Sequence[str]) -> str:
  more = f" and {len(patches) - 2} more" if len(patches) > 2 else ""
  return ", ".join(patches[:2]) + more


def as_on_stock(stock: Run, mended: Run, other: Run, found: Sequence[Row],
                again: Run | None = None) -> Restored:
  """Tells whether another run has the rows' programs as the stock jax does.

  By their code, and of those that differ by values alone by these. If it alone
  hung, that which it hasn't come to is unknown.
  """
  cut_off = other.status is None and stock.status is not None
  now = {r.stock: r for r in rows.rows(stock, other, rows.Tolerance())}
  there = {b.number for a, b in pairing.pairs(other.programs, mended.programs)
           if a and b}

  def is_back(row: Row) -> bool | None:
    if row.kind == rows.OUTPUT:
      return None if cut_off else not rows.other_output(stock, other, again)
    if row.kind == rows.END:
      return not rows.ended_otherwise(stock, other, again)
    if row.stock is None:
      lacks = row.mended not in there
      return None if cut_off and lacks else lacks
    same = now.get(row.stock)
    if same is None:  # lowered, and told once
      return None
    if cut_off and (same.kind == rows.ONLY_STOCK or row.same_code):
      return None
    if row.kind == rows.ONLY_MENDED:  # stock ended within it
      return same.same_code
    return same.kind == rows.SAME if row.same_code else same.same_code

  backs = {row.key: is_back(row) for row in found}
  return {key: back for key, back in backs.items() if back is not None}
