# SPDX-License-Identifier: Apache-2.0
"""Requirements of a traced function on its inputs: along what they must agree.

A function that is traced for itself has inputs of which nobody knows yet
whether they are the same on all devices. Whether a collective in a branch is
reached by all devices can depend on that. So it isn't judged there: the jaxpr
has a requirement, on its inputs, that is computed from the jaxpr alone. Where
an equation that holds the jaxpr is bound, the inputs are its operands. What
those are made of (``agreement``) meets the requirement, or not, or makes it one
of the function around. The inputs of a ``shard_map`` differ along their types.

There are four kinds:

* ``MEETS``: what a predicate depends on agrees along axes over which something
  communicates in the branches or the loop. ``DERIVED``, if that is a sum that a
  derivative makes: then a loop can be traced again instead (``retrace``).
* ``CLAIMED``: the type of a predicate says that it agrees (``agreed``).
* ``DOUBTED``: a type was widened by a predicate alone, of which it isn't known
  that it differs. If it agrees, JAX's type is the narrower one. That matters to
  derivatives taken inside of the ``shard_map`` alone, as types decide which
  gradients are summed; with one, such a program is refused.

All of a kind over the same axes are one requirement on all that they depend on,
but those in doubt, each of which counts by itself.

Limits: a jaxpr that an unknown primitive holds has inputs that differ along
their types. Functions of derivative rules, and a linear solve's others than its
solver, have requirements where they are called.

Cost: nothing until a process has bound the first predicate that is in question.
Then a look at each equation of a jaxpr, once, and the ``dependences`` of those
that hold one.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from jax._src import core
from jax._src.mend import anatomy
from jax._src.mend import manual_maps
from jax._src import source_info_util
from jax._src.varying import contents as contents_lib
from jax._src.varying import dependences
from jax._src.varying import types as vt
from jax._src.varying.dependences import Dependence
from jax._src.varying.types import Axes, NO_AXES

MEETS, DERIVED, CLAIMED, DOUBTED = 'meets', 'derived', 'claimed', 'doubted'

# Not empty if a predicate was ever in question, in this process. It only grows,
# and says whether there is anything to look for.
noted: list[bool] = []


class Requirement(NamedTuple):
  """A requirement on what a value depends on.

  Attributes:
    kind: one of the four.
    axes: those along which it is to agree.
    on: the dependence on a jaxpr's inputs, or on an equation's operands.
    where: of one in doubt, the line of the predicate.
  """
  kind: str
  axes: Axes
  on: Dependence
  where: str = ''

  def differs(self, differ: Callable[[int], Axes],
              types: Callable[[int], Axes]) -> Axes:
    """The axes of the requirement along which the value may differ."""
    return vt.nontrivial(self.axes & self.on.axes(
        differ, types, limit=self.axes))

  def agrees(self, differ: Callable[[int], Axes],
             types: Callable[[int], Axes]) -> Axes:
    """The axes of the requirement along which the value is the same."""
    return vt.nontrivial(self.axes - self.on.axes(differ, types))


def note() -> None:
  """Notes that there is a predicate in question."""
  if not noted:
    noted.append(True)


def of_jaxpr(jaxpr: core.Jaxpr) -> Sequence[Requirement]:
  """The requirements of a jaxpr on its inputs and captured values."""
  return _of_jaxpr(jaxpr) if contents_lib.contents(jaxpr).requires else ()


@contents_lib.cached
def _of_jaxpr(jaxpr: core.Jaxpr) -> Sequence[Requirement]:
  known = dependences.of_values(jaxpr)
  found: list[Requirement] = []
  for eqn in jaxpr.eqns:
    if not eqn.params or not may_require(eqn):
      continue
    ins = [dependences.of_atom(known, v) for v in eqn.invars]
    types = [vt.varying(v.aval) for v in eqn.invars]
    found += [r._replace(on=dependences.composed(r.on, ins, types))
              for r in of_equation(eqn, types)]
  return _merged(found)


def _merged(requirements: Sequence[Requirement]) -> Sequence[Requirement]:
  """Requirements of a kind over the same axes as one, but those in doubt."""
  merged: dict[tuple[str, Axes], list[Dependence]] = {}
  doubts: list[Requirement] = []
  for r in requirements:
    if r.kind != DOUBTED:
      merged.setdefault((r.kind, r.axes), []).append(r.on)
    elif r not in doubts:
      doubts.append(r)
  return [*(Requirement(*key, dependences.joined(on))
            for key, on in merged.items()), *doubts]


def may_require(eqn: Any) -> bool:
  """True if an equation of a jaxpr, or one within it, has requirements."""
  return vt.name_of(eqn.primitive) in (*_OWN, 'agreed', 'doubted') or any(
      contents_lib.contents(j).requires
      for j in contents_lib.jaxprs_in(eqn.params))


def of_equation(eqn: Any, types: Sequence[Axes]) -> Iterator[Requirement]:
  """The requirements of an equation on its operands.

  Args:
    eqn: the equation, or what is about to be bound as one.
    types: the axes that its operands vary over.
  """
  name = vt.name_of(eqn.primitive)
  if name == 'agreed':
    yield Requirement(CLAIMED, eqn.params['along'], dependences.on_input(0))
  elif name == 'doubted':
    yield Requirement(DOUBTED, eqn.params['along'], dependences.on_input(0),
                      source_info_util.summarize(eqn.source_info))
  elif name in _OWN:
    yield from of_predicate(eqn, types)
  for number, part in enumerate(anatomy.inner(eqn)):
    for r, ins, ins_types in inside(eqn, number, part, types):
      yield r._replace(on=dependences.composed(r.on, ins, ins_types))


def inside(eqn: Any, number: int, part: anatomy.Inner, types: Sequence[Axes]
           ) -> Iterator[tuple[Requirement, list[Dependence], list[Axes]]]:
  """The requirements of a jaxpr in an equation.

  Args:
    eqn: the equation.
    number: which of the jaxprs that ``anatomy.inner`` gives.
    part: the jaxpr.
    types: the axes that the equation's operands vary over.

  Yields:
    Each, on the jaxpr's inputs, with the inputs' dependences on the equation's
    operands, and their types.
  """
  jaxpr = vt.open_jaxpr(part.jaxpr)
  found = of_jaxpr(jaxpr) if part.role not in _APPLIED_ELSEWHERE else ()
  if not found:
    return
  ins_types = [vt.varying(v.aval) for v in [*jaxpr.invars, *jaxpr.constvars]]
  ins = [Dependence(axes, {}) for axes in ins_types]
  own = NO_AXES
  if part.role == 'map':
    # On 0.6.0 a map in another one names the other's axes, too.
    own = manual_maps.of(eqn).manual - NO_AXES.union(*types)
    ins[:len(jaxpr.invars)] = [
        dependences.on_input(n) for n in range(len(jaxpr.invars))]
  elif part.role:
    for n, known in enumerate(dependences.of_inputs(eqn, number)):
      ins[n] = known or ins[n]
  for r in found:
    if r.axes - own:  # along its own it was judged as it was traced
      yield r._replace(axes=r.axes - own), ins, ins_types


_OWN = ('cond', 'while')
# The functions of a linear solve that are bound where they are applied.
_APPLIED_ELSEWHERE = ('matvec', 'vecmat', 'transpose_solve')


def of_predicate(eqn: Any, types: Sequence[Axes]) -> Iterator[Requirement]:
  """The requirements of a branch or loop on what its predicate depends on."""
  if vt.name_of(eqn.primitive) == 'cond':
    axes, held = types[0], anatomy.branches(eqn.params)
  else:
    loop = anatomy.while_loop(eqn.params)
    axes, held = vt.varying(loop.predicate.outvars[0].aval), (
        loop.predicate, loop.body)
  every = [contents_lib.contents(j) for j in held] if axes else []
  plain = NO_AXES.union(*(c.collectives - c.derived_only for c in every)) & axes
  derived = NO_AXES.union(*(c.derived_only for c in every)) & axes - plain
  if not plain and not derived:
    return
  on = dependence_of_predicate(eqn, len(types))
  for kind, over in (MEETS, plain), (DERIVED, derived):
    if over:
      yield Requirement(kind, over, on)


def dependence_of_predicate(eqn: Any, count: int) -> Dependence:
  """The dependence of a branch's or loop's predicate on its operands.

  Args:
    eqn: the equation of a cond or while.
    count: the number of its operands.
  """
  if vt.name_of(eqn.primitive) == 'cond':
    return dependences.on_input(0)
  return dependences.of_predicate(eqn.params, count, True)
