# SPDX-License-Identifier: Apache-2.0
"""The ways that values take through the jaxpr of a rule, traced once more.

A result of a rule of ``custom_vjp`` is judged by what was done to the values
that it is computed from. Each value of its jaxpr gets a *way*, a number: 0 for
what nothing that was given is in, and the larger, the more was done. A question
(`wholes`, `repeated_sums`) has a lattice of its own, and says what an operation
makes of its operands' ways; here is what both share:

* Ways go through calls, branches and loops as any facts do (``abstract``). What
  is chosen by a predicate is as bad as that.
* A ref has the way of what is written to it, and of where.
* What can't be followed, such as a kernel, is as bad as the worst of its
  operands, and as anything that is done inside it.

Cost: a visit of each equation.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from jax._src import core
from jax._src.mend import abstract
from jax._src.mend import anatomy
from jax._src.varying import types as vt
from jax._src.varying.contents import jaxprs_in

# Of an equation that calls nothing, its operands' ways and one of its results:
# the way of that.
Step = Callable[[core.JaxprEqn, Sequence[int], core.Var], int]


def outs(jaxpr: Any, ins: Sequence[int], step: Step, within: int) -> list[int]:
  """The ways of a jaxpr's results, of those of its inputs."""
  return abstract.outputs(_Ways(step, within), jaxpr, ins).outs


class _Ways(abstract.Domain[int]):
  """The domain of the ways that a question is about."""

  def __init__(self, step: Step, within: int):
    self.of_operation, self.within = step, within

  def join(self, facts):
    return max(facts)

  def free(self, v):
    return 0

  def called(self, eqn):
    return anatomy.only(eqn)

  def step(self, eqn, ins):
    worst = max(ins, default=0)
    writes = {n: worst for n, v in enumerate(eqn.invars) if vt.is_ref(v.aval)}
    inner = list(jaxprs_in(eqn.params))
    if inner:
      every = [worst, 0, *(w for j in inner for w in self._anywhere(j))]
      return abstract.Found([max(every)] * len(eqn.outvars), writes)
    return abstract.Found(
        [self.of_operation(eqn, ins, v) for v in eqn.outvars], writes)

  def _anywhere(self, jaxpr: core.Jaxpr) -> Iterator[int]:
    """The ways of all that is computed in a jaxpr, and in those inside it."""
    for eqn in jaxpr.eqns:
      inner = list(jaxprs_in(eqn.params))
      for j in inner:
        yield from self._anywhere(j)
      if not inner:
        for v in eqn.outvars:
          yield self.of_operation(eqn, [self.within] * len(eqn.invars), v)
