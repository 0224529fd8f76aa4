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
are parts, for sure. So it is traced once more (`ways`), with its forward rule,
which made the residuals. Of three kinds is each value, with regard to an axis:

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

Limits: communication that no parameter of an operation names, as in a kernel
or a foreign call, isn't seen, nor that of a forward rule under
``jax_custom_vjp3``. A residual of a forward rule that can't be traced again
counts as communicated. Cost: a tracing of each rule whose result varies over
more axes than its input, and of its forward rule; two, if they hold a predicate
that varies. None of others.
"""
from __future__ import annotations

import collections
from collections.abc import Callable, Iterator, Mapping, Sequence
import enum
import functools
from typing import Any, NamedTuple

from jax._src import config
from jax._src import core
from jax._src import source_info_util
from jax._src import tree_util
from jax._src.ad_util import SymbolicZero
from jax._src.mend import anatomy
from jax._src.mend import pages
from jax._src.mend import release_types
from jax._src.mend import releases
from jax._src.varying import backward
from jax._src.varying import types as vt
from jax._src.varying.autodiff import cotangents as smc
from jax._src.varying.autodiff import ways
from jax._src.varying.contents import contents, from_derivative
from jax._src.varying.contents import jaxprs_in, named_axes

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


class Forward(NamedTuple):
  """The forward rule beside a backward rule.

  Attributes:
    rule: of the function's arguments.
    tree: their structure.
    symbolic_zeros: whether it is told which of them are differentiated by.
  """
  rule: Callable[..., Any]
  tree: Any
  symbolic_zeros: bool

  def residuals(self, *args: Any) -> list[Any]:
    """Residuals of the function's arguments, both flat."""
    return tree_util.tree_leaves(self._pair(*args)[1])

  def results(self, *args: Any) -> list[Any]:
    """All that it returns, flat."""
    return tree_util.tree_leaves(self._pair(*args))

  def communicates(self, avals: Sequence[Any], axes: vt.Axes) -> bool:
    """True if it may have collectives over any of the axes.

    Args:
      avals: the types of the function's arguments, flat.
      axes: the axes.
    """
    def flat(*args):
      return [x for x in self.results(*args) if smc.array_type(x) is not None]
    try:
      jaxpr = ways.trace(flat, avals, 'custom_vjp fwd')
    except Exception:  # of a program that isn't the user's
      return True
    return bool(axes & contents(jaxpr).collectives)

  def _pair(self, *args: Any) -> tuple[Any, Any]:
    from jax._src import custom_derivatives  # imports this module
    if self.symbolic_zeros:
      args = tuple(custom_derivatives.CustomVJPPrimal(x, True) for x in args)
    return self.rule(*tree_util.tree_unflatten(self.tree, args))


def settle(
    avals: Sequence[Any], cts: Sequence[Any], rules: Rules,
    attached_to: str = '') -> list[Any]:
  """Refuses results of a backward rule of which it isn't known what they are.

  Args:
    avals: the types of the function's inputs, flat.
    cts: what the rule returned for them, flat. What is not an array, such as
      the stand-in for None, is not looked at.
    rules: traces the rule and its forward rule again.
    attached_to: the function and where it is, for the message.

  Returns:
    The results. Over axes along which they vary by a predicate alone, the mean
    of what the devices have.

  Raises:
    ValueError: a cotangent that varies along an axis along which its input
      doesn't may be the whole.
  """
  from jax._src.lax import parallel  # imports custom derivatives itself
  flags, out = backward.rule.wanted, list(cts)
  if flags is None or len(flags) != len(cts):
    flags = [True] * len(cts)
  for n, (aval, ct, wanted) in enumerate(zip(avals, cts, flags)):
    got = None if type(ct) is SymbolicZero else smc.array_type(ct)
    if not wanted or not smc.comparable(got, smc.cotangent_type(aval)):
      continue
    complete = []
    for axis in vt.ordered(vt.nontrivial(vt.varying(got) - vt.varying(aval))):
      kind, why = rules.judge(axis, cts, ct)
      if kind is Kind.UNKNOWN:
        raise ValueError(_message(aval, got, axis, attached_to, why))
      if kind is Kind.WHOLE:
        complete.append(axis)
    if complete:
      out[n] = parallel.pmean(ct, tuple(complete))
  return out


