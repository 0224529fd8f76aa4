# SPDX-License-Identifier: Apache-2.0
"""Finds backward rules that sum what JAX sums as well.

In the days of ``pmap`` the gradient of a sum over devices was a sum over
devices, and rules of ``custom_vjp`` say ``lax.psum(ct, 'x')`` to this day. In
``shard_map`` with the check on, the cotangent of what does not vary is the same
on every device and complete; to sum it multiplies it by the number of devices.
The rule is traced once more (`traced_rules`), and each value that is made of a
cotangent is followed to the results. It is

* a device's part: of a cotangent that varies, or one that was complete and met
  what each device has. A rule may well sum these: the gradient of
  ``psum(w * psum(x, 'x'), 'x')`` by x is ``psum(ct * w, 'x')``.
* complete: of a cotangent that doesn't vary, or a sum of parts;
* summed: a reduction of what is complete, over the axes in question, other than
  one that a derivative takes of parts.

Two kinds of results are looked at.

**One that lacks axes of its input** (`refuse`), the gradient of a sum. If it is
summed it is refused; upstream refuses all that lack axes, and so are those of a
rule that can't be traced again, as it wants to know values. What depends on
residuals alone, or on a cotangent that met no reduction, is cast by the caller.
Where upstream refuses it, from 0.8.2 on, a sum of parts of what was complete is
refused too.

**One that doesn't vary, of an input that doesn't** (`look`). Megatron's pair
has a function that is the identity and whose backward rule is a sum over
devices, before the layers that are split, and one with these two exchanged
behind them. JAX has taken the sum of the first: its use with a weight that
varies casts it, and the transpose of that cast is a sum. The rule's own sum
fits the types. It is looked for if the rule calls ``psum`` of what doesn't
vary. If the result is so summed, other than as a mean, and the forward rule has
no collective over the axis, that can't be the function's derivative: a function
that has none has a derivative that needs none. (A forward rule that is a
``psum`` of what doesn't vary has.) Then there is the warning of
`already_summed`, or an error if upstream has one: where types of rules' results
are checked, and one of the same backward pass didn't fit, as the pair's other
rule's doesn't.

Limits: for the first, a primitive that is opaque, such as a kernel, counts as a
reduction if its operands vary and its results do not; for the second, the call
of a jitted function in the rule that was traced before isn't seen. Cost: one
more tracing of a rule that has such a result, and none of others.
"""
from __future__ import annotations

from collections.abc import Sequence
import enum
from typing import Any

from jax._src import core
from jax._src.ad_util import SymbolicZero
from jax._src.mend import releases
from jax._src.varying import types as vt
from jax._src.varying.autodiff import already_summed
from jax._src.varying.autodiff import cotangents as smc
from jax._src.varying.autodiff import traced_rules
from jax._src.varying.autodiff import ways
from jax._src.varying.contents import from_derivative, named_axes
from jax._src.varying.types import Axes


class Way(enum.IntEnum):
  """The way of a value from a cotangent; the worst of its operands' is its."""
  NONE = 0
  PART = 1
  COMPLETE = 2
  SUMMED = 3


def refuse(rules: traced_rules.Rules) -> None:
  """Refuses results of a backward rule that were reduced over missing axes.

  Args:
    rules: the rule.

  Raises:
    ValueError: a cotangent was reduced over axes that it lacks.
  """
  lacking = [r for r in rules.results if r.lacking]
  if not lacking or checks_are_off():
    return
  for r in lacking:
    strict = is_refused_upstream(r.aval, r.ct)
    # One by one: a cotangent can vary along some of them. A sum over one device
    # is none.
    if rules.bwd is None or any(
        rules.way(_ways(rules.bwd, axis, _step_lacking(axis, strict)), r.ct)
        == Way.SUMMED for axis in vt.nontrivial(r.lacking)):
      raise traced_rules.refusal(
          rules, r, _reason(r.lacking, rules.bwd is None))


def look(rules: traced_rules.Rules, sums: Sequence[already_summed.Sum],
         refused: bool) -> None:
  """Warns of, or refuses, results that a backward rule summed again.

  Args:
    rules: the rule and its forward rule.
    sums: the calls of ``psum`` in the rule of what doesn't vary.
    refused: whether upstream refuses the program.

  Raises:
    ValueError: there is a result that was summed again, and upstream refuses
      the program; or the option says so.
  """
  for s in sums:
    if not any(_is_summed(rules, axis) for axis in s.axes):
      already_summed.look_behind(s)
    elif rules.pair and not rules.pair.forward_communicates(s.axes):
      already_summed.say_of_rule(s, rules.attached_to, refused)


