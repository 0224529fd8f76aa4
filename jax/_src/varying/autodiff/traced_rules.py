# SPDX-License-Identifier: Apache-2.0
"""A backward rule of ``custom_vjp`` and its forward rule, traced once more.

May a result of the rule be summed over devices, and was it summed once too
often? Both are judged by what was done to the values that it is computed from
(`wholes`, `repeated_sums`, by `ways`). So the rule is traced as a function of
what it was given, once for all that is asked of it, and so is its forward rule,
which made the residuals. Both are traced again as upstream traces them, if they
hold a predicate that varies.

Limits: communication that no parameter of an operation names, as in a kernel
or a foreign call, isn't seen, nor that of a forward rule under
``jax_custom_vjp3``. Cost: each tracing is made when it is first looked at.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import functools
from typing import Any, NamedTuple

from jax._src import api_util
from jax._src import config
from jax._src import core
from jax._src import linear_util as lu
from jax._src import tree_util
from jax._src.ad_util import SymbolicZero
from jax._src.interpreters import partial_eval as pe
from jax._src.mend import pages
from jax._src.varying import backward
from jax._src.varying import divergence
from jax._src.varying import types as vt
from jax._src.varying.autodiff import cotangents as smc
from jax._src.varying.autodiff import ways
from jax._src.varying.contents import contents


class TracedForward(NamedTuple):
  """A forward rule's jaxpr.

  Attributes:
    jaxpr: its results are the residuals that are arrays, then the function's.
    arrays: the positions of these residuals among all.
    residuals: how many residuals there are.
  """
  jaxpr: core.Jaxpr
  arrays: Sequence[int]
  residuals: int


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

  def trace(self, avals: Sequence[Any]) -> TracedForward | None:
    """Traces it again.

    Args:
      avals: the types of the function's arguments, flat.

    Returns:
      None if it can't be traced again.
    """
    arrays: list[int] = []
    number = 0

    def flat(*args):
      nonlocal number
      primals, residuals = map(tree_util.tree_leaves, self._call(*args))
      number = len(residuals)
      arrays[:] = [n for n, x in enumerate(residuals)
                   if smc.array_type(x) is not None]
      return [residuals[n] for n in arrays] + [
          x for x in primals if smc.array_type(x) is not None]

    try:
      jaxpr = _trace(flat, avals, 'custom_vjp fwd')
    except Exception:  # of a program that isn't the user's
      return None
    return TracedForward(jaxpr, arrays, number)

  def communicates(self, avals: Sequence[Any], axes: vt.Axes) -> bool:
    """True if it may have collectives over any of the axes.

    Args:
      avals: the types of the function's arguments, flat.
      axes: the axes.
    """
    traced = self.trace(avals)
    return traced is None or bool(axes & contents(traced.jaxpr).collectives)

  def _call(self, *args: Any) -> tuple[Any, Any]:
    from jax._src import custom_derivatives  # imports this module
    if self.symbolic_zeros:
      args = tuple(map(custom_derivatives.CustomVJPPrimal, args,
                       backward.rule.wants(len(args))))
    return self.rule(*tree_util.tree_unflatten(self.tree, args))


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

  def results(self, way_of: Callable[[int, core.Var], int], step: ways.Step,
              within: int, captured: Callable[[core.Var], int] = lambda v: 0
              ) -> list[int]:
    """The ways of the results.

    Args:
      way_of: gives that of an input, by its leaf and its variable.
      step: what an operation makes of ways.
      within: the way of all operands of what can't be followed.
      captured: gives that of what the rule captures, by its variable.
    """
    first = len(self.jaxpr.invars) - len(self.inputs)
    return ways.outs(self.jaxpr, [
        *map(captured, self.jaxpr.invars[:first]),
        *map(way_of, self.inputs, self.jaxpr.invars[first:])], step, within)


class Pair(NamedTuple):
  """A rule and its forward rule, traced again.

  Attributes:
    bwd: the backward rule.
    fwd: the forward rule; None if there is none, or if it is opaque.
    opaque: whether the forward rule can't be traced again.
  """
  bwd: Traced
  fwd: TracedForward | None
  opaque: bool

  def forward_communicates(self, axes: vt.Axes) -> bool:
    """True if the forward rule may have collectives over any of the axes."""
    return self.opaque or self.fwd is not None and bool(
        axes & contents(self.fwd.jaxpr).collectives)


class Result(NamedTuple):
  """An array that a backward rule returned.

  Attributes:
    n: its position.
    aval: the type of the input that it is the cotangent of.
    ct: itself.
    type: its own type.
    extra: the axes along which it varies and the input doesn't.
    lacking: those along which the input varies and it doesn't.
  """
  n: int
  aval: Any
  ct: Any
  type: Any
  extra: vt.Axes
  lacking: vt.Axes


class Rules:
  """A rule that was called, and its forward rule; traced when looked at.

  Attributes:
    avals: the types of the function's inputs, flat.
    cts: what the rule returned for them, flat. What is not an array, such as
      the stand-in for None, is not looked at.
    attached_to: the function and where it is, for messages.
    results: those whose type can be compared with their input's at all.
    bwd: the backward rule; None if it can't be traced again, as it wants to
      know values.
    pair: both; None likewise.
    agreeing: both as upstream traces them, which doesn't have devices part at a
      predicate; None if they can't be.
  """

  def __init__(self, rule: Callable, forward: Forward | None,
               avals: Sequence[Any], cts: Sequence[Any], res: Any, out_cts: Any,
               attached_to: str = ''):
    """Takes what `bwd_results.check` is given.

    Args:
      rule: the backward rule.
      forward: its forward rule, if that is known.
      avals: as above.
      cts: as above.
      res: the residuals that it was called with.
      out_cts: likewise, the cotangents.
      attached_to: as above.
    """
    self.avals, self.cts, self.attached_to = avals, cts, attached_to
    self._rule, self._forward = rule, forward
    self._res, self._out_cts = res, out_cts
    self._residuals = len(tree_util.tree_leaves(res))

  @functools.cached_property
  def bwd(self) -> Traced | None:
    return self._trace_bwd()

  @functools.cached_property
  def pair(self) -> Pair | None:
    return self.bwd and Pair(self.bwd, *self._fwd)

  @functools.cached_property
  def agreeing(self) -> Pair | None:
    # Its types are narrower than Mend's, which the check of jaxprs refuses.
    # A sum where devices part is none of theirs to refuse, then.
    with vt.predicates_agreeing(), config.enable_checks(False), (
        divergence.allow(True)):
      fwd, opaque = self._trace_fwd()
      types = {} if fwd is None else {
          n: v.aval for n, v in zip(fwd.arrays, fwd.jaxpr.outvars)}
      try:
        bwd = self._trace_bwd(types)
      except Exception:  # of a program that isn't the user's
        return None
    return bwd and Pair(bwd, fwd, opaque)

  @functools.cached_property
  def results(self) -> list[Result]:
    found = []
    for n, (aval, ct) in enumerate(zip(self.avals, self.cts)):
      got = None if type(ct) is SymbolicZero else smc.array_type(ct)
      if smc.comparable(got, smc.cotangent_type(aval)):
        axes, has = vt.varying(aval), vt.varying(got)
        found.append(Result(n, aval, ct, got, has - axes, axes - has))
    return found

  def of_result(self, each: Sequence[Any], ct: Any) -> Any:
    """The entry of one of the results; None if they can't be matched.

    Args:
      each: something of each of the backward jaxpr's results.
      ct: the result, one of those that the rule returned.
    """
    first = _distinct(x for x in self.cts if smc.array_type(x) is not None)
    if len(each) != len(first):
      return None
    return each[next(n for n, x in enumerate(first) if x is ct)]

  def way(self, each: Sequence[int], ct: Any) -> int:
    """The way of one of the results; the worst, if they can't be matched."""
    found = self.of_result(each, ct)
    return max(each, default=0) if found is None else found

  @functools.cached_property
  def _fwd(self) -> tuple[TracedForward | None, bool]:
    return self._trace_fwd()

  def _trace_fwd(self) -> tuple[TracedForward | None, bool]:
    """The forward rule, and whether it is opaque."""
    if self._forward is None:
      return None, False
    traced = self._forward.trace(self.avals)
    if traced is None or traced.residuals != self._residuals:
      return None, True
    return traced, False

  def _trace_bwd(self, types: Mapping[int, Any] = {}) -> Traced | None:
    """The backward rule.

    Args:
      types: of some leaves of residuals, by position, if not those of these.
    """
    # What isn't traced stays what it is: a rule may need a shape among it.
    leaves, tree = tree_util.tree_flatten((self._res, self._out_cts))
    avals = [smc.array_type(x)
             if n >= self._residuals or isinstance(x, core.Tracer) else None
             for n, x in enumerate(leaves)]
    avals = [aval and types.get(n, aval) for n, aval in enumerate(avals)]
    arrays = [n for n, aval in enumerate(avals) if aval is not None]

    def flat(*args):
      new = list(leaves)
      for n, x in zip(arrays, args):
        new[n] = x
      cts = tree_util.tree_leaves(
          self._rule(*tree_util.tree_unflatten(tree, new)))
      return _distinct(ct for ct in cts if smc.array_type(ct) is not None)

    try:
      jaxpr = _trace(flat, [avals[n] for n in arrays], 'custom_vjp bwd')
    except core.ConcretizationTypeError:
      return None
    finally:  # of a rule that ran in it
      backward.rule.ended = None, ()
    return Traced(jaxpr, arrays, self._residuals)


