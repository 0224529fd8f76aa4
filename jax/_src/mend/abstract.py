# SPDX-License-Identifier: Apache-2.0
"""Abstract interpretation of jaxprs: facts of values, by their operands'.

A question about values, such as along which axes they may differ, is a
``Domain``: it has the facts, their join, and what an operation makes of its
operands' facts (``step``). Facts go through equations that hold jaxprs in the
same way for every question:

* a call's results have what its jaxpr makes of the operands, those of a linear
  solve what the solver makes of them;
* a conditional's results have the join of what its branches make of them, and a
  loop's carries the least facts that hold in each round. A predicate adds its
  own to what it chooses; what is handed on as it was (``inputs_of_results``)
  isn't chosen;
* a ref has the join of all that is written to it. It can be read before it is
  written to, in a loop: a jaxpr is gone over until no ref's fact grows.

All else is a step: an operation, a kernel, a nested ``shard_map``.

``varying.flow`` solves loops of its own, incrementally. It has no part in this,
nor this in it, but for what is handed on: so ``coarse`` can verify it.

Limits: what a loop's predicate writes isn't seen; JAX has it write nothing.

Cost: a visit of each equation, once for each round of the loops around it; of a
domain that keeps what a jaxpr makes of its inputs (``inside``), once.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
import types
from typing import Any, Generic, NamedTuple, TypeVar

from jax._src import core
from jax._src.mend import anatomy
from jax._src.mend import jaxprs
from jax._src.mend import traces
from jax._src import util

Fact = TypeVar('Fact')


class Found(NamedTuple):
  """Facts that are found.

  Attributes:
    outs: of each result.
    writes: by the number of an operand, or of an input, that is a ref: of what
      is written to it.
  """
  outs: list[Any]
  writes: Mapping[int, Any] = types.MappingProxyType({})


class Domain(Generic[Fact]):
  """A kind of facts, ordered, and what operations make of them.

  ``join``, ``step`` and ``free`` are its own; the others have a default.
  """

  def join(self, facts: Iterable[Fact]) -> Fact:
    """The least fact that holds of each of some values."""
    raise NotImplementedError

  def step(self, eqn: Any, ins: Sequence[Fact]) -> Found:
    """The facts of an equation's results, where the operation tells them.

    Args:
      eqn: the equation.
      ins: the facts of its operands.
    """
    raise NotImplementedError

  def free(self, v: Any) -> Fact:
    """The fact of a number, or of what a jaxpr captures."""
    raise NotImplementedError

  def chosen(self, facts: Iterable[Fact], predicate: Fact) -> Fact:
    """The fact of one of some values, which a predicate chooses."""
    return self.join([*facts, predicate])

  def called(self, eqn: Any) -> anatomy.Inner | None:
    """The jaxpr that an equation calls; None if it does something else."""
    return anatomy.called(eqn)

  def inside(self, jaxpr: core.Jaxpr, ins: Sequence[Fact]) -> Found:
    """The facts that a jaxpr in an equation makes of those of its inputs."""
    return outputs(self, jaxpr, ins)

  def equation(self, eqn: Any, ins: Sequence[Fact]) -> Found:
    """The facts of any equation's results, of those of its operands."""
    return of_equation(self, eqn, ins)


def outputs(domain: Domain[Fact], jaxpr: Any, ins: Sequence[Fact]) -> Found:
  """The facts of a jaxpr's results, and of what it writes to its inputs.

  Args:
    domain: the kind of facts.
    jaxpr: an open or a closed one.
    ins: the facts of its inputs.
  """
  jaxpr = jaxprs.open_jaxpr(jaxpr)
  known = dict(zip(jaxpr.invars, ins))

  def read(v: Any) -> Fact:
    return (known[v] if type(v) is not core.Literal and v in known else
            domain.free(v))

  grew = True
  while grew:
    grew = False
    for eqn in jaxpr.eqns:
      found = domain.equation(eqn, list(map(read, eqn.invars)))
      for v, fact in zip(eqn.outvars, found.outs):
        known[v] = (domain.join([known[v], fact]) if v in known and
                    traces.is_ref_type(v.aval) else fact)
      for n, fact in found.writes.items():
        ref, before = eqn.invars[n], read(eqn.invars[n])
        known[ref] = domain.join([before, fact])
        grew |= known[ref] != before
  return Found(list(map(read, jaxpr.outvars)),
               {n: read(jaxpr.invars[n]) for n in jaxprs.written(jaxpr)})


def of_equation(domain: Domain[Fact], eqn: Any, ins: Sequence[Fact]) -> Found:
  """The facts of an equation's results, and of what it writes to operands.

  Args:
    domain: the kind of facts.
    eqn: the equation, or what was bound as one.
    ins: the facts of its operands.
  """
  rule = _RULES[eqn.primitive]
  if rule is not None:
    return rule(domain, eqn, ins)
  called = domain.called(eqn)
  if called is None:
    return domain.step(eqn, ins)
  operands = [n for n in called.operands if n is not None]  # of a call, all
  found = domain.inside(jaxprs.open_jaxpr(called.jaxpr),
                        [ins[n] for n in operands])
  return Found(found.outs, {operands[n]: f for n, f in found.writes.items()})


