# SPDX-License-Identifier: Apache-2.0
"""Varying axes in ``custom_linear_solve`` and ``custom_root``.

Both trace functions of a vector of the kind of ``b`` (or of the first guess),
with the types of the one that the user gave. The solution varies along more
axes if the functions read something that does, and types that are then too
narrow make the transposed functions, the derivative and the lowering refuse
one another. So the functions are traced anew, from an argument of which each
leaf is cast to what it was found to be in what they return, until nothing is
found wider. A leaf that stays replicated has derivatives that are summed.

The primitive of a linear solve is then typed by the solver it holds, not by
all that the functions read: a replicated ``b`` with a matrix spread over the
devices and a ``psum`` in ``matvec`` has a replicated solution. Where a solve is
typed again, ``b`` varies along the least axes that all four functions agree
with, and the solution along what the solver makes of that.
"""

from __future__ import annotations

import functools
import operator
from typing import Any

from jax._src import tree_util
from jax._src.varying import context
from jax._src.varying import flow
from jax._src.varying import retrace
from jax._src.varying import retype
from jax._src.varying import types as vt
from jax._src.varying.rules import primitives as vp


def _leaves(traced) -> list[Any]:
  return tree_util.tree_leaves(traced.out_avals)


def widened(start, *functions):
  """The start of a solve, cast to vary along what the solution varies along.

  Args:
    start: a pytree of arrays: the right-hand side or the first guess.
    functions: what was traced with it; the first results of each are of its
      structure.

  Returns:
    None if no function returns what varies along more axes than ``start``
    does, else ``start``, each leaf cast to the axes found for it. Whoever
    traces the functions again with that asks again.
  """
  if not vt.checking():
    return None
  leaves, tree = tree_util.tree_flatten(start)
  new = [vt.cast(x, flow.union(map(vt.varying, found)))
         for x, *found in zip(leaves, *map(_leaves, functions))]
  if all(map(operator.is_, new, leaves)):
    return None
  return tree.unflatten(new)


def judged_where_applied(transpose_solve):
  """A solver for the transpose, which is traced whether it is used or not.

  What fails in it is refused where it is the solver of an equation.
  """
  return transpose_solve and functools.partial(
      context.run, 'judged_later', transpose_solve)


def cast_alike(*trees):
  """Trees of arrays, all cast to vary along what any of them varies along.

  An adaptive step depends on everything, so that a gradient with respect to one
  of these is summed where the cast is: here, outside of the loop.
  """
  leaves, tree = tree_util.tree_flatten(trees)
  return tree_util.tree_unflatten(tree, vp.promote(leaves))


def cast_for_steps(func, y0, ts, args):
  """The operands of ``odeint``, cast alike if its dynamics can take them so.

  Dynamics that differentiate by the state, or by a parameter, sum the gradient
  if that doesn't vary. They were converted, with it, and mean that sum.
  """
  cast = cast_alike(y0, ts, args)
  if not vt.checking() or all(map(operator.is_, *map(
      tree_util.tree_leaves, (cast, (y0, ts, args))))):
    return y0, ts, args
  from jax._src import api  # imports what traces solves
  try:
    api.make_jaxpr(lambda y, ts, args: func(y, ts[0], *args))(*cast)
  except retrace.TracedTooEarly:
    return y0, ts, args
  return cast


def partial_of_linear(fun, consts, x):
  """``partial(fun, consts, x)``, of an argument cast like ``x`` first."""
  linear = functools.partial(fun, consts, x)
  if not vt.checking():
    return linear
  return lambda y: linear(tree_util.tree_map(
      lambda a, b: vt.cast(a, vp.union([b])), y, x))


def operands_as_traced(*args):
  """The operands of a solve or composite, each of the type as traced."""
  return list(args)


def type_by_solver(solve_p: Any) -> None:
  """Types the results of ``solve_p`` by the solver among its parameters."""
  rule = solve_p.abstract_eval

  def abstract_eval(*avals, const_lengths, jaxprs):
    params = dict(const_lengths=const_lengths, jaxprs=jaxprs)
    if not vt.checking():
      return rule(*avals, **params)
    none = frozenset()
    # What a solver returns beside the solution can vary along other axes than
    # it does, which that rule refuses: it is given them as operands, without.
    solved = jaxprs.solve.out_avals
    beside = solved[len(jaxprs.matvec.out_avals):]
    outs, _ = rule(*(vp.with_axes(a, none) for a in (*avals, *beside)),
                   const_lengths=const_lengths,
                   jaxprs=jaxprs._replace(solve=jaxprs.matvec))
    first = const_lengths.matvec + const_lengths.vecmat
    operands = [*avals[first:first + const_lengths.solve],
                *avals[sum(const_lengths):]]
    raised = none.union(*(vt.varying(a) - vt.varying(t)
                          for a, t in zip(operands, jaxprs.solve.in_avals)))
    return [vp.with_axes(a, vt.varying(t) | raised)
            for a, t in zip(outs, solved)], jaxprs.solve.effects

  solve_p.abstract_eval = abstract_eval


def _solve(site: flow.Site, ins: list[vt.Axes]) -> None:
  jaxprs, lengths = site.eqn.params['jaxprs'], site.eqn.params['const_lengths']
  site.regions(*(j for j in jaxprs if j is not None))
  first = sum(lengths)
  x, solved = ins[first:], []
  while True:
    kids, wider, at = iter(site.kids), x, 0
    for name, jaxpr, count in zip(jaxprs._fields, jaxprs, lengths):
      if jaxpr is not None:
        outs = next(kids).run([*ins[at:at + count], *x])
        if name == 'solve':
          solved = outs
        wider = [a | o for a, o in zip(wider, outs)]  # less what is beside
      at += count
    if wider == x:
      break
    x = wider
  site.operands = [*ins[:first], *x]
  site.outs = solved


def _solve_again(b, site: flow.Site) -> None:
  jaxprs, kids = site.eqn.params['jaxprs'], iter(site.kids)
  retype.copy(b, site, jaxprs=type(jaxprs)(*(
      j and vt.reclose(j, retype.rebuild(next(kids))) for j in jaxprs)))


FLOW_RULES = {'custom_linear_solve': _solve}
BUILDERS = {'custom_linear_solve': _solve_again}
