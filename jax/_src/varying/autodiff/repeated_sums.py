# SPDX-License-Identifier: Apache-2.0
"""Finds backward rules that sum a complete cotangent of what doesn't vary.

Megatron's pair has a function that is the identity and whose backward rule is a
sum over devices, before the layers that are split, and one with these two
exchanged behind them. In ``shard_map`` with the check on, JAX has taken the sum
of the first by then: what it returns doesn't vary, its use with a weight that
does casts it, and the transpose of that cast is a sum. The rule's own sum
multiplies the gradient by the number of devices, and the types fit.

A rule that calls ``psum`` of what doesn't vary is traced once more (`ways`). If
a cotangent that doesn't vary reaches a result by such a sum, other than as a
mean, and the forward rule has no collective over the axis, that can't be the
function's derivative: a function that has none has a derivative that needs
none. (A forward rule that is a ``psum`` of what doesn't vary has.) Then there
is the warning of `already_summed`, or an error if upstream has one: where types
of rules' results are checked, and one of the same backward pass didn't fit, as
the pair's other rule's doesn't.

Limits: the call of a jitted function in the rule that was traced before isn't
seen. Cost: none for rules without such a call.
"""
from __future__ import annotations

from collections.abc import Sequence
import enum
from typing import Any

from jax._src import core
from jax._src.varying import types as vt
from jax._src.varying.autodiff import already_summed
from jax._src.varying.autodiff import cotangents as smc
from jax._src.varying.autodiff import ways
from jax._src.varying.autodiff import wholes
from jax._src.varying.contents import from_derivative, named_axes


class Way(enum.IntEnum):
  """The way of a value from a cotangent; the worst of its operands' is its."""
  NONE = 0
  OTHER = 1
  COMPLETE = 2  # a cotangent that doesn't vary, but for a cast
  AGAIN = 3  # a sum of such


def look(avals: Sequence[Any], cts: Sequence[Any],
         sums: Sequence[already_summed.Sum],
         rules: wholes.Rules,
         forward: wholes.Forward | None, attached_to: str,
         refused: bool) -> None:
  """Warns of, or refuses, results that a backward rule summed again.

  Args:
    avals: the types of the function's inputs, flat.
    cts: what the rule returned for them, flat.
    sums: the calls of ``psum`` in the rule of what doesn't vary.
    rules: traces the rule again.
    forward: its forward rule, if that is known.
    attached_to: the function and where it is, for the message.
    refused: whether upstream refuses the program.

  Raises:
    ValueError: there is a result that was summed again, and upstream refuses
      the program; or the option says so.
  """
  found = rules.traced
  for s in sums:
    if found is None or not _is_sum_of_cotangents(avals, cts, s.axes, found):
      already_summed.look_behind(s)
    elif forward is None or not forward.communicates(avals, s.axes):
      already_summed.say_of_rule(s, attached_to, refused)


def _is_sum_of_cotangents(avals, cts, axes: vt.Axes,
                          traced: ways.Traced) -> bool:
  for axis in axes:
    def of_input(n, v):
      if n < traced.residuals:
        return Way.NONE
      return Way.OTHER if axis in vt.varying(v.aval) else Way.COMPLETE
    found = traced.results(of_input, _step(axis), Way.COMPLETE)
    for aval, ct in zip(avals, cts):
      got = smc.array_type(ct)
      if (smc.comparable(got, smc.cotangent_type(aval))
          and axis not in vt.varying(got) | vt.varying(aval)
          and ways.of_result(found, cts, ct) == Way.AGAIN):
        return True
  return False


def _step(axis: Any) -> ways.Step:
  def step(eqn, ins, out):
    worst, name = max(ins, default=Way.NONE), vt.name_of(eqn.primitive)
    if worst == Way.NONE:
      return worst
    if worst == Way.AGAIN:
      return Way.COMPLETE if _is_mean(eqn, name, axis) else worst
    if axis in vt.varying(out.aval):
      # What else varies makes of it each device's part.
      every = [way for v, way in zip(eqn.invars, ins)
               if eqn.primitive is core.pvary_p or axis in vt.varying(v.aval)]
      return min([worst, *every]) or Way.OTHER
    if (worst == Way.COMPLETE and name == 'psum_invariant'
        and axis in named_axes(eqn) and not from_derivative(eqn)):
      operand = zip(eqn.invars, ins)
      if any(w == Way.COMPLETE and axis in vt.varying(v.aval)
             for v, w in operand):
        return Way.AGAIN
    return worst
  return step


def _is_mean(eqn: core.JaxprEqn, name: str, axis: Any) -> bool:
  """True if an operation divides by a multiple of the number of devices."""
  if name not in ('div', 'mul'):
    return False
  by = [v.val for v in eqn.invars[name == 'div':]
        if type(v) is core.Literal]
  if not by or not by[0]:
    return False
  size = core.get_axis_env().axis_sizes.get(axis) or 1
  times = float(by[0] if name == 'div' else 1. / by[0])
  return abs(times / size - round(times / size)) < 1e-3
