# SPDX-License-Identifier: Apache-2.0
"""Tells parts from wholes in what a backward rule returns.

In ``shard_map`` with the check on, the cotangent of an input that doesn't vary
along an axis is the same on all of its devices. A rule of ``custom_vjp`` that
returns one that varies has computed each device's part, and the parts are
summed, as JAX does for a plain function (`custom_rules`). But a rule may also
have put the parts together itself, by a sum, a gather or a ring of permutes.
What it returns then is the whole, though its type can't say so, and a sum
multiplies it by the number of devices.

The rule is one for each device if it has no communication: then its results
are parts, for sure. So it is traced once more, with its forward rule
(`traced_rules`). Of three kinds is each value, with regard to an axis:

* the same on all devices: what doesn't vary, or has merely been cast, and what
  operations make of such values;
* a device's own: it is made of what varies, or of the device's index;
* communicated: it is made of a device's own by a collective over the axis, sums
  and those of derivatives included. What a reduce-scatter returns is not, it is
  a device's own share of a sum.

A result that varies is a part if it is a device's own. Otherwise it is refused,
as upstream refuses all that vary. The exception is what varies by a predicate
alone: upstream takes predicates to be the same on all devices, and such a
result, a sum that is guarded by ``lax.cond(jnp.isfinite(x), ...)`` say, to be
complete. So it is taken here, and the devices' mean is returned: if the rules
are traced as upstream traces them, it doesn't vary, and communication is the
same. (It is not where a promotion by the predicate has put off a sum.) One that
isn't communicated is refused if the forward rule communicates: the predicate
may choose among the parts of devices.

What was communicated before the function was called doesn't count. The rule of
a function of each device's own values is one of a part, whatever these are.

Limits: a residual of a forward rule that can't be traced again counts as
communicated. Cost: a tracing of each rule whose result varies over more axes
than its input, and of its forward rule; two, if they hold a predicate that
varies. None of others.
"""
from __future__ import annotations

import collections
from collections.abc import Iterator
import enum
import functools
from typing import Any

from jax._src import config
from jax._src import core
from jax._src import source_info_util
from jax._src.mend import anatomy
from jax._src.mend import release_types
from jax._src.mend import releases
from jax._src.varying import backward
from jax._src.varying import types as vt
from jax._src.varying.autodiff import cotangents as smc
from jax._src.varying.autodiff import traced_rules
from jax._src.varying.autodiff import ways
from jax._src.varying.contents import for_outputs, from_derivative
from jax._src.varying.contents import jaxprs_in, named_axes, predicate_axes

# Of these each device gets its share.
_SHARES = frozenset([
    'reduce_scatter', 'unreduced_reduce_scatter', 'reduce_scatter_start'])


class Way(enum.IntEnum):
  """The way of a value along an axis; the worst of its operands' is its."""
  NONE = 0  # of nothing that the rule is given
  SAME = 1
  OWN = 2
  COMMUNICATED = 3


class Kind(enum.Enum):
  """The kind of a result that varies."""
  PART = enum.auto()
  WHOLE = enum.auto()
  UNKNOWN = enum.auto()


def settle(rules: traced_rules.Rules) -> list[Any]:
  """Refuses results of a backward rule of which it isn't known what they are.

  Args:
    rules: the rule and its forward rule.

  Returns:
    What the rule returned. Over axes along which a result varies by a predicate
    alone, the mean of what the devices have.

  Raises:
    ValueError: a cotangent that varies along an axis along which its input
      doesn't may be the whole.
  """
  from jax._src.lax import parallel  # imports custom derivatives itself
  flags, out = backward.rule.wants(len(rules.cts)), list(rules.cts)
  for r in rules.results:
    complete = []
    for axis in vt.ordered(vt.nontrivial(r.extra)) if flags[r.n] else ():
      kind, why = _judge(rules, axis, r.ct)
      if kind is Kind.UNKNOWN:
        raise traced_rules.refusal(rules, r, _reason(axis, why))
      if kind is Kind.WHOLE:
        complete.append(axis)
    if complete:
      out[r.n] = parallel.pmean(r.ct, tuple(complete))
  return out


def _judge(rules: traced_rules.Rules, axis: Any, ct: Any) -> tuple[Kind, str]:
  """The kind of a result that varies along an axis; if it is unknown, why."""
  if rules.pair is None:
    return Kind.UNKNOWN, (
        "the rule can't be traced to see whether it communicates")
  if _varies_by_predicate(rules, axis, ct):
    if _may_choose_parts(rules, axis, ct):
      return Kind.UNKNOWN, (
          'what it is made of is the same on all devices, a predicate that'
          f' varies chooses it, and its forward rule communicates over'
          f' {axis!r}, so that may choose among parts')
    return Kind.WHOLE, ''
  way = functools.partial(_way, rules, rules.pair, axis, ct)
  met: list[core.JaxprEqn] = []
  worst = way(_step(axis, met))
  if worst in (Way.NONE, Way.OWN):
    return Kind.PART, ''
  if worst == Way.SAME:
    return Kind.UNKNOWN, 'it is the same on all devices, and was cast'
  in_bwd = way(_step(axis, []), False) == Way.COMMUNICATED
  if rules.pair.opaque and not in_bwd:
    return Kind.UNKNOWN, (
        "its forward rule can't be traced to see whether it communicates over"
        f' {axis!r}')
  eqn = next((e for e in met if way(
      _step(axis, [], e), not in_bwd) == Way.COMMUNICATED), met[0])
  return Kind.UNKNOWN, _communicated(
      eqn, axis, 'the rule' if in_bwd else 'its forward rule')


