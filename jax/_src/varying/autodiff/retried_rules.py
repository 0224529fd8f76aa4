# SPDX-License-Identifier: Apache-2.0
"""Backward rules that differentiate where devices diverge, traced once more.

A ``custom_vjp``'s backward rule that takes a derivative by a replicated
residual, in a branch or loop that devices leave apart, is refused: the sum over
devices can't be taken there. It can be after the rule, as that of any cotangent
that varies where its input doesn't. So the rule is traced again with the
residual cast to vary.

Which residual that is isn't told by the refusal, and a branch need not be given
the value by which it differentiates. So all are cast, for the results that
depend on what was refused. The others are those of the rule as it stands: one
that is complete on every device, or that varies by a predicate alone, would be
summed if it were made of what was cast. What makes a complete result that does
depend on it isn't cast. The rule is refused if that varies nevertheless, or if
results hold other sums than before (one for a derivative elsewhere, which is
complete, is gone). Sums are told apart by how many operations stand before
each, those left out that only change or mark types.

Cost: a rule that is refused is traced four times in all, however many residuals
it has, and twice more where its results are in question (`traced_rules`). Rules
in it that are refused, too, are retried in two of the four.
"""
from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from typing import Any, NamedTuple

from jax._src import core
from jax._src import tree_util
from jax._src.varying import casts
from jax._src.varying import context
from jax._src.varying import dependences
from jax._src.varying import divergence
from jax._src.varying import retrace
from jax._src.varying import types as vt
from jax._src.varying.contents import for_outputs, jaxprs_in, named_axes
from jax._src.varying.contents import predicate_axes
from jax._src.varying.types import Axes


def retrying_rule(bwd: Callable[..., Any]) -> Callable[..., Any]:
  """Lets a backward rule be traced as if its inputs had been cast beforehand.

  Args:
    bwd: a ``custom_vjp`` backward rule, of residuals and cotangents.

  Returns:
    The rule, which is traced again, with residuals cast to vary, if it is
    refused for a derivative by them. Outside of shard_map, ``bwd`` itself.
  """
  if not vt.checking():
    return bwd

  plans: dict[Any, _Plan] = {}
  constants = []  # by whose ids plans are found: so they aren't another's

  def call(*trees):
    refused = None
    if not plans:
      try:
        with context.replacing('derivatives_at_once', True):
          return bwd(*trees)
      except retrace.DivergentDerivativeError as e:
        refused = e
    leaves, tree = tree_util.tree_flatten(trees)

    def trace(new):
      with context.replacing('derivatives_at_once', True):
        return bwd(*tree_util.tree_unflatten(tree, new))

    # What it returned is judged by tracing it again, of the same types, and as
    # if predicates agreed: then nothing is refused, and nothing is to be cast.
    key = context.keyed.value.predicates_agree, tree, *(
        vt.typeof(x) if isinstance(x, core.Tracer) else id(x) for x in leaves)
    if key in plans:
      with casts.tracing_again():
        return plans[key].follow(leaves, trace)
    if refused is None:
      try:
        return trace(leaves)
      except retrace.DivergentDerivativeError as e:
        refused = e
    refused.retries += 1
    if refused.retries > refused.MOST_RETRIES:
      raise refused
    try:
      with casts.tracing_again():
        before = _traced(leaves, trace)
        plan = _plan(before, leaves, trace, refused.axes)
        if plan is not None:
          made = plan.follow(leaves, trace, before)
          plans[key] = plan
          constants.extend(x for x in leaves if not isinstance(x, core.Tracer))
          return made
    except Exception as e:  # of a program that isn't the user's
      raise refused from e
    raise refused from None
  return call


class _Plan(NamedTuple):
  """The way to trace a refused rule once more.

  Attributes:
    axes: the axes that leaves are promoted to.
    kept: the leaves that are not.
    own: the results that are the rule's as it stands.
  """
  axes: Axes
  kept: set[int]
  own: set[int]

  def promoted(self, leaves: list) -> list:
    return [x if n in self.kept else retrace.promoted(x, self.axes)
            for n, x in enumerate(leaves)]

  def follow(self, leaves: list, trace: Callable[[list], Any],
             before: _Traced | None = None) -> Any:
    """The rule's results, by this way; `before` is the rule as it stands."""
    made, tree = tree_util.tree_flatten(trace(self.promoted(leaves)))
    if self.own:
      before = before or _traced(leaves, trace)
      for n, x in before.evaluated(self.own).items():
        made[n] = x
    return tree_util.tree_unflatten(tree, made)