def _is_summed(rules: traced_rules.Rules, axis: Any) -> bool:
  """True if a result that is complete along an axis was summed over it."""
  if rules.bwd is None:
    return False
  found = _ways(rules.bwd, axis, _step_complete(axis))
  return any(axis not in vt.varying(r.type) | vt.varying(r.aval)
             and rules.way(found, r.ct) == Way.SUMMED for r in rules.results)


def _ways(traced: traced_rules.Traced, axis: Any, step: ways.Step) -> list[int]:
  """The ways of a rule's results from its cotangents."""
  def of_input(n, v):
    if n < traced.residuals:
      return Way.NONE
    return Way.PART if axis in vt.varying(v.aval) else Way.COMPLETE
  return traced.results(of_input, step, Way.COMPLETE)


def checks_are_off() -> bool:
  """True if upstream was told to take whatever a backward rule returns."""
  option = releases.unchecked_backward_rules()
  return option is not None and option.value


def is_refused_upstream(aval: Any, ct: Any) -> bool:
  """True if upstream refuses a result for what it varies over: from 0.8.2."""
  got = ct.aval if type(ct) is SymbolicZero else smc.array_type(ct)
  expected = smc.cotangent_type(aval)
  if not smc.comparable(got, expected) or (
      vt.varying(got) == vt.varying(expected) or checks_are_off()):
    return False
  excepted = releases.find(
      'jax._src.custom_derivatives', '_temporary_dtype_exception')
  return not (excepted and excepted(expected, got))


def _reason(axes: Axes, opaque: bool) -> str:
  """Says what is wrong with a result that lacks axes."""
  over, names = smc.axes_text(axes), vt.ordered(axes)
  text = f'the input varies over {over}, and the cotangent does not'
  if opaque:
    return (f'{text}. If it is the same on every device, return'
            f" {smc.cast_text('ct', axes)}.")
  return (
      f'{text}, because the rule reduces it over {over} (psum, pmean, ...).'
      ' Inside of shard_map the cotangent of an output that does not vary is'
      ' complete on every device, and a sum over devices multiplies it by their'
      f' number. To get the gradient of `jax.lax.psum(x, {names})`, return the'
      ' cotangent as the rule gets it, without the reduction. If the reduced'
      ' value is what each device is to have, write'
      f" {smc.cast_text('ct', axes)} around it.")


def _step_lacking(axis: Any, strict: bool) -> ways.Step:
  """The steps of operations where a result lacks an axis.

  Args:
    axis: the axis.
    strict: whether what is complete stays it when each device makes its part of
      it.
  """
  def step(eqn, ins, out):
    worst = max(ins, default=Way.NONE)
    if worst is Way.SUMMED:
      return worst
    if worst is Way.COMPLETE and not strict and axis in vt.varying(
        out.aval) and any(way is Way.NONE and axis in vt.varying(v.aval)
                          for v, way in zip(eqn.invars, ins)):
      return Way.PART
    return max(worst, _removed(eqn, ins, out, axis))
  return step


def _removed(eqn, ins: Sequence[Way], out, axis: Any) -> Way:
  """The way of a result that has lost a varying axis of a reached operand.

  A rule may sum the parts of a cotangent once. A derivative that it takes sums
  for another reason: what it differentiates by was the same on all devices.
  """
  if axis in vt.varying(out.aval):
    return Way.NONE
  worst = max((way for v, way in zip(eqn.invars, ins)
               if type(v) is not core.Literal and axis in vt.varying(v.aval)),
              default=Way.NONE)
  if worst is Way.PART and not from_derivative(eqn):
    return Way.COMPLETE
  return Way.SUMMED if worst else Way.NONE


def _step_complete(axis: Any) -> ways.Step:
  """The steps of operations where no result and no input has an axis."""
  def step(eqn, ins, out):
    worst, name = max(ins, default=Way.NONE), vt.name_of(eqn.primitive)
    if worst == Way.NONE:
      return worst
    if worst == Way.SUMMED:
      return Way.COMPLETE if _is_mean(eqn, name, axis) else worst
    if axis in vt.varying(out.aval):
      # What else varies makes of it each device's part.
      every = [way for v, way in zip(eqn.invars, ins)
               if eqn.primitive is core.pvary_p or axis in vt.varying(v.aval)]
      return min([worst, *every]) or Way.PART
    if (worst == Way.COMPLETE and name == 'psum_invariant'
        and axis in named_axes(eqn) and not from_derivative(eqn)):
      operand = zip(eqn.invars, ins)
      if any(w == Way.COMPLETE and axis in vt.varying(v.aval)
             for v, w in operand):
        return Way.SUMMED
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
