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


class Level(NamedTuple):
  """A jaxpr, and the equation that holds it, if it isn't the outermost."""
  jaxpr: core.Jaxpr
  made_by: dict[core.Var, core.JaxprEqn]
  eqn: core.JaxprEqn | None = None
  parent: Level | None = None
  first: int = 0  # the equation's operand that is the jaxpr's first input
  carries: tuple[int, int] = (0, 0)  # the inputs that are carries, from and to


class Origin(NamedTuple):
  """A value that is the first to vary, and the predicates passed on the way."""
  level: Level
  var: core.Var
  eqn: core.JaxprEqn | None  # None: an input of the outermost jaxpr
  predicates: tuple[core.JaxprEqn, ...]
  user: core.JaxprEqn | None  # the equation that the walk came through


def _level(jaxpr: Any, /, *args: Any, **kwargs: Any) -> Level:
  jaxpr = vt.open_jaxpr(jaxpr)
  made_by = {v: eqn for eqn in jaxpr.eqns for v in eqn.outvars}
  return Level(jaxpr, made_by, *args, **kwargs)


def find(jaxpr: core.Jaxpr, out: int, axis) -> Origin | None:
  """The origin from which output ``out`` of the jaxpr got ``axis``."""
  top = _level(jaxpr)
  queue: deque = deque([(top, top.jaxpr.outvars[out], (), None)])
  levels: dict = {}
  seen, cast = set(), None
  while queue:
    level, var, predicates, user = queue.popleft()
    if (type(var) is core.Literal or axis not in vt.varying(var.aval)
        or (id(level), var) in seen):
      continue
    seen.add((id(level), var))
    eqn = level.made_by.get(var)
    if eqn is None and level.parent is None:
      return Origin(level, var, None, predicates, user)
    if eqn is None:
      steps = list(_outwards(level, var))
    elif eqn.primitive is core.pvary_p and axis not in vt.varying(
        eqn.invars[eqn.outvars.index(var)].aval):
      cast = cast or Origin(level, var, eqn, predicates, user)
      continue
    else:
      key = (id(level), id(eqn))
      if key not in levels:
        levels[key] = _inside(eqn, level)
      steps = list(_inwards(eqn, level, levels[key], var))
      if not any(type(v) is not core.Literal and axis in vt.varying(v.aval)
                 for _, v, _ in steps):
        return Origin(level, var, eqn, predicates, user)
    for where, v, predicate in steps:
      queue.append((where, v, predicates + ((eqn,) if predicate else ()),
                    eqn or user))
  return cast


Step = tuple[Level, Any, bool]  # the last: whether through a predicate


def _outwards(level: Level, var) -> Iterator[Step]:
  """From an input of an inner jaxpr to the operand, or to the last trip."""
  if var in level.jaxpr.constvars:
    return
  n = level.jaxpr.invars.index(var)
  assert level.parent is not None and level.eqn is not None
  yield level.parent, level.eqn.invars[level.first + n], False
  start, stop = level.carries
  if start <= n < stop:
    yield level, level.jaxpr.outvars[n - start], False


def _inside(eqn: core.JaxprEqn, level: Level) -> list[Level]:
  """The jaxprs of an equation whose outputs are, in order, its own.

  A while loop's predicate comes last, with the loop's outputs as its carries.
  """
  if vt.name_of(eqn.primitive) == 'cond':
    return [_level(b, eqn, level, first=1)
            for b in anatomy.branches(eqn.params)]
  loop = anatomy.loop(eqn)
  if loop is not None:
    own = loop.own
    body = _level(loop.body, eqn, level, first=loop.tests,
                  carries=(own.start, own.stop))
    if loop.predicate is None:
      return [body]
    at_end = eqn.replace(invars=[*eqn.invars[:loop.tests], *eqn.outvars])
    return [body, _level(loop.predicate, at_end, level)]
  for sub in jaxprs_in(eqn.params):
    if (len(sub.invars), len(sub.outvars)) == (len(eqn.invars),
                                               len(eqn.outvars)):
      return [_level(sub, eqn, level)]
  return []


def _inwards(eqn, level: Level, inner: list[Level], var) -> Iterator[Step]:
  """From an equation's output to what it is made of."""
  n, predicate = eqn.outvars.index(var), None
  if vt.name_of(eqn.primitive) == 'cond':
    predicate = level, eqn.invars[0], True
  elif vt.name_of(eqn.primitive) == 'while':
    *inner, cond = inner
    predicate = cond, cond.jaxpr.outvars[0], True
    yield level, eqn.invars[anatomy.while_loop(eqn.params).first + n], False
  for sub in inner:
    yield sub, sub.jaxpr.outvars[n], False
  if not inner:
    for v in eqn.invars:
      yield level, v, False
  if predicate is not None:
    yield predicate
