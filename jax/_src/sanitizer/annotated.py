# SPDX-License-Identifier: Apache-2.0
"""The axes that each value of a program's shard_maps varies over.

A jaxpr has its final types: loops are at their fixpoint, and branches agree.
Where types hold no axes (the check is off, jax up to 0.5.3) they are inferred
by ``axes``; a cast counts there too, as it does in a type. What this module
makes is a tree of annotated jaxprs, each with the axes of all of its variables:
``reasons`` reads why a cast stands in one, ``pictures`` shows them.

Limits: what a kernel does within isn't looked at. A function that is called in
several places has a annotated for each.

Cost: each jaxpr is walked once for each place that holds it, and inferred once
more for each loop around it.
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence
import dataclasses
from typing import Any

from jax._src import core
from jax._src.mend import anatomy
from jax._src.mend import jaxprs
from jax._src.mend import manual_axes
from jax._src.mend import manual_maps
from jax._src.mend import source_lines
from jax._src.sanitizer import axes as axes_lib

Axes = frozenset


@dataclasses.dataclass
class Annotated:
  """A jaxpr in a shard_map, with what its variables vary over.

  Attributes:
    jaxpr: an open one.
    eqn: the equation that holds it.
    role: what it is there: 'map', 'body', 'predicate', 'branch', 'call'.
    outer: the annotated of that equation, None of an outermost shard_map's.
    names: the manual axes here, in order.
    typed: those that types tell about.
    backward: whether it is part of a backward pass.
    at: each variable's axes.
    inner: those in it, by the equations that hold them.
    unknown: the equations of which nothing is known.
  """
  jaxpr: core.Jaxpr
  eqn: core.JaxprEqn
  role: str
  outer: Annotated | None
  names: tuple
  typed: Axes
  backward: bool
  at: dict = dataclasses.field(default_factory=dict)
  inner: dict[int, list[Annotated]] = dataclasses.field(default_factory=dict)
  unknown: list[core.JaxprEqn] = dataclasses.field(default_factory=list)

  def axes(self, v: Any) -> Axes:
    """The axes that a variable or a literal varies over."""
    if isinstance(v, core.Literal):
      return Axes()
    return self.at.get(v, Axes())

  def ordered(self, axes: Axes) -> tuple:
    """Axes in the order of the meshes around."""
    return tuple(a for a in self.names if a in axes)

  def all(self) -> Iterator[Annotated]:
    """This annotated and all within, from the inside."""
    for those in self.inner.values():
      for annotated in those:
        yield from annotated.all()
    yield self


def of_program(jaxpr: Any, backward: bool = False) -> list[Annotated]:
  """The bodies of a program's outermost shard_maps, in order."""
  found: list[Annotated] = []
  for eqn in jaxprs.open_jaxpr(jaxpr).eqns:
    here = backward or source_lines.transposed(eqn)
    if axes_lib.name_of(eqn.primitive) == 'shard_map':
      found.append(_mapped(None, eqn, [Axes()] * len(eqn.invars), here))
    else:
      for inside in axes_lib.inner(eqn):
        found += of_program(inside, here)
  return found


def _mapped(outer: Annotated | None, eqn: core.JaxprEqn, ins: Sequence[Axes],
            backward: bool) -> Annotated:
  parts = manual_maps.of(eqn)
  names, typed = (outer.names, outer.typed) if outer else ((), Axes())
  own = tuple(a for a in parts.mesh.axis_names
              if a in parts.manual.difference(names))
  # Without its check an inner one's types say nothing of outer axes.
  typed = typed | set(own) if (parts.checked and manual_axes.AXES_OF_ARRAY
                               ) else Axes()
  annotated = Annotated(jaxprs.open_jaxpr(eqn.params['jaxpr']), eqn, 'map',
                        outer, names + own, typed, backward)
  _fill(annotated, axes_lib.at_entry(parts, ins, Axes(own)))
  return annotated


def _fill(annotated: Annotated, ins: Sequence[Axes]) -> None:
  """Finds the axes of a annotated's variables, from its inputs on."""
  constvars = annotated.jaxpr.constvars
  _define(annotated, constvars, [Axes()] * len(constvars))
  _define(annotated, annotated.jaxpr.invars, ins)
  for eqn in annotated.jaxpr.eqns:
    ins = list(map(annotated.axes, eqn.invars))
    annotated.inner[id(eqn)] = _inner(annotated, eqn, ins)
    _define(annotated, eqn.outvars, _results(annotated, eqn, ins))


def _define(annotated: Annotated, variables: Sequence[core.Var],
            inferred: Sequence[Axes]) -> None:
  for v, axes in zip(variables, inferred):
    by_type = manual_axes.differing(v.aval)
    annotated.at[v] = by_type & annotated.typed | axes - annotated.typed


def _results(annotated: Annotated, eqn: core.JaxprEqn, ins: Sequence[Axes]
             ) -> list[Axes]:
  if annotated.typed >= set(annotated.names):
    return [Axes()] * len(eqn.outvars)
  if axes_lib.is_cast(eqn):
    return [a | axes_lib.names_in(eqn) for a in ins]
  return axes_lib.of_results(eqn, ins, axes_lib.setting(
      Axes(annotated.names), annotated.unknown.append))


def _inner(annotated: Annotated, eqn: core.JaxprEqn,
           ins: list[Axes]) -> list[Annotated]:
  """The jaxprs that an equation holds, annotated."""
  name = axes_lib.name_of(eqn.primitive)
  backward = annotated.backward or source_lines.transposed(eqn)
  if name == 'shard_map':
    return [_mapped(annotated, eqn, ins, backward)]
  found = []
  for role, jaxpr, inside in _parts(annotated, eqn, name, ins):
    found.append(Annotated(
        jaxprs.open_jaxpr(jaxpr), eqn, role, annotated, annotated.names,
        annotated.typed, backward))
    _fill(found[-1], inside)
  return found


def _parts(annotated: Annotated, eqn: core.JaxprEqn, name: str,
           ins: list[Axes]):
  """The jaxprs of an equation, by roles, and what their inputs vary over."""
  if (loop := anatomy.loop(eqn)) is not None:
    ends = axes_lib.of_loop(eqn, ins, axes_lib.setting(Axes(annotated.names)))
    ins = [*ins[:loop.tests], *ends.inputs]
  if anatomy.called(eqn) is not None:
    return [('call', *axes_lib.callee(eqn, ins))]
  if name in ('scan', 'while', 'cond'):
    return [(i.role, i.jaxpr, [ins[n] for n in i.operands if n is not None])
            for i in anatomy.inner(eqn)]
  if name.startswith('pallas_call'):
    return []
  every = axes_lib.union(ins)
  return [('call', j, [every] * len(j.invars)) for j in axes_lib.inner(eqn)]
