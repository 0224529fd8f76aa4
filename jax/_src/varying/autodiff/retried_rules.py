# SPDX-License-Identifier: Apache-2.0
"""Backward rules that differentiate where devices diverge, traced once more.

A ``custom_vjp``'s backward rule that takes a derivative by a replicated
residual, in a branch or loop that devices leave apart, is refused: the sum over
devices can't be taken there. It can be after the rule, as that of any cotangent
that varies where its input doesn't. So the rule is traced again with the
residual cast to vary.

Which residual that is isn't told by the refusal. As few are cast as will do,
which a bisection finds: with one more, what the rule makes of it, and is
complete on every device, would be summed again. If then the rule takes other
sums elsewhere (one for a derivative by the same residual, which is complete, is
gone; or one by another value has come), it is refused as it stands. Sums are
told apart by how many operations stand before each, those left out that only
change or mark types.

Cost: a rule that differentiates by one residual is traced four times in all, if
that is its only one that doesn't vary; each further one that is cast takes some
log2 of their number traces more. In a rule that is retried as well the first
and the last of them happen at each of its traces.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator
import functools
from typing import Any, NamedTuple

from jax._src import core
from jax._src import tree_util
from jax._src.varying import casts
from jax._src.varying import context
from jax._src.varying import divergence
from jax._src.varying import retrace
from jax._src.varying import types as vt
from jax._src.varying.contents import jaxprs_in, named_axes, predicate_axes
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

  def call(*trees):
    try:
      with context.replacing('derivatives_at_once', True):
        return bwd(*trees)
    except retrace.DivergentDerivativeError as e:
      refused = e
    leaves, tree = tree_util.tree_flatten(trees)

    def trace(new):
      with context.replacing('derivatives_at_once', True):
        return bwd(*tree_util.tree_unflatten(tree, new))

    refused.retries += 1
    if refused.retries > refused.MOST_RETRIES:
      raise refused
    try:
      with casts.tracing_again():
        found = _promoted(leaves, trace, refused.axes)
        if found is not None:
          return found.result
    except Exception:  # of a program that isn't the user's
      pass
    raise refused from None
  return call


class _Traced(NamedTuple):
  """What a rule makes of some leaves."""
  leaves: list
  result: Any


def _promoted(leaves: list, trace: Callable[[list], Any],
              axes: Axes) -> _Traced | None:
  """The rule, as few of its leaves promoted as will do; None if none will.

  Args:
    leaves: those of its residuals and cotangents, of which it was refused.
    trace: traces it, of others.
    axes: what to promote them to.
  """
  wide = [retrace.promoted(x, axes) for x in leaves]

  @functools.cache
  def traced(places: frozenset[int]) -> _Traced | None:
    new = [y if n in places else x for n, (x, y) in enumerate(
        zip(leaves, wide))]
    try:
      return _Traced(new, trace(new))
    except retrace.DivergentDerivativeError:
      return None

  def needed(given, rest, known):
    """Those of the rest without which the given ones aren't enough."""
    if not known and traced(given):
      return frozenset()
    if len(rest) == 1:
      return rest
    half = frozenset(sorted(rest)[:len(rest) // 2])
    found = needed(given | half, rest - half, False)
    return found | needed(given | found, half, not found)

  places = frozenset(
      n for n, (x, y) in enumerate(zip(leaves, wide)) if x is not y)
  if not places or not traced(places):
    return None
  found = traced(needed(frozenset(), places, True))
  same = found and (_sums(leaves, trace, axes) ==
                    _sums(found.leaves, trace, axes))
  return found if same else None


def _sums(leaves: list, trace: Callable[[list], Any],
          axes: Axes) -> list[tuple]:
  """The sums over the axes that a rule takes where no devices diverge."""
  from jax._src import api  # imports loops, which trace again
  places = [n for n, x in enumerate(leaves) if isinstance(x, core.Tracer)]

  def run(*values):
    given = dict(zip(places, values))
    return trace([given.get(n, x) for n, x in enumerate(leaves)])

  with divergence.allow(True):
    closed = api.make_jaxpr(run)(*(leaves[n] for n in places))
  return list(_places_of_sums(closed.jaxpr, axes))


_MARKS = ('agreed', 'doubted', 'compared')


def _places_of_sums(jaxpr: core.Jaxpr, axes: Axes) -> Iterator[tuple]:
  """The path to each sum, and its axes of these."""
  before = 0
  for eqn in jaxpr.eqns:
    name = vt.name_of(eqn.primitive)
    if eqn.primitive is core.pvary_p or name in _MARKS:
      continue
    if name.startswith('psum'):
      if axes & named_axes(eqn):
        yield before, axes & named_axes(eqn)
      continue
    if not vt.nontrivial(predicate_axes(eqn)):
      for n, inner in enumerate(jaxprs_in(eqn.params)):
        for path in _places_of_sums(inner, axes):
          yield before, n, *path
    before += 1