class Ends(NamedTuple):
  """The facts of a loop, that hold in each round.

  Attributes:
    inputs: of its body's inputs.
    outs: of its body's results.
    predicate: of its predicate; None of a scan.
    writes: of what is written to refs, by the numbers of the loop's operands.
  """
  inputs: list[Any]
  outs: list[Any]
  predicate: Any
  writes: Mapping[int, Any]


def of_loop(domain: Domain[Fact], loop: anatomy.Loop, ins: Sequence[Fact]
            ) -> Ends:
  """The least facts of a loop's values that hold in each round.

  Args:
    domain: the kind of facts.
    loop: its parts.
    ins: the facts of all of its operands.
  """
  tests, ins, predicate = list(ins[:loop.tests]), list(ins[loop.tests:]), None
  handed_on: Sequence[int | None] = [None] * loop.carries
  if loop.predicate is not None:
    handed_on = inputs_of_results(loop.body)
  while True:
    outs, writes = domain.inside(loop.body, ins)
    if loop.predicate is not None:
      (predicate,), _ = domain.inside(
          loop.predicate, tests + ins[loop.consts:])
    grown = list(ins)
    for own, out, n in zip(loop.own, outs, handed_on):
      grown[own] = _joined(domain, [ins[own], out],
                           None if n == own else predicate)
    if grown == ins:
      return Ends(ins, outs, predicate, {
          n + loop.tests: _joined(domain, [fact], predicate)
          for n, fact in writes.items()})
    ins = grown


def _joined(domain: Domain[Fact], facts: Sequence[Fact], predicate: Any
            ) -> Fact:
  """The join of facts, and what a predicate, if there is one, adds to it."""
  return (domain.join(facts) if predicate is None else
          domain.chosen(facts, predicate))


def _of_loop(domain, eqn, ins):
  loop: Any = anatomy.loop(eqn)
  ends = of_loop(domain, loop, ins)
  carries = ends.inputs[loop.consts:loop.consts + loop.carries]
  return Found(carries + ends.outs[loop.carries:], ends.writes)


def _of_branches(domain, eqn, ins):
  branches, (index, *operands) = anatomy.branches(eqn.params), ins
  outs, writes = zip(*(domain.inside(b, operands) for b in branches))
  same = map(_is_one_value, zip(*(b.outvars for b in branches)),
             zip(*map(inputs_of_results, branches)))
  return Found(
      [_joined(domain, each, None if one else index)
       for each, one in zip(zip(*outs), same)],
      {n + 1: domain.chosen([w[n] for w in writes if n in w], index)
       for n in set().union(*writes)})


def _is_one_value(variables: Sequence[Any], inputs: Sequence[int | None]
                  ) -> bool:
  """True if branches return one operand, or one number."""
  return (None not in inputs and len(set(inputs)) == 1
          or jaxprs.is_one_number(variables))


_RULES: anatomy.Table[Callable[[Any, Any, Sequence[Any]], Found]] = (
    anatomy.Table({'while': _of_loop, 'scan': _of_loop, 'cond': _of_branches}))


def follows(eqn: Any) -> bool:
  """True of a loop, a conditional or a call."""
  return _RULES[eqn.primitive] is not None or anatomy.called(eqn) is not None


@util.weakref_lru_cache
def inputs_of_results(jaxpr: core.Jaxpr) -> tuple[int | None, ...]:
  """The number of the input that each result of a jaxpr is; None if none.

  A result is an input if it is handed on, cast, or carried through a loop as it
  was, through branches and calls as well. This is no domain: it walks back from
  the results, which are few, and asked for at each predicate.
  """
  place = {v: n for n, v in enumerate(jaxpr.invars)}
  made_by = {v: (eqn, n) for eqn in jaxpr.eqns
             for n, v in enumerate(eqn.outvars)}

  def input_of(v: Any) -> int | None:
    while type(v) is not core.Literal and v in made_by:
      eqn, n = made_by[v]
      operands = [eqn.invars[k] for k in _operands_of_result(eqn, n)]
      if not operands or len(operands) > 1 and len(
          set(map(input_of, operands))) > 1:
        return None
      v = operands[0]
    return None if type(v) is core.Literal else place.get(v)

  return tuple(map(input_of, jaxpr.outvars))


def _operands_of_result(eqn: core.JaxprEqn, n: int) -> Iterable[int]:
  """Numbers of operands, one of which a result is; none if it is new."""
  prim = eqn.primitive
  if (anatomy.COPIES[prim] or anatomy.CASTS[prim] == anatomy.VARYING
      or anatomy.CASTS[prim] is None and anatomy.is_cast(eqn)):
    return [n]
  loop = anatomy.loop(eqn)
  if loop is not None:
    same = n < loop.carries and inputs_of_results(loop.body)[n] == loop.own[n]
    return [loop.first + n] if same else []
  if _RULES[prim] is not None:
    places = {inputs_of_results(b)[n] for b in anatomy.branches(eqn.params)}
    return [] if None in places else [k + 1 for k in places if k is not None]
  called = anatomy.called(eqn)
  if called is None:
    return []
  k = inputs_of_results(jaxprs.open_jaxpr(called.jaxpr))[n]
  operand = None if k is None else called.operands[k]
  return [] if operand is None else [operand]
