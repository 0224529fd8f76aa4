# SPDX-License-Identifier: Apache-2.0
"""Pairs the programs of two runs, and the calls of each pair."""

from __future__ import annotations

import collections
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

from jax_mend.runs import Program, Run

Pair = tuple[Program | None, Program | None]


def pairs(stock: Sequence[Program], mended: Sequence[Program]) -> list[Pair]:
  """The programs of both runs, in order, alike ones side by side.

  Those of the same code come first, whatever their order is: a program that
  one side lacks must not shift those after it, and threads compile in any
  order. Of those that are left, at a line, those are paired whose operations
  differ least.
  """
  partner: dict[int, Program] = {}  # by stock's number
  left = [*mended]
  first = lambda p: p.given.get(0)
  kinds: tuple[Callable[[Program], Hashable], ...] = (
      lambda p: (p.key, p.code, first(p)),
      lambda p: (p.key, p.code),
      lambda p: p.alike)
  for kind in kinds:
    left = _matched([p for p in stock if p.number not in partner], left, kind,
                    partner)
  _nearest([p for p in stock if p.number not in partner], left, partner)
  return _in_order(stock, mended, partner)


def _matched(stock: Sequence[Program], mended: Sequence[Program],
             kind: Callable[[Program], Hashable],
             partner: dict[int, Program]) -> list[Program]:
  """Pairs those of a kind in their order; those of `mended` that are left."""
  of_kind: dict[Hashable, list[Program]] = {}
  for program in reversed(mended):
    of_kind.setdefault(kind(program), []).append(program)
  for program in stock:
    if found := of_kind.get(kind(program)):
      partner[program.number] = found.pop()
  taken = {p.number for p in partner.values()}
  return [p for p in mended if p.number not in taken]


def _nearest(stock: Sequence[Program], mended: Sequence[Program],
             partner: dict[int, Program]) -> None:
  """Pairs programs of one name and line, the most alike first."""
  others: dict[Hashable, list[Program]] = {}
  for program in mended:
    others.setdefault(program.key, []).append(program)
  ranked = sorted(
      ((_distance(a, b), n, m) for n, a in enumerate(stock)
       for m, b in enumerate(others.get(a.key, ()))))
  for _, n, m in ranked:
    other = others[stock[n].key][m]
    if stock[n].number not in partner and all(
        p is not other for p in partner.values()):
      partner[stock[n].number] = other


def _distance(a: Program, b: Program) -> int:
  """By how many operations two programs differ."""
  one, two = (collections.Counter(p.operations) for p in (a, b))
  return (one - two).total() + (two - one).total()


def _in_order(stock: Sequence[Program], mended: Sequence[Program],
              partner: dict[int, Program]) -> list[Pair]:
  """All pairs: stock's order, and mended ones after the one before them."""
  paired = {p.number for p in partner.values()}
  after: dict[int | None, list[Pair]] = {}
  last = None
  for program in mended:
    if program.number in paired:
      last = program.number
    else:
      after.setdefault(last, []).append((None, program))
  out: list[Pair] = [*after.get(None, ())]
  for program in stock:
    other = partner.get(program.number)
    out.append((program, other))
    if other:
      out += after.get(other.number, ())
  return out


def calls(a: Program, b: Program) -> Iterator[tuple[int, bool, Any, Any]]:
  """The calls of two programs, those with equal arguments side by side.

  Yields:
    stock's number of the call, whether the arguments are equal, and the
    results of both.
  """
  left: dict[str, list[int]] = {}
  for at in sorted(b.calls, reverse=True):
    left.setdefault(b.given.get(at, ""), []).append(at)
  rest = []
  for at in sorted(a.calls):
    if found := left.get(a.given.get(at, "")):
      yield at, True, a.calls[at], b.calls[found.pop()]
    else:
      rest.append(at)
  others = sorted(at for found in left.values() for at in found)
  for at, other in zip(rest, others):
    yield at, False, a.calls[at], b.calls[other]


def unequal(stock: Run, mended: Run) -> set[str]:
  """The values of two runs that are to be compared with others."""
  return {part[2] for a, b in pairs(stock.programs, mended.programs) if a and b
          for _, _, one, two in calls(a, b)
          for x, y in zip(one, two) if x != y for part in (*x, *y)}
