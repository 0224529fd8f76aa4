# SPDX-License-Identifier: Apache-2.0
"""Inputs of a jaxpr that its results are, for ``required``.

A result is an input if it is passed on, cast, or carried through a loop as it
was. By rules that are coarse, and of their own: ``required`` is held against
what ``rules.forwarded`` finds.
"""
from __future__ import annotations

from collections.abc import Iterator

from jax._src import core
from jax._src.mend import anatomy
from jax._src.mend.jaxprs import CLASSES as JAXPR_CLASSES
from jax._src.varying import types as vt

# Primitives with a jaxpr that isn't simply called; ``required`` enters them.
not_calls: set[str] = set()


def _jaxprs(value) -> Iterator[core.Jaxpr]:
  if isinstance(value, JAXPR_CLASSES):
    yield vt.open_jaxpr(value)
  elif isinstance(value, (tuple, list)):  # named tuples among them
    for each in value:
      yield from _jaxprs(each)


def jaxprs_of(eqn: core.JaxprEqn) -> list[core.Jaxpr]:
  """The jaxprs in the parameters, and that of a traced operation."""
  traced = getattr(eqn.params.get('_prim'), 'traced', None)
  return list(_jaxprs((*eqn.params.values(), getattr(traced, 'jaxpr', ()))))


def one_value(variables, jaxprs) -> bool:
  """True if branches return one operand, or one number."""
  if all(type(v) is core.Literal for v in variables):
    return len({str(v.val) for v in variables}) == 1
  places = {source(v, j) for v, j in zip(variables, jaxprs)}
  return len(places) == 1 and None not in places


def source(v, jaxpr: core.Jaxpr) -> int | None:
  """The input of a jaxpr that a value is: passed on, cast, or carried on."""
  made = {out: (eqn, n) for eqn in jaxpr.eqns
          for n, out in enumerate(eqn.outvars)}
  while v is not None and type(v) is not core.Literal and v in made:
    eqn, n = made[v]
    place = _passed_on(eqn, n, lambda v: source(v, jaxpr))
    v = None if place is None else eqn.invars[place]
  if v is None or type(v) is core.Literal:
    return None
  return next((n for n, u in enumerate(jaxpr.invars) if u is v), None)


def _passed_on(eqn: core.JaxprEqn, n: int, origin) -> int | None:
  """The operand that result ``n`` is, if it is one; ``origin`` finds its."""
  prim, name = eqn.primitive, vt.name_of(eqn.primitive)
  if anatomy.COPIES[prim] or anatomy.CASTS[prim] == anatomy.VARYING:
    return n
  inner, loop = jaxprs_of(eqn), anatomy.loop(eqn)
  if loop is not None:
    if n < loop.carries and (
        source(loop.body.outvars[n], loop.body) == loop.own[n]):
      return loop.first + n
  elif name == 'cond':
    places = [source(b.outvars[n], b) for b in inner]
    if None in places:
      return None
    if len({origin(eqn.invars[p + 1]) for p in places} - {None}) == 1 or (
        len(set(places)) == 1):
      return places[0] + 1
  elif name not in not_calls and inner and (
      len(inner[0].invars) == len(eqn.invars)
      and len(inner[0].outvars) == len(eqn.outvars)):
    return source(inner[0].outvars[n], inner[0])
  return None
