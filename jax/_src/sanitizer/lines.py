# SPDX-License-Identifier: Apache-2.0
"""Lines of the user's program, with what happens on them in a shard_map.

A line has the values that leave it: which another line reads, or which are
results. What is computed only on the way, and what a backward pass computes, is
left out where there is anything else; casts and sums over devices that were put
in are told apart from it, and kept from backward passes too.

Cost: a jaxpr is walked once more.
"""
from __future__ import annotations

from collections.abc import Iterable
import dataclasses
from typing import Any, NamedTuple

from jax._src import core
from jax._src.mend import manual_maps
from jax._src.mend import source_lines
from jax._src.sanitizer import axes as axes_lib
from jax._src.sanitizer import reasons
from jax._src.sanitizer import annotated as annotated_lib
from jax._src.sanitizer.annotated import Annotated
from jax._src.sanitizer import sites


class Value(NamedTuple):
  """A value: its type, the axes that it varies over, what it is made by."""
  type: str
  axes: tuple
  name: str


@dataclasses.dataclass
class Line:
  """A line of the program.

  Attributes:
    values: those that leave it, in order, each once.
    reasons: what was put in on it, and why.
    unknown: names of operations of which nothing is known.
  """
  values: dict[Value, None] = dataclasses.field(default_factory=dict)
  on_the_way: dict[Value, None] = dataclasses.field(default_factory=dict)
  backward: dict[Value, None] = dataclasses.field(default_factory=dict)
  reasons: dict[reasons.Reason, None] = dataclasses.field(default_factory=dict)
  unknown: dict[str, None] = dataclasses.field(default_factory=dict)

  def shown(self) -> list[Value]:
    """The values to show."""
    return list(self.values or self.on_the_way or self.backward)


class Map(NamedTuple):
  """A shard_map: where it is called, and what goes in and comes out."""
  where: str
  mesh: str
  arguments: tuple[tuple[str, Value], ...]
  results: tuple[Value, ...]


class Program(NamedTuple):
  """The lines to show, and the shard_maps that they are in.

  Attributes:
    maps: the shard_maps, in order.
    files: the lines of each file, by their numbers.
    names: all axes, in order.
  """
  maps: tuple[Map, ...]
  files: dict[str, dict[int, Line]]
  names: tuple


def of_program(jaxpr: Any) -> Program:
  """The lines of a program."""
  files: dict[str, dict[int, Line]] = {}
  maps: dict[Map, None] = {}
  names: dict[Any, None] = {}
  for outermost in annotated_lib.of_program(jaxpr):
    for annotated in outermost.all():
      names.update(dict.fromkeys(annotated.names))
      if annotated.role == 'map' and not annotated.backward:
        maps[_map(annotated)] = None
      _collect(annotated, files)
  files = {name: dict(sorted(files[name].items())) for name in files}
  return Program(tuple(maps), files, tuple(names))


def _place(eqn: core.JaxprEqn) -> tuple[str, int] | None:
  frame = next(source_lines.frames(eqn), None)
  return None if frame is None else (frame.file_name, frame.start_line)


def _collect(annotated: Annotated, files: dict) -> None:
  places = {id(e): _place(e) for e in annotated.jaxpr.eqns}
  leaving = _leaving(annotated, places)
  unknown = set(map(id, annotated.unknown))
  for eqn in annotated.jaxpr.eqns:
    place = places[id(eqn)]
    if place is None or _of_plumbing(annotated, eqn):
      continue
    line = files.setdefault(place[0], {}).setdefault(place[1], Line())
    reason = reasons.of(annotated, eqn)
    if reason is not None:
      line.reasons[reason] = None
    if id(eqn) in unknown:
      line.unknown[axes_lib.title_of(eqn.primitive)] = None
    put_in = axes_lib.is_cast(eqn) if reason is None else reason.kind != 'own'
    if not put_in:
      _add(annotated, line, eqn, leaving)


def _of_plumbing(annotated: Annotated, eqn: core.JaxprEqn) -> bool:
  """True for what makes a derivative's residuals results, up to 0.6.0.

  It is traced when the function has ended: its line calls the shard_map.
  """
  if annotated.role != 'map' or not (
      axes_lib.is_cast(eqn) or axes_lib.name_of(eqn.primitive) in
      reasons.PASSING):
    return False
  return sites.place(eqn) == sites.place(annotated.eqn)


def _leaving(annotated: Annotated, places: dict) -> set:
  """The variables read on another line than their own, and the results."""
  found = {v for v in annotated.jaxpr.outvars if isinstance(v, core.Var)}
  made_by = {v: places[id(e)] for e in annotated.jaxpr.eqns for v in e.outvars}
  for eqn in annotated.jaxpr.eqns:
    for v in eqn.invars:
      if isinstance(v, core.Var) and made_by.get(v) != places[id(eqn)]:
        found.add(v)
  return found


def _add(annotated: Annotated, line: Line, eqn: core.JaxprEqn,
         leaving: set) -> None:
  backward = annotated.backward or source_lines.transposed(eqn)
  for v in eqn.outvars:
    kept = (line.backward if backward else
            line.values if v in leaving else line.on_the_way)
    kept[_value(annotated, v, eqn)] = None


def _value(annotated: Annotated, v: Any, eqn: core.JaxprEqn) -> Value:
  aval = getattr(v.aval, 'inner_aval', v.aval)
  kind = sites.type_text(aval) if hasattr(aval, 'dtype') else str(aval)
  return Value(kind, annotated.ordered(annotated.axes(v)),
               axes_lib.title_of(eqn.primitive))


def _map(annotated: Annotated) -> Map:
  eqn, jaxpr = annotated.eqn, annotated.jaxpr
  parts = manual_maps.of(eqn)
  names = getattr(jaxpr.debug_info, 'arg_names', None) or ()
  if len(names) != len(jaxpr.invars):
    names = [f'argument {n}' for n in range(len(jaxpr.invars))]
  mesh = ', '.join(f"'{a}': {n}" for a, n in parts.mesh.shape.items())
  return Map(sites.place_of_map(eqn), mesh,
             tuple((str(n), _value(annotated, v, eqn))
                   for n, v in zip(names, jaxpr.invars)),
             tuple(_value(annotated, v, eqn) for v in jaxpr.outvars))


def count(files: Iterable[dict[int, Line]], kind: str) -> int:
  """The number of reasons of a kind."""
  return sum(r.kind == kind for lines in files for line in lines.values()
             for r in line.reasons)
