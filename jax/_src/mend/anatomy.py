# SPDX-License-Identifier: Apache-2.0
"""Anatomy of equations that hold jaxprs, and of those that cross devices.

A loop, a branch, a call or a ``shard_map`` has operands, some of which are the
inputs of the jaxprs in its parameters. Which are is a matter of counts whose
names change between releases. Here they are read, once: ``while_loop``,
``scan`` and ``branches`` give the parts of a loop or conditional whose kind is
known, ``inner`` all jaxprs of any equation, each with its role and with the
operands and results that its inputs and outputs are.

``CALLS``, ``CASTS`` and ``REDUCTIONS`` say of each primitive what it is, a row
for each. They are asked with the primitive itself; a primitive of another
library is in none, whatever its name (``foreign``).

Limits: of a jaxpr in a primitive that has no row here, ``inner`` knows no
operands: a kernel's, a reducer's, a custom operation's. The functions beside a
call (a derivative rule, a transpose) are no jaxprs.

Cost: a look-up; a primitive's first takes its name. ``inner`` makes a range for
each jaxpr.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
import dataclasses
from typing import Any, Generic, NamedTuple, TypeVar

from jax._src import core
from jax._src.mend import foreign
from jax._src.mend import jaxprs

_Row = TypeVar('_Row')
_T = TypeVar('_T')
_ALL_OPEN = len(jaxprs.CLASSES) == 1  # there is nothing to open


class Table(dict[core.Primitive, '_Row | None'], Generic[_Row]):
  """Rows by primitive, of JAX's own; None for each other primitive.

  Attributes:
    rows: by the name that JAX gives the primitive, on any release.
  """

  def __init__(self, rows: dict[str, _Row]):
    super().__init__()
    self.rows = rows

  def __missing__(self, primitive: core.Primitive) -> _Row | None:
    row = self.rows.get(foreign.name_of(primitive))
    if getattr(primitive, 'prim', None) is None:  # else one of many, of 0.12
      self[primitive] = row
    return row


class Reduction(NamedTuple):
  """A gather or reduction over devices, all of which get the same.

  Attributes:
    how: the primitive that does so where types have no axes.
    types: the types that it is for, as above.
  """
  how: str
  types: str


# What calls one jaxpr, by what it does beside that: nothing; to be compiled by
# itself; to be computed once more in a backward pass; to have a derivative rule
# of its own, or a batching rule; to have a function as its transpose; to be
# compiled in a way of its own, or with a remark for the compiler.
JIT, PLAIN, REMAT = 'jit', 'plain', 'remat'
JVP, VJP, VMAP = 'custom_jvp', 'custom_vjp', 'custom_vmap'
LINEAR, COMPILED, REMARKED = 'linear', 'compiled', 'remarked'
CALLS: Table[str] = Table({
    'jit': JIT, 'pjit': JIT,  # until 0.7
    'closed_call': PLAIN,  # until 0.10
    'eval_jaxpr': PLAIN, 'remat2': REMAT,
    'custom_jvp_call': JVP, 'custom_vjp_call': VJP,
    'custom_vjp_call_jaxpr': VJP,  # until 0.6
    'custom_vmap_call': VMAP, 'linear_call': LINEAR,
    'composite': COMPILED, 'compute_on': COMPILED,
    'scheduling_group': COMPILED,  # of 0.7.1 and 0.7.2 alone
    'xla_metadata_call': REMARKED})

# What changes a type and no value, by what the value becomes or was. Before
# 0.12 two are called by the variable's name. (0.5.3's is ``is_cast``.)
VARYING, REDUCED, UNREDUCED, FROM_REDUCED = (
    'varying', 'reduced', 'unreduced', 'from reduced')
CASTS: Table[str] = Table({
    'pvary': VARYING, 'preduced': REDUCED,
    'vary_unreduced_cast': UNREDUCED, 'vary_unreduced_cast_p': UNREDUCED,
    'reduced_vary_cast': FROM_REDUCED, 'reduced_vary_cast_p': FROM_REDUCED})
# The primitives that hand their operands on, one by one.
COPIES: Table[bool] = Table({'copy': True, 'optimization_barrier': True})

# The types of a reduction: none; results that don't vary by their type; those
# that vary though they are the same; and as of casts.
UNTYPED, INVARIANT = 'untyped', 'invariant'
REDUCTIONS: Table[Reduction] = Table({
    'psum': Reduction('psum', UNTYPED),
    'psum2': Reduction('psum', INVARIANT),  # until 0.5.3
    'psum_invariant': Reduction('psum', INVARIANT),
    'unreduced_psum': Reduction('psum', UNREDUCED),
    'pmax': Reduction('pmax', INVARIANT),
    'unreduced_pmax': Reduction('pmax', UNREDUCED),
    'pmin': Reduction('pmin', INVARIANT),
    'unreduced_pmin': Reduction('pmin', UNREDUCED),
    'all_gather': Reduction('all_gather', VARYING),
    'all_gather_invariant': Reduction('all_gather', INVARIANT),
    'all_gather_reduced': Reduction('all_gather', REDUCED)})


def named(table: Table[_Row], *rows: _Row) -> tuple[str, ...]:
  """The names of the primitives that have one of these rows; of all, of none.

  They are for tables of rules, which are asked by ``foreign.name_of``.
  """
  return tuple(n for n, row in table.rows.items() if not rows or row in rows)


def is_cast(eqn: core.JaxprEqn) -> bool:
  """True if an equation only changes types; 0.5.3's is a ``pbroadcast``."""
  return CASTS[eqn.primitive] is not None or (
      foreign.name_of(eqn.primitive) == 'pbroadcast'
      and 'source' not in eqn.params)


