# SPDX-License-Identifier: Apache-2.0
"""The walk back from a jaxpr's output to where an axis comes from.

From equation to operand, into the jaxprs of calls, loops and branches and out
of them, breadth first, so that the way that is found is a shortest one.

Cost: each variable is looked at once, when an error is about to be raised.
"""
from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

from jax._src import core
from jax._src.mend import anatomy
from jax._src.varying import types as vt
from jax._src.varying.contents import jaxprs_in


class Scope(NamedTuple):
  """A jaxpr, and the equation that holds it, if it isn't the outermost."""
  jaxpr: core.Jaxpr
  made_by: dict[core.Var, core.JaxprEqn]
  eqn: core.JaxprEqn | None = None
  parent: Scope | None = None
  first: int = 0  # the equation's operand that is the jaxpr's first input
  carries: tuple[int, int] = (0, 0)  # the inputs that are carries, from and to


class Origin(NamedTuple):
  """A value that is the first to vary, and the predicates passed on the way."""
  scope: Scope
  var: core.Var
  eqn: core.JaxprEqn | None  # None: an input of the outermost jaxpr
  predicates: tuple[core.JaxprEqn, ...]
  user: core.JaxprEqn | None  # the equation that the walk came through


def _scope(jaxpr, *args, **kwargs) -> Scope:
  jaxpr = vt.open_jaxpr(jaxpr)
  made_by = {v: eqn for eqn in jaxpr.eqns for v in eqn.outvars}
  return Scope(jaxpr, made_by, *args, **kwargs)


def find(jaxpr: core.Jaxpr, out: int, axis) -> Origin | None:
  """The origin from which output ``out`` of the jaxpr got ``axis``."""
  top = _scope(jaxpr)
  queue: deque = deque([(top, top.jaxpr.outvars[out], (), None)])
  scopes: dict = {}
  seen, cast = set(), None
  while queue:
    scope, var, predicates, user = queue.popleft()
    if (type(var) is core.Literal or axis not in vt.varying(var.aval)
        or (id(scope), var) in seen):
      continue
    seen.add((id(scope), var))
    eqn = scope.made_by.get(var)
    if eqn is None and scope.parent is None:
      return Origin(scope, var, None, predicates, user)
    if eqn is None:
      steps = list(_outwards(scope, var))
    elif eqn.primitive is core.pvary_p and axis not in vt.varying(
        eqn.invars[eqn.outvars.index(var)].aval):
      cast = cast or Origin(scope, var, eqn, predicates, user)
      continue
    else:
      key = (id(scope), id(eqn))
      if key not in scopes:
        scopes[key] = _inside(eqn, scope)
      steps = list(_inwards(eqn, scope, scopes[key], var))
      if not any(type(v) is not core.Literal and axis in vt.varying(v.aval)
                 for _, v, _ in steps):
        return Origin(scope, var, eqn, predicates, user)
    for where, v, predicate in steps:
      queue.append((where, v, predicates + ((eqn,) if predicate else ()),
                    eqn or user))
  return cast


Step = tuple[Scope, Any, bool]  # the last: whether through a predicate


def _outwards(scope: Scope, var) -> Iterator[Step]:
  """From an input of an inner jaxpr to the operand, or to the last trip."""
  if var in scope.jaxpr.constvars:
    return
  n = scope.jaxpr.invars.index(var)
  assert scope.parent is not None and scope.eqn is not None
  yield scope.parent, scope.eqn.invars[scope.first + n], False
  start, stop = scope.carries
  if start <= n < stop:
    yield scope, scope.jaxpr.outvars[n - start], False


def _inside(eqn: core.JaxprEqn, scope: Scope) -> list[Scope]:
  """The jaxprs of an equation whose outputs are, in order, its own.

  A while loop's predicate comes last, with the loop's outputs as its carries.
  """
  if vt.name_of(eqn.primitive) == 'cond':
    return [_scope(b, eqn, scope, first=1)
            for b in anatomy.branches(eqn.params)]
  loop = anatomy.loop(eqn)
  if loop is not None:
    own = loop.own
    body = _scope(loop.body, eqn, scope, first=loop.tests,
                  carries=(own.start, own.stop))
    if loop.predicate is None:
      return [body]
    at_end = eqn.replace(invars=[*eqn.invars[:loop.tests], *eqn.outvars])
    return [body, _scope(loop.predicate, at_end, scope)]
  for sub in jaxprs_in(eqn.params):
    if (len(sub.invars), len(sub.outvars)) == (len(eqn.invars),
                                               len(eqn.outvars)):
      return [_scope(sub, eqn, scope)]
  return []


def _inwards(eqn, scope: Scope, inner: list[Scope], var) -> Iterator[Step]:
  """From an equation's output to what it is made of."""
  n, predicate = eqn.outvars.index(var), None
  if vt.name_of(eqn.primitive) == 'cond':
    predicate = scope, eqn.invars[0], True
  elif vt.name_of(eqn.primitive) == 'while':
    *inner, cond = inner
    predicate = cond, cond.jaxpr.outvars[0], True
    yield scope, eqn.invars[anatomy.while_loop(eqn.params).first + n], False
  for sub in inner:
    yield sub, sub.jaxpr.outvars[n], False
  if not inner:
    for v in eqn.invars:
      yield scope, v, False
  if predicate is not None:
    yield predicate