class _Pair(NamedTuple):
  """A rule and its forward rule, traced again.

  Attributes:
    bwd: the backward rule.
    fwd: the forward rule's jaxpr, whose results are residuals; None if there is
      none.
    arrays: the positions of these residuals.
    opaque: whether the forward rule can't be traced again.
  """
  bwd: ways.Traced
  fwd: core.Jaxpr | None
  arrays: Sequence[int]
  opaque: bool

  def equations(self) -> Iterator[core.JaxprEqn]:
    for jaxpr in (self.bwd.jaxpr, self.fwd):
      if jaxpr is not None:
        yield from _equations(jaxpr)

  def communication(self, axis: Any) -> collections.Counter[str]:
    """The numbers of times that each operation communicates over an axis."""
    return collections.Counter(
        vt.name_of(e.primitive) for e in self.equations()
        if axis in named_axes(e))

  def way(self, axis: Any, cts: Sequence[Any], ct: Any, step: ways.Step,
          from_residuals: bool = True) -> int:
    """The way of a result along an axis.

    Args:
      axis: the axis.
      cts: what the backward rule returned, flat.
      ct: one of it.
      step: what an operation makes of ways.
      from_residuals: whether a residual has the way that the forward rule gives
        it, or that of an argument.
    """
    def given(v) -> int:
      return Way.OWN if axis in vt.varying(v.aval) else Way.SAME

    kept: dict[int, int] = {}
    if self.opaque and from_residuals:
      kept = dict.fromkeys(range(self.bwd.residuals), Way.COMMUNICATED)
    elif self.fwd is not None and from_residuals:
      kept = dict(zip(self.arrays, ways.outs(
          self.fwd, list(map(given, self.fwd.invars)), step, Way.OWN)))
    found = self.bwd.results(
        lambda n, v: kept.get(n, given(v)), step, Way.OWN, given)
    return ways.of_result(found, cts, ct)


  def may_choose_parts(self, axis: Any, cts: Sequence[Any], ct: Any) -> bool:
    """True if a result is a part if a predicate that varies chooses it.

    It may be if the function sums over devices, and the rule doesn't.
    """
    sums = self.opaque or self.fwd is not None and (
        axis in contents(self.fwd).collectives)
    return sums and self.way(axis, cts, ct, _step(axis, [])) < Way.COMMUNICATED


