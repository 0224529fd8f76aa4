# SPDX-License-Identifier: Apache-2.0
"""Places where values are compared between devices, in words.

A site knows what a message says of it: the user's line, the program text there,
the type, the loops around it, and what is known of its operands. All of it is
read when the program is traced; nothing at run time.
"""
from __future__ import annotations

import linecache
from typing import Any, NamedTuple

from jax._src import core
from jax._src.mend import jaxprs
from jax._src.mend import source_lines
from jax._src.sanitizer import axes as axes_lib


class Operand(NamedTuple):
  """An operand of what is compared.

  Attributes:
    text: what to call it.
    axes: along which it may differ.
    compared: whether it was compared, along all others.
  """
  text: str
  axes: frozenset
  compared: bool


class Site(NamedTuple):
  """A value that is compared.

  Attributes:
    name: what it is: a primitive's name, or an argument or result in words.
    where: the user's line and function.
    text: the program there, and the value's type.
    axes: along which it should be the same, in the mesh's order.
    operands: what it is made of; None of an argument or a result.
  """
  name: str
  where: str
  text: str
  axes: tuple
  operands: tuple[Operand, ...] | None = None


class Loop(NamedTuple):
  """A loop around a site: its number in the program's order, and its place."""
  number: int
  text: str


def place(eqn: core.JaxprEqn) -> str:
  """The user's file, line, column and function of an equation."""
  frame = next(source_lines.frames(eqn), None)
  if frame is None:
    return 'an unknown place'
  column = f':{frame.start_column}' if frame.start_column else ''
  return (f'{frame.file_name}:{frame.start_line}{column}'
          f' ({frame.function_name})')


def place_of_map(eqn: core.JaxprEqn) -> str:
  """The user's line that calls a shard_map, or else what it maps."""
  frame = next(source_lines.frames(eqn), None)
  mapped = jaxprs.open_jaxpr(eqn.params['jaxpr']).debug_info
  return (getattr(mapped, 'func_src_info', None) or place(eqn)
          if frame is None else place(eqn))


def program_text(eqn: core.JaxprEqn) -> str:
  """The user's own text of an equation, on one line; empty if unknown."""
  frame = next(source_lines.frames(eqn), None)
  if frame is None:
    return ''
  line = linecache.getline(frame.file_name, frame.start_line).rstrip('\n')
  start, end = frame.start_column, frame.end_column
  if frame.end_line == frame.start_line and 0 < end <= len(line):
    return line[start:end].strip() or line.strip()
  return line.strip()


def is_in(eqn: core.JaxprEqn, functions: frozenset) -> bool:
  """True if an equation was traced within a function of these names."""
  return any(f.function_name.rpartition('.')[2] in functions
             for f in source_lines.frames(eqn))


def type_text(aval: Any) -> str:
  """A type as dtype and shape, without axes."""
  return f"{aval.dtype.name}[{','.join(map(str, aval.shape))}]"


def of_result(eqn: core.JaxprEqn, n: int, axes: tuple,
              operands: tuple[Operand, ...]) -> Site:
  """The site of result ``n`` of an equation."""
  name = axes_lib.title_of(eqn.primitive)
  which = f', result {n}' if len(eqn.outvars) > 1 else ''
  text = program_text(eqn)
  return Site(f'`{name}`{which}', place(eqn),
              f'{text} -> {type_text(eqn.outvars[n].aval)}'.strip(), axes,
              operands)


def of_argument(eqn: core.JaxprEqn, n: int, name: str, spec: Any,
                axes: tuple) -> Site:
  """The site of argument ``n`` of a shard_map."""
  return Site(f'the argument `{name}`, whose in_spec is {spec},',
              place_of_map(eqn),
              f'{program_text(eqn)} {type_text(eqn.invars[n].aval)}'.strip(),
              axes)


def of_output(eqn: core.JaxprEqn, n: int, spec: Any, axes: tuple) -> Site:
  """The site of result ``n`` of a shard_map, as its out_spec has it."""
  return Site(f'result {n} of the shard_map, whose out_spec is {spec},',
              place_of_map(eqn),
              f'{program_text(eqn)} -> {type_text(eqn.outvars[n].aval)}'.strip(
                  ), axes)


def of_choice(eqn: core.JaxprEqn, what: str, axes: tuple,
              operand: Operand) -> Site:
  """The site of a predicate or of a branch's index."""
  return Site(what, place(eqn), program_text(eqn), axes, (operand,))
