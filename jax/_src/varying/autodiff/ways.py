# SPDX-License-Identifier: Apache-2.0
"""The ways that values take through the jaxpr of a rule, traced once more.

A result of a rule of ``custom_vjp`` is judged by what was done to the values
that it is computed from. So the rule is traced as a function of what it was
given, and each value of its jaxpr gets a *way*, a number: 0 for what nothing
that was given is in, and the larger, the more was done. An analysis says what
an operation makes of its operands' ways; here is what all of them share:

* Calls are followed, the branches of a conditional joined, a loop's carries
  solved for a fixpoint. What is chosen by a predicate is as bad as that. A ref
  has the way of what is written to it.
* What can't be followed, such as a kernel, is as bad as the worst of its
  operands, and as anything that is done inside it.

Cost: one tracing of the rule, and a visit of each equation.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from jax._src import api_util
from jax._src import core
from jax._src import linear_util as lu
from jax._src.mend import anatomy
from jax._src import tree_util
from jax._src.interpreters import partial_eval as pe
from jax._src.varying import types as vt
from jax._src.varying.autodiff import cotangents as smc
from jax._src.varying.contents import jaxprs_in

# Of an equation that calls nothing, its operands' ways and one of its results:
# the way of that.
Step = Callable[[core.JaxprEqn, Sequence[int], core.Var], int]


class Traced(NamedTuple):
  """A backward rule's jaxpr.

  Attributes:
    jaxpr: its results are the rule's that are arrays, without repetitions.
    inputs: of each array that the rule was given, by the position of its leaf,
      residuals first.
    residuals: how many leaves are residuals'.
  """
  jaxpr: core.Jaxpr
  inputs: Sequence[int]
  residuals: int

  def results(self, way_of: Callable[[int, core.Var], int], step: Step,
              within: int, captured: Callable[[core.Var], int] = lambda v: 0
              ) -> list[int]:
    """The ways of the results.

    Args:
      way_of: gives that of an input, by its leaf and its variable.
      step: as above.
      within: the way of all operands of what can't be followed.
      captured: gives that of what the rule captures, by its variable.
    """
    first = len(self.jaxpr.invars) - len(self.inputs)
    return outs(self.jaxpr, [
        *map(captured, self.jaxpr.invars[:first]),
        *map(way_of, self.inputs, self.jaxpr.invars[first:])], step, within)


def trace_rule(rule: Callable, res: Any, out_cts: Any,
               types: Mapping[int, Any] = {}) -> Traced | None:
  """Traces a backward rule again.

  Args:
    rule: the backward rule.
    res: the residuals that it was called with. Those that aren't traced stay
      what they are: a rule may need a shape among them.
    out_cts: likewise, the cotangents.
    types: of some leaves of residuals, by position, if not those of these.

  Returns:
    None if it can't be traced again, as it wants to know values.
  """
  (leaves, tree), count = tree_util.tree_flatten((res, out_cts)), len(
      tree_util.tree_leaves(res))
  avals = [smc.array_type(x) if n >= count or isinstance(x, core.Tracer)
           else None for n, x in enumerate(leaves)]
  avals = [aval and types.get(n, aval) for n, aval in enumerate(avals)]
  arrays = [n for n, aval in enumerate(avals) if aval is not None]

  def flat(*args):
    new = list(leaves)
    for n, x in zip(arrays, args):
      new[n] = x
    cts = tree_util.tree_leaves(rule(*tree_util.tree_unflatten(tree, new)))
    return distinct(ct for ct in cts if smc.array_type(ct) is not None)

  try:
    jaxpr = trace(flat, [avals[n] for n in arrays], 'custom_vjp bwd')
  except core.ConcretizationTypeError:
    return None
  return Traced(jaxpr, arrays, count)


def trace(flat: Callable, avals: Sequence[Any], name: str) -> core.Jaxpr:
  """Traces a function of arrays to a jaxpr, within the current trace.

  Returns:
    The jaxpr. Before its inputs are those for what the function captures.
  """
  debug_info = api_util.debug_info(name, flat, tuple(avals), {})
  return pe.convert_constvars_jaxpr(pe.trace_to_jaxpr_dynamic(
      lu.wrap_init(flat, debug_info=debug_info), avals)[0])


def distinct(xs) -> list[Any]:
  """The values; one that follows itself (a prefix of a tree) counts once."""
  out: list[Any] = []
  for x in xs:
    if not out or out[-1] is not x:
      out.append(x)
  return out


def of_result(ways: Sequence[int], cts: Sequence[Any], ct: Any) -> int:
  """The way of one of a rule's results; the worst, if they can't be matched.

  Args:
    ways: those of the jaxpr's results.
    cts: what the rule returned, flat.
    ct: one of it.
  """
  found = result(ways, cts, ct)
  return max(ways, default=0) if found is None else found


def result(each: Sequence[Any], cts: Sequence[Any], ct: Any) -> Any:
  """The entry of one of a rule's results; None if they can't be matched.

  Args:
    each: something of each of the jaxpr's results.
    cts: what the rule returned, flat.
    ct: one of it.
  """
  first = distinct(x for x in cts if smc.array_type(x) is not None)
  if len(each) != len(first):
    return None
  return each[next(n for n, x in enumerate(first) if x is ct)]


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