class Rules:
  """A rule and its forward rule, traced again when they are looked at.

  Attributes:
    traced: the backward rule; None if it can't be traced again.
  """

  def __init__(self, rule: Callable, forward: Forward | None,
               avals: Sequence[Any], res: Any, out_cts: Any):
    """Takes what `bwd_results.check` is given.

    Args:
      rule: the backward rule.
      forward: its forward rule, if that is known.
      avals: the types of the function's inputs, flat.
      res: the residuals that it was called with.
      out_cts: likewise, the cotangents.
    """
    self.rule, self.forward, self.avals = rule, forward, avals
    self.res, self.out_cts = res, out_cts

  @functools.cached_property
  def traced(self) -> ways.Traced | None:
    return self._trace()

  def _trace(self, types: Mapping[int, Any] = {}) -> ways.Traced | None:
    try:
      return ways.trace_rule(self.rule, self.res, self.out_cts, types)
    finally:  # of a rule that ran in it
      backward.rule.ended = None, ()

  def _trace_forward(self) -> tuple[core.Jaxpr | None, Sequence[int], bool]:
    if self.forward is None:
      return None, (), False
    arrays: list[int] = []
    number = 0

    def flat(*args):
      nonlocal number
      leaves = self.forward.residuals(*args)
      arrays[:] = [n for n, x in enumerate(leaves)
                   if smc.array_type(x) is not None]
      number = len(leaves)
      return [leaves[n] for n in arrays]

    try:
      jaxpr = ways.trace(flat, self.avals, 'custom_vjp fwd')
    except Exception:  # of a program that isn't the user's
      return None, (), True
    if number != len(tree_util.tree_leaves(self.res)):
      return None, (), True
    return jaxpr, arrays, False

  @functools.cached_property
  def _pair(self) -> _Pair | None:
    return self.traced and _Pair(self.traced, *self._trace_forward())

  @functools.cached_property
  def _agreeing(self) -> _Pair | None:
    """The pair as upstream traces it: no devices part at a predicate."""
    # Its types are narrower than Mend's, which the check of jaxprs refuses.
    with vt.predicates_agreeing(), config.enable_checks(False):
      fwd, arrays, opaque = self._trace_forward()
      outs = () if fwd is None else fwd.outvars
      try:
        bwd = self._trace({n: v.aval for n, v in zip(arrays, outs)})
      except Exception:  # of a program that isn't the user's
        return None
    return bwd and _Pair(bwd, fwd, arrays, opaque)

  def judge(self, axis: Any, cts: Sequence[Any], ct: Any) -> tuple[Kind, str]:
    """The kind of a result that varies along an axis.

    Args:
      axis: the axis.
      cts: what the rule returned, flat.
      ct: the result.

    Returns:
      The kind; if it is unknown, why.
    """
    if self._pair is None:
      return Kind.UNKNOWN, (
          "the rule can't be traced to see whether it communicates")
    if self._varies_by_predicate(axis, cts, ct):
      agreeing: Any = self._agreeing
      if agreeing.may_choose_parts(axis, cts, ct):
        return Kind.UNKNOWN, (
            'what it is made of is the same on all devices, a predicate that'
            f' varies chooses it, and its forward rule communicates over'
            f' {axis!r}, so that may choose among parts')
      return Kind.WHOLE, ''
    way = functools.partial(self._pair.way, axis, cts, ct)
    met: list[core.JaxprEqn] = []
    worst = way(_step(axis, met))
    if worst in (Way.NONE, Way.OWN):
      return Kind.PART, ''
    if worst == Way.SAME:
      return Kind.UNKNOWN, 'it is the same on all devices, and was cast'
    in_bwd = way(_step(axis, []), False) == Way.COMMUNICATED
    if self._pair.opaque and not in_bwd:
      return Kind.UNKNOWN, (
          "its forward rule can't be traced to see whether it communicates over"
          f' {axis!r}')
    eqn = next((e for e in met if way(
        _step(axis, [], e), not in_bwd) == Way.COMMUNICATED), met[0])
    return Kind.UNKNOWN, _communicated(
        eqn, axis, 'the rule' if in_bwd else 'its forward rule')

  def _varies_by_predicate(self, axis: Any, cts: Sequence[Any],
                           ct: Any) -> bool:
    """True if a result varies along an axis by a predicate alone."""
    pair: Any = self._pair
    if not any(_parts(e, axis) for e in pair.equations()):
      return False
    other = self._agreeing
    # A rule that is called in this one can have taken a mean for the same
    # reason; upstream's communication is among this.
    if other is None or (
        other.communication(axis) - pair.communication(axis)):
      return False
    v = ways.result(other.bwd.jaxpr.outvars, cts, ct)
    return v is not None and axis not in vt.varying(v.aval)


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


def _equations(jaxpr: core.Jaxpr) -> Iterator[core.JaxprEqn]:
  for eqn in jaxpr.eqns:
    yield eqn
    for inner in jaxprs_in(eqn.params):
      yield from _equations(inner)


def _parts(eqn: core.JaxprEqn, axis: Any) -> bool:
  """True if an equation has a predicate that varies along an axis."""
  loop = anatomy.loop(eqn)
  if loop is not None and loop.predicate is not None:
    predicate = loop.predicate.outvars[0]
  elif vt.name_of(eqn.primitive) == 'cond':
    predicate = eqn.invars[0]
  else:
    return False
  return axis in vt.varying(predicate.aval)


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


def _message(aval, got, axis, attached_to: str, why: str) -> str:
  attached = f' attached to {attached_to}' if attached_to else ''
  gather = ("jax.lax.all_gather(..., to='invarying')"
            if release_types.types_can_be_reduced() else
            'jax.lax.all_gather_invariant'
            if releases.find('jax.lax', 'all_gather_invariant') else '')
  gather = f', or gather it by `{gather}`' if gather else ''
  return (
      f'Custom VJP bwd rule{attached} must produce an output with the same type'
      f' as the input, but the bwd rule{attached} produced an output of type'
      f" {got.str_short()}, which doesn't match expected type"
      f' {smc.cotangent_type(aval).str_short()}: it varies over'
      f' {smc.axes_text(frozenset([axis]))}, and the input does not. What'
      f" varies is taken for each device's part, and summed. This may be the"
      f' whole already: {why}. A sum would multiply it by the number of'
      ' devices. If each device has the'
      f' whole, return `jax.lax.pmean(ct, {axis!r})`{gather}. If each has a'
      f' part, return the sum: `jax.lax.psum(ct, {axis!r})`.' +
      pages.see('varying.md#gradients'))