@dataclasses.dataclass(slots=True)
class Loop:  # one is made at each binding: this costs a call
  """A ``scan`` or ``while_loop``: its jaxprs, and how its operands are split.

  Attributes:
    body: the body, opened.
    consts: how many operands are constants of the body, before its carries.
    number: how many are carries; None if all results are of some.
    predicate: the predicate, opened; None of a scan.
    tests: how many operands, before all others, are the predicate's constants.
  """
  body: core.Jaxpr
  consts: int
  number: int | None
  predicate: core.Jaxpr | None = None
  tests: int = 0

  @property
  def carries(self) -> int:
    """The number of operands that are initial values of carries."""
    return len(self.body.outvars) if self.number is None else self.number

  @property
  def first(self) -> int:
    """The number of the operand that is the first carry's initial value."""
    return self.tests + self.consts

  @property
  def own(self) -> range:
    """The numbers of the body's inputs that are carries."""
    return range(self.consts, self.consts + self.carries)

  def operand(self, n: int, of_predicate: bool = False) -> int:
    """The number of the operand that input ``n`` of a jaxpr is at first.

    Args:
      n: the number of the input.
      of_predicate: whether it is one of the predicate, and not of the body.
    """
    if of_predicate:
      return n if n < self.tests else n + self.consts
    return n + self.tests

  def split(self, operands: Sequence[_T]
            ) -> tuple[list[_T], list[_T], list[_T], list[_T]]:
    """A list of something for each operand, split by what these are.

    Args:
      operands: something for each of the loop's operands.

    Returns:
      The lists for the predicate's constants, the body's, the carries, and
      what is scanned over.
    """
    start, first = self.tests, self.tests + self.consts
    end = first + self.carries
    operands = list(operands)
    return (operands[:start], operands[start:first], operands[first:end],
            operands[end:])


@dataclasses.dataclass(slots=True)
class WhileLoop(Loop):
  """A ``while_loop``, which has a predicate."""
  predicate: core.Jaxpr


def while_loop(params: dict[str, Any]) -> WhileLoop:
  """The parts of a ``while_loop``, by its parameters."""
  body, predicate = params['body_jaxpr'], params['cond_jaxpr']
  if not _ALL_OPEN:
    body, predicate = map(jaxprs.open_jaxpr, (body, predicate))
  return WhileLoop(body, params['body_nconsts'], None, predicate,
                   params['cond_nconsts'])


def scan(params: dict[str, Any]) -> Loop:
  """The parts of a ``scan`` or ``fori_loop``, by its parameters."""
  body = params['jaxpr']
  if not _ALL_OPEN:
    body = jaxprs.open_jaxpr(body)
  if 'num_consts' in params:
    return Loop(body, params['num_consts'], params['num_carry'])
  consts, carries, _ = params['ft_in'].unpack()
  return Loop(body, len(consts), len(carries))


def branches(params: dict[str, Any]) -> tuple[core.Jaxpr, ...]:
  """The branches of a ``cond`` or ``switch``, opened, by its parameters.

  Their inputs are its operands but the first, which is the index.
  """
  return tuple(params['branches'] if _ALL_OPEN else
               map(jaxprs.open_jaxpr, params['branches']))


def callee(params: dict[str, Any]) -> str:
  """The name of the parameter for the jaxpr of a call."""
  return next(p for p in ('jaxpr', 'call_jaxpr', 'fun_jaxpr', 'call', 'callee')
              if p in params)


_LOOPS: Table[Callable[[dict[str, Any]], Loop]] = Table(
    {'while': while_loop, 'scan': scan})


def loop(eqn: Any) -> Loop | None:
  """The parts of an equation of a loop; None of any other equation."""
  parts = _LOOPS[eqn.primitive]
  return parts and parts(eqn.params)


