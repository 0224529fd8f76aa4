# SPDX-License-Identifier: Apache-2.0
"""Refuses backward rules that sum what JAX sums as well.

In the days of ``pmap`` the gradient of a sum over devices was a sum over
devices, and rules of ``custom_vjp`` for such functions say ``lax.psum(ct,
'x')`` to this day. In ``shard_map`` with the check on, the cotangent of what
does not vary is the same on every device and complete; to sum it multiplies it
by the number of devices. The result does not vary where the input does, and so
such a rule looks like one that returns a constant, which is cast. What tells
the two apart is the way that the cotangent took to the result. (One that varies
over these axes is each device's own part: a rule may well sum it.)

* The rule is traced once more, as a function of its cotangents (`ways`).
* From the cotangents on, each value is marked that is computed from one, and
  those of which a part went through a reduction over the axes that the result
  lacks: through an operation whose operand varies along them, and whose result
  does not. Calls and branches are followed, loops to a fixed point.
* Where a cotangent that doesn't vary meets what each device has, it becomes a
  device's part, and a sum of these may well be what is meant: the gradient of
  ``psum(w * psum(x, 'x'), 'x')`` by x is ``psum(ct * w, 'x')``. It is refused
  where upstream refuses it, from 0.8.2 on.
* A result so reached is refused. What depends on residuals alone, or on a
  cotangent that met no reduction, is cast by the caller.

A rule that can't be traced again, as it wants to know values, is refused too:
upstream refuses all that lack axes.

Limits: a primitive that is opaque, such as a kernel, counts as a reduction if
its operands vary and its results do not. Cost: one more tracing of a rule whose
result lacks axes, and none of others.
"""
from __future__ import annotations

from collections.abc import Sequence
import enum
from typing import Any

from jax._src import core
from jax._src.ad_util import SymbolicZero
from jax._src.mend import pages
from jax._src.mend import releases
from jax._src.varying import types as vt
from jax._src.varying.autodiff import cotangents as smc
from jax._src.varying.autodiff import ways
from jax._src.varying.autodiff import wholes
from jax._src.varying.contents import from_derivative
from jax._src.varying.types import Axes


class Way(enum.IntEnum):
  """The way of a value from a cotangent; the worst of its operands' is its."""
  NONE = 0
  PART = 1  # each device has its own, of a cotangent that varies
  PLAIN = 2
  SUMMED = 3


def refuse(
    avals: Sequence[Any], cts: Sequence[Any],
    rules: wholes.Rules, attached_to: str = '') -> None:
  """Refuses results of a backward rule that were reduced over missing axes.

  Args:
    avals: the types of the function's inputs, flat.
    cts: what the rule returned for them, flat. What is not an array, such as
      the stand-in for None, is not looked at.
    rules: traces the rule again.
    attached_to: the function and where it is, for the message.

  Raises:
    ValueError: a cotangent was reduced over axes that it lacks.
  """
  lacking = {}
  for i, (aval, ct) in enumerate(zip(avals, cts)):
    got = None if type(ct) is SymbolicZero else smc.array_type(ct)
    if (smc.comparable(got, smc.cotangent_type(aval))
        and not vt.varying(aval) <= vt.varying(got)):
      lacking[i] = vt.varying(aval) - vt.varying(got)
  if not lacking or checks_are_off():
    return
  found = rules.traced
  for i, axes in lacking.items():
    # One by one: a cotangent can vary along some of them. A sum over one device
    # is none.
    strict = is_refused_upstream(avals[i], cts[i])
    if found is None or any(
        _way(found, frozenset([axis]), cts, cts[i], strict) is Way.SUMMED
        for axis in vt.nontrivial(axes)):
      raise ValueError(_message(avals[i], cts[i], axes, attached_to,
                                found is None) +
                       pages.see('varying.md#gradients'))


def _way(traced: ways.Traced, axes: Axes, cts, ct, strict: bool) -> int:
  """The way of a result from the rule's cotangents.

  Args:
    traced: the rule.
    axes: those that the result lacks.
    cts: what the rule returned, flat.
    ct: the result.
    strict: whether a cotangent stays one when each device makes its part of it.
  """
  def of_input(n, v):
    if n < traced.residuals:
      return Way.NONE
    return Way.PART if axes <= vt.varying(v.aval) else Way.PLAIN
  return ways.of_result(
      traced.results(of_input, _step(axes, strict), Way.PLAIN), cts, ct)


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


def _message(aval, ct, axes, attached_to: str, opaque: bool) -> str:
  attached = f' attached to {attached_to}' if attached_to else ''
  over, names = smc.axes_text(axes), vt.ordered(axes)
  text = (
      f'Custom VJP bwd rule{attached} must produce an output with the same type'
      f' as the input, but the bwd rule{attached} produced an output of type'
      f" {vt.typeof(ct).str_short()}, which doesn't match expected type"
      f' {smc.cotangent_type(aval).str_short()}: the input varies over {over},'
      ' and the cotangent does not')
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


def _step(axes: Axes, strict: bool) -> ways.Step:
  def step(eqn, ins, out):
    worst = max(ins, default=Way.NONE)
    if worst is Way.SUMMED:
      return worst
    if worst is Way.PLAIN and not strict and axes <= vt.varying(out.aval) and (
        any(way is Way.NONE and axes <= vt.varying(v.aval)
            for v, way in zip(eqn.invars, ins))):
      return Way.PART
    return max(worst, _removed(eqn, ins, out, axes))
  return step


def _removed(eqn, ins: Sequence[Way], out, axes: Axes) -> Way:
  """The way of a result that lacks axes which a reached operand varies along.

  A rule may sum the parts of a cotangent once. A derivative that it takes sums
  for another reason: what it differentiates by was the same on all devices.
  """
  worst = max((way for v, way in zip(eqn.invars, ins)
               if type(v) is not core.Literal
               and axes & vt.varying(v.aval) - vt.varying(out.aval)),
              default=Way.NONE)
  if worst is Way.PART and not from_derivative(eqn):
    return Way.PLAIN
  return Way.SUMMED if worst else Way.NONE
