# SPDX-License-Identifier: Apache-2.0
"""Coarse rules for the axes along which values may differ between devices.

A forward inference on sets of axis names, by what operations do and not by how
they are typed: a gather or reduction over one group of devices takes its axes
away, a loop's carries have the least sets that hold in each round, and what a
predicate decides may differ along its axes. It knows nothing of the dataflow
that types programs (``varying.flow``), which is held against it where JAX
checks itself (``varying.required``), and it stands in for types where there are
none (``sanitizer.axes``). What these two say of calls, refs and kernels is
theirs: one believes types, the other has none.

Cost: a loop's body is walked once for each round of its fixpoint.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jax._src.mend import anatomy
from jax._src.mend.manual_axes import Axes, NO_AXES


def union(sets) -> Axes:
  return NO_AXES.union(*sets)


def names_in(eqn: Any) -> Axes:
  """The axes that a collective names; of an array, if it is none."""
  found = eqn.params.get('axes', eqn.params.get('axis_name', ()))
  return frozenset(found if isinstance(found, (tuple, list, set, frozenset))
                   else (found,))


def each(eqn: Any, ins: Sequence[Axes]) -> list[Axes]:
  """The axes of results that are the operands, or made of all of them."""
  count = len(eqn.outvars)
  return list(ins) if len(ins) == count else [union(ins)] * count


def reduced(eqn: Any, ins: Sequence[Axes]) -> list[Axes]:
  """The axes of a reduction's results, equal within its one group."""
  groups = eqn.params.get('axis_index_groups')
  less = NO_AXES if groups and len(groups) > 1 else names_in(eqn)
  return [a - less for a in each(eqn, ins)]


def solved(loop: anatomy.Loop, ins: Sequence[Axes],
           results: Callable[[list[Axes]], list[Axes]],
           predicate: Callable[[list[Axes]], Axes] | None = None,
           changes: Callable[[int], bool] = lambda n: True
           ) -> tuple[list[Axes], list[Axes], Axes]:
  """The least axes of a loop's inputs that hold in each round.

  Args:
    loop: its parts.
    ins: the axes of all inputs of the body, at first.
    results: gives those of the body's results, by those of its inputs.
    predicate: gives those of the predicate, by the carries', if there is one.
    changes: tells by a carry's number whether the body may change it.

  Returns:
    The axes of the body's inputs, of its results, and of the predicate.
  """
  ins, parting = list(ins), NO_AXES
  while True:
    outs = results(ins)
    if predicate:
      parting = predicate(ins[loop.consts:])
    grown = list(ins)
    for n, own in enumerate(loop.own):
      grown[own] |= outs[n]
      if parting and changes(n):
        grown[own] |= parting
    if grown == ins:
      return ins, outs, parting
    ins = grown
