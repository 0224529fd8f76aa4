# SPDX-License-Identifier: Apache-2.0
"""The ways that values take through the jaxpr of a rule, traced once more.

A result of a rule of ``custom_vjp`` is judged by what was done to the values
that it is computed from. Each value of its jaxpr gets a *way*, a number: 0 for
what nothing that was given is in, and the larger, the more was done. A question
(`wholes`, `repeated_sums`) has a lattice of its own, and says what an operation
makes of its operands' ways; here is what both share:

* Calls are followed, the branches of a conditional joined, a loop's carries
  solved for a fixpoint. What is chosen by a predicate is as bad as that. A ref
  has the way of what is written to it.
* What can't be followed, such as a kernel, is as bad as the worst of its
  operands, and as anything that is done inside it.

Cost: a visit of each equation.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from jax._src import core
from jax._src.mend import anatomy
from jax._src.varying import types as vt
from jax._src.varying.contents import jaxprs_in

# Of an equation that calls nothing, its operands' ways and one of its results:
# the way of that.
Step = Callable[[core.JaxprEqn, Sequence[int], core.Var], int]


def outs(jaxpr: Any, ins: Sequence[int], step: Step, within: int) -> list[int]:
  """The ways of a jaxpr's results, of those of its inputs."""
  jaxpr = vt.open_jaxpr(jaxpr)
  known: dict[Any, int] = dict(zip(jaxpr.invars, ins))

  def read(v) -> int:
    return 0 if type(v) is core.Literal else known.get(v, 0)

  for eqn in jaxpr.eqns:
    before = [read(v) for v in eqn.invars]
    known.update(zip(eqn.outvars, _of_equation(eqn, before, step, within)))
    if any(before):
      known.update((v, max(before)) for v in eqn.invars if vt.is_ref(v.aval))
  return [read(v) for v in jaxpr.outvars]


def _of_equation(eqn, ins: Sequence[int], step: Step,
                 within: int) -> Sequence[int]:
  count = len(eqn.outvars)
  inner = list(jaxprs_in(eqn.params))
  if not inner:
    return [step(eqn, ins, v) for v in eqn.outvars]
  name = vt.name_of(eqn.primitive)
  if name == 'cond':
    each = [outs(b, ins[1:], step, within)
            for b in anatomy.branches(eqn.params)]
    return [max(ins[0], *ways) for ways in zip(*each)]
  loop = anatomy.loop(eqn)
  if loop is not None:
    return _of_loop(loop, ins, step, within)
  if len(inner) == 1 and len(inner[0].invars) == len(ins) and (
      len(inner[0].outvars) == count):
    return outs(inner[0], ins, step, within)
  return [max(*ins, *(w for j in inner for w in _anywhere(j, step, within)), 0)
          ] * count


def _of_loop(loop: anatomy.Loop, ins: Sequence[int], step: Step,
             within: int) -> list[int]:
  tests, consts, carry, xs = loop.split(ins)
  while True:
    found = outs(loop.body, [*consts, *carry, *xs], step, within)
    if loop.predicate is not None:
      chosen, = outs(loop.predicate, [*tests, *carry], step, within)
      found = [max(chosen, way) for way in found]
    after = list(map(max, carry, found))
    if after == carry:
      return carry + found[len(carry):]
    carry = after


def _anywhere(jaxpr: core.Jaxpr, step: Step, within: int) -> Iterator[int]:
  """The ways of all that is computed in a jaxpr, and in those inside it."""
  for eqn in jaxpr.eqns:
    inner = list(jaxprs_in(eqn.params))
    for j in inner:
      yield from _anywhere(j, step, within)
    if not inner:
      for v in eqn.outvars:
        yield step(eqn, [within] * len(eqn.invars), v)