def refusal(rules: Rules, result: Result, reason: str) -> ValueError:
  """The refusal of a result of a backward rule.

  Args:
    rules: the rule.
    result: the result.
    reason: why its type doesn't do, and what to write.
  """
  attached = f' attached to {rules.attached_to}' if rules.attached_to else ''
  return ValueError(
      f'Custom VJP bwd rule{attached} must produce an output with the same type'
      f' as the input, but the bwd rule{attached} produced an output of type'
      f" {result.type.str_short()}, which doesn't match expected type"
      f' {smc.cotangent_type(result.aval).str_short()}: {reason}' +
      pages.see('varying.md#gradients'))


def _trace(flat: Callable, avals: Sequence[Any], name: str) -> core.Jaxpr:
  """Traces a function of arrays to a jaxpr, within the current trace.

  Returns:
    The jaxpr. Before its inputs are those for what the function captures.
  """
  debug_info = api_util.debug_info(name, flat, tuple(avals), {})
  return pe.convert_constvars_jaxpr(pe.trace_to_jaxpr_dynamic(
      lu.wrap_init(flat, debug_info=debug_info), avals)[0])


def _distinct(xs) -> list[Any]:
  """The values; one that follows itself (a prefix of a tree) counts once."""
  out: list[Any] = []
  for x in xs:
    if not out or out[-1] is not x:
      out.append(x)
  return out