def _way(rules: traced_rules.Rules, pair: traced_rules.Pair, axis: Any, ct: Any,
         step: ways.Step, from_residuals: bool = True) -> int:
  """The way of a result along an axis.

  Args:
    rules: the rule and its forward rule.
    pair: their jaxprs.
    axis: the axis.
    ct: the result.
    step: what an operation makes of ways.
    from_residuals: whether a residual has the way that the forward rule gives
      it, or that of an argument.
  """
  def given(v) -> int:
    return Way.OWN if axis in vt.varying(v.aval) else Way.SAME

  kept: dict[int, int] = {}
  if pair.opaque and from_residuals:
    kept = dict.fromkeys(range(pair.bwd.residuals), Way.COMMUNICATED)
  elif pair.fwd is not None and from_residuals:
    jaxpr = pair.fwd.jaxpr
    kept = dict(zip(pair.fwd.arrays, ways.outs(
        jaxpr, list(map(given, jaxpr.invars)), step, Way.OWN)))
  return rules.way(pair.bwd.results(
      lambda n, v: kept.get(n, given(v)), step, Way.OWN, given), ct)


def _may_choose_parts(rules: traced_rules.Rules, axis: Any, ct: Any) -> bool:
  """True if a result is a part if a predicate that varies chooses it.

  It may be if the function sums over devices, and the rule doesn't.
  """
  pair: Any = rules.agreeing
  return pair.forward_communicates(frozenset([axis])) and (
      _way(rules, pair, axis, ct, _step(axis, [])) < Way.COMMUNICATED)


def _varies_by_predicate(rules: traced_rules.Rules, axis: Any, ct: Any) -> bool:
  """True if a result varies along an axis by a predicate alone."""
  pair: Any = rules.pair
  if not any(axis in predicate_axes(e) for e in _equations(pair)):
    return False
  other = rules.agreeing
  # A rule that is called in this one can have taken a mean for the same reason;
  # upstream's communication is among this.
  if other is None or _communication(rules, other, axis, ct) - _communication(
      rules, pair, axis, ct):
    return False
  v = rules.of_result(other.bwd.jaxpr.outvars, ct)
  return v is not None and axis not in vt.varying(v.aval)


def _communication(rules: traced_rules.Rules, pair: traced_rules.Pair,
                   axis: Any, ct: Any) -> collections.Counter[str]:
  """The numbers of times that each operation communicates for a result."""
  jaxpr = pair.bwd.jaxpr
  result = rules.of_result(jaxpr.outvars, ct)
  if result is not None:
    with config.enable_checks(False):  # types may be as if predicates agreed
      own = for_outputs(jaxpr, [v is result for v in jaxpr.outvars])
    pair = pair._replace(bwd=pair.bwd._replace(jaxpr=own))
  return collections.Counter(
      vt.name_of(e.primitive) for e in _equations(pair)
      if axis in named_axes(e))


def _equations(pair: traced_rules.Pair) -> Iterator[core.JaxprEqn]:
  yield from _equations_in(pair.bwd.jaxpr)
  if pair.fwd is not None:
    yield from _equations_in(pair.fwd.jaxpr)


def _equations_in(jaxpr: core.Jaxpr) -> Iterator[core.JaxprEqn]:
  for eqn in jaxpr.eqns:
    yield eqn
    for inner in jaxprs_in(eqn.params):
      yield from _equations_in(inner)


def _communicated(eqn: core.JaxprEqn, axis: Any, where: str) -> str:
  """Says which operation communicated."""
  call = source_info_util.summarize(eqn.source_info)
  if from_derivative(eqn):
    cast = smc.cast_text('w', frozenset([axis]))
    return (f'a derivative in {where} (of the call at {call}), by what does not'
            f" vary, is summed over {axis!r} already. (For each device's part,"
            f' differentiate by {cast}; or give the function that jax.vjp'
            ' returns the cotangent that the rule gets)')
  return (f'{vt.name_of(eqn.primitive)} communicated it, or what it is made'
          f' of, over {axis!r} in {where} (of the call at {call})')


def _step(axis: Any, met: list[core.JaxprEqn], only: Any = None) -> ways.Step:
  def step(eqn, ins, out):
    worst = max(ins, default=Way.NONE)
    if axis not in vt.varying(out.aval):  # in a kernel no type has an axis
      communicates = worst >= Way.OWN and any(
          axis in vt.varying(v.aval) for v in eqn.invars)
    elif axis in named_axes(eqn):
      communicates = vt.name_of(eqn.primitive) not in _SHARES
      worst = max(worst, Way.OWN)
    else:
      communicates = False
      if not anatomy.is_cast(eqn) and not any(
          axis in vt.varying(v.aval) for v in eqn.invars):
        worst = max(worst, Way.OWN)  # a device's index
    if communicates and (only is None or _place(eqn) == _place(only)):
      met.append(eqn)
      return Way.COMMUNICATED
    return worst
  return step


def _place(eqn: core.JaxprEqn) -> tuple:
  return eqn.primitive, source_info_util.summarize(eqn.source_info)


def _reason(axis: Any, why: str) -> str:
  """Says what is wrong with a result that varies along an axis."""
  gather = ("jax.lax.all_gather(..., to='invarying')"
            if release_types.types_can_be_reduced() else
            'jax.lax.all_gather_invariant'
            if releases.find('jax.lax', 'all_gather_invariant') else '')
  gather = f', or gather it by `{gather}`' if gather else ''
  return (
      f'it varies over {smc.axes_text(frozenset([axis]))}, and the input does'
      " not. What varies is taken for each device's part, and summed. This may"
      f' be the whole already: {why}. A sum would multiply it by the number of'
      ' devices. If each device has the'
      f' whole, return `jax.lax.pmean(ct, {axis!r})`{gather}. If each has a'
      f' part, return the sum: `jax.lax.psum(ct, {axis!r})`.')