class Inner(NamedTuple):
  """A jaxpr that an equation holds, and its place there.

  Attributes:
    role: 'predicate' or 'body' of a loop, 'branch', 'call', 'map' of a
      ``shard_map``; of a linear solve 'solve' and the others that it has; None
      of a jaxpr in a primitive that has no row.
    jaxpr: the jaxpr, as the parameter has it.
    operands: the number of the operand that each input is; of a loop, in its
      first trip. None for an input of which that isn't known.
    results: the numbers of the results that the outputs are; of a loop's
      carries, after its last trip. None if they are none, as a predicate isn't.
    carries: the numbers of the inputs that are a loop's carries.
  """
  role: str | None
  jaxpr: Any
  operands: Sequence[int | None]
  results: range | None = None
  carries: range = range(0)


def _inputs(jaxpr: Any) -> range:
  return range(len(jaxprs.open_jaxpr(jaxpr).invars))


def _of_while(eqn: Any) -> Iterator[Inner]:
  parts, params = while_loop(eqn.params), eqn.params
  cond, body, count = params['cond_jaxpr'], params['body_jaxpr'], parts.carries
  yield Inner('predicate', cond, [
      parts.operand(n, True) for n in _inputs(cond)], None,
              range(parts.tests, parts.tests + count))
  yield Inner('body', body, list(map(parts.operand, _inputs(body))),
              range(count), parts.own)


def _of_scan(eqn: Any) -> Iterator[Inner]:
  body = eqn.params['jaxpr']
  yield Inner('body', body, _inputs(body), range(len(eqn.outvars)),
              scan(eqn.params).own)


def _of_cond(eqn: Any) -> Iterator[Inner]:
  for branch in eqn.params['branches']:
    yield Inner('branch', branch, [n + 1 for n in _inputs(branch)],
                range(len(eqn.outvars)))


def _of_solve(eqn: Any) -> Iterator[Inner]:
  """The jaxprs of a linear solve, each after constants of its own."""
  lengths, held = eqn.params['const_lengths'], eqn.params['jaxprs']
  first, end = 0, sum(lengths)
  for role, jaxpr, own in zip(held._fields, held, lengths):
    if jaxpr is not None:
      consts, others = range(first, first + own), _inputs(jaxpr)[own:]
      if role == 'solve':
        yield Inner(role, jaxpr, [*consts, *(n - own + end for n in others)],
                    range(len(eqn.outvars)))
      else:
        yield Inner(role, jaxpr, [*consts, *[None] * len(others)])
    first += own


def _of_map(eqn: Any) -> Iterator[Inner]:
  jaxpr = eqn.params['jaxpr']
  yield Inner('map', jaxpr, _inputs(jaxpr), range(len(eqn.outvars)))


def _of_call(eqn: Any) -> list[Inner]:
  params = eqn.params
  jaxpr = params[callee(params)]
  operands: Sequence[int] = _inputs(jaxpr)
  if 'num_transpose_consts' in params:  # a linear_call's, up to 0.5.3
    first, others = params['num_callee_consts'], params['num_transpose_consts']
    operands = [n if n < first else n + others for n in operands]
  return [Inner('call', jaxpr, operands, range(len(eqn.outvars)))]


_INNER: Table[Callable[[Any], Iterable[Inner]]] = Table({
    'while': _of_while, 'scan': _of_scan, 'cond': _of_cond,
    'custom_linear_solve': _of_solve, 'shard_map': _of_map,
    **dict.fromkeys(CALLS.rows, _of_call)})


def inner(eqn: Any) -> list[Inner]:
  """The jaxprs that an equation holds, a loop's predicate before its body.

  Args:
    eqn: an equation, or one of a trace.
  """
  parts = _INNER[eqn.primitive]
  if parts is not None:
    return list(parts(eqn))
  return [Inner(None, jaxpr, [None] * len(jaxpr.invars))
          for jaxpr in jaxprs.in_params(eqn.params)]


def called(eqn: Any) -> Inner | None:
  """The jaxpr that gives an equation's results as it stands.

  Returns:
    That of a call, and the solver of a linear solve; None of anything else.
  """
  parts = _INNER[eqn.primitive]
  if parts is _of_call:
    return _of_call(eqn)[0]
  if parts is _of_solve:
    return next(i for i in _of_solve(eqn) if i.role == 'solve')
  return None


def only(eqn: Any) -> Inner | None:
  """The one jaxpr that an equation holds, if it has its operands and results.

  It may be of a primitive that has no row.
  """
  held = list(jaxprs.in_params(eqn.params))
  if len(held) != 1 or (len(held[0].invars), len(held[0].outvars)) != (
      len(eqn.invars), len(eqn.outvars)):
    return None
  return Inner(None, held[0], range(len(eqn.invars)), range(len(eqn.outvars)))
