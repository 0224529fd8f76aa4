# SPDX-License-Identifier: Apache-2.0
"""The outputs of a jaxpr that are inputs, forwarded as they are.

A carry that a loop's body returns as it was is the same after any number of
trips, also where the body is under ``jax.jit`` or ``jax.checkpoint``, has a
derivative rule, or hands the value through a loop or branch inside. Walks back
from each output to what made it, through calls, casts, forwarded carries, and
conditionals all of whose branches return the same operand. Nothing else counts:
an operation that happens to return its operand is an operation.

Cost: each jaxpr is walked once, when a loop whose predicate varies is solved.
"""
from __future__ import annotations

import weakref

from jax._src import core
from jax._src.mend import anatomy
from jax._src.varying import flow
from jax._src.varying import types as vt
from jax._src.varying.rules import calls

_known: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def sources(jaxpr: core.Jaxpr) -> list[int | None]:
  """For each output, the position of the input that it is, or None."""
  if jaxpr not in _known:
    at = {v: n for n, v in enumerate(jaxpr.invars)}
    made_by = {v: (eqn, n) for eqn in jaxpr.eqns
               for n, v in enumerate(eqn.outvars)}
    _known[jaxpr] = [_source(v, at, made_by) for v in jaxpr.outvars]
  return _known[jaxpr]


def _source(v, at, made_by) -> int | None:
  while type(v) is not core.Literal and v in made_by:
    eqn, n = made_by[v]
    position = _operand(eqn, n, lambda v: _source(v, at, made_by))
    if position is None:
      return None
    v = eqn.invars[position]
  return None if type(v) is core.Literal else at.get(v)


def _operand(eqn: core.JaxprEqn, n: int, source) -> int | None:
  """The position of the operand that the equation returns as output ``n``."""
  prim, params = eqn.primitive, eqn.params
  if anatomy.COPIES[prim] or anatomy.CASTS[prim] is anatomy.VARYING:
    return n
  loop = anatomy.loop(eqn)
  if loop is not None:
    return _carried(loop, n)
  name = vt.name_of(prim)
  if name == 'cond':
    found = {sources(b)[n] for b in anatomy.branches(params)}
    positions = [i + 1 for i in found if i is not None]
    if len(positions) < len(found):
      return None
    same = {source(eqn.invars[i]) for i in positions}
    alike = len(positions) == 1 or len(same) == 1 and None not in same
    return positions[0] if alike else None
  if flow.rules.get(name) is calls.call:
    return sources(vt.open_jaxpr(params[anatomy.callee(params)]))[n]
  return None


def _carried(loop: anatomy.Loop, n: int) -> int | None:
  if n >= loop.carries or sources(loop.body)[n] != loop.own[n]:
    return None
  return loop.first + n