class _Traced(NamedTuple):
  """A rule, traced to a jaxpr.

  Attributes:
    closed: the jaxpr.
    values: those of the rule's leaves that are its inputs, by their numbers.
    results: those of the rule's results that are its outputs, by theirs.
  """
  closed: Any
  values: dict[int, Any]
  results: dict[int, Any]

  def varying(self, axes: Axes) -> set[int]:
    """The results that vary over any of these axes."""
    return {n for n, v in self.results.items() if axes & vt.varying(v.aval)}

  def made_into(self, results: Container[int], axes: Axes) -> set[int]:
    """The leaves that these results would vary with, over these axes."""
    known, places = dependences.of_values(self.closed.jaxpr), [*self.values]
    found = [dependences.of_atom(known, v).numbers(axes)
             for n, v in self.results.items() if n in results]
    return {places[n] for n in set[int]().union(*found) if n < len(places)}

  def of(self, results: Container[int]) -> core.Jaxpr:
    """The jaxpr that makes these results; captured values are inputs, too."""
    return for_outputs(self.closed.jaxpr, [n in results for n in self.results])

  def evaluated(self, results: Container[int]) -> dict[int, Any]:
    """The values of these results, by their numbers."""
    found = core.eval_jaxpr(self.of(results), (), *self.closed.consts,
                            *self.values.values())
    return dict(zip([n for n in self.results if n in results], found))


def _plan(before: _Traced, leaves: list, trace: Callable[[list], Any],
          axes: Axes) -> _Plan | None:
  """The way to trace a rule of these leaves; None if it is refused."""
  refused = {n for n in before.results if any(
      _acts(eqn) or _sums_apart(eqn, axes)
      for eqn in before.of({n}).eqns)}
  complete = refused.difference(before.varying(axes))
  plan = _Plan(axes, before.made_into(complete, axes),
               set(before.results) - refused)
  after = _traced(plan.promoted(leaves), trace)
  if before.results.keys() != after.results.keys():
    return None
  sums = [list(_places_of_sums(rule.of(refused).eqns, axes))
          for rule in (before, after)]
  if sums[0] != sums[1] or complete.intersection(after.varying(axes)):
    return None
  return plan


def _traced(leaves: list, trace: Callable[[list], Any]) -> _Traced:
  """The rule of some leaves, with sums also where devices diverge."""
  from jax._src import api  # imports loops, which trace again
  values = {n: x for n, x in enumerate(leaves) if isinstance(x, core.Tracer)}
  results: list[int] = []

  def run(*args):
    given = dict(zip(values, args))
    made = tree_util.tree_leaves(
        trace([given.get(n, x) for n, x in enumerate(leaves)]))
    # A symbolic zero, which can be handed on, is no result of a jaxpr.
    results[:] = [n for n, x in enumerate(made) if isinstance(x, core.Tracer)]
    return [made[n] for n in results]

  with divergence.allow(True):
    closed = api.make_jaxpr(run)(*values.values())
  return _Traced(closed, values, dict(zip(results, closed.jaxpr.outvars)))


def _acts(eqn: core.JaxprEqn) -> bool:
  """True if an equation has an effect beside naming an axis."""
  return any(not isinstance(e, core.NamedAxisEffect) for e in eqn.effects)


def _sums_apart(eqn: core.JaxprEqn, axes: Axes, apart: bool = False) -> bool:
  """True if a sum over the axes is taken where devices diverge."""
  if apart and _is_sum(eqn) and axes & named_axes(eqn):
    return True
  apart = apart or bool(vt.nontrivial(predicate_axes(eqn)))
  return any(_sums_apart(e, axes, apart)
             for inner in jaxprs_in(eqn.params) for e in inner.eqns)


def _is_sum(eqn: core.JaxprEqn) -> bool:
  return vt.name_of(eqn.primitive).startswith('psum')


_MARKS = ('agreed', 'doubted', 'compared')


def _places_of_sums(eqns: Iterable[core.JaxprEqn], axes: Axes
                    ) -> Iterator[tuple]:
  """The path to each sum where no devices diverge, and its axes of these."""
  before = 0
  for eqn in eqns:
    name = vt.name_of(eqn.primitive)
    if eqn.primitive is core.pvary_p or name in _MARKS:
      continue
    if _is_sum(eqn):
      if axes & named_axes(eqn):
        yield before, axes & named_axes(eqn)
      continue
    if not vt.nontrivial(predicate_axes(eqn)):
      for n, inner in enumerate(jaxprs_in(eqn.params)):
        for path in _places_of_sums(inner.eqns, axes):
          yield before, n, *path
    before += 1
