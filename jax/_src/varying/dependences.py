# SPDX-License-Identifier: Apache-2.0
"""Dependences of a jaxpr's values on its inputs, and the axes that count.

A value that is a function of others is the same on all devices along an axis if
they are. Operations of ``jax.lax``, of linear algebra and of random keys are
functions of all of their operands. What a gather or reduction over devices
returns is the same along the axes that it names, whatever its operand. Calls,
branches and loops are what their jaxprs make of the operands; what a branch
returns depends on the index, too, and what a loop changes on its predicate.

One pass forward over a jaxpr finds the ``Dependence`` of each of its values on
the jaxpr's inputs and captured values, which are the bits of an integer. It is
kept as long as the jaxpr, and holds at whatever types that is typed again.
Loops are solved as least fixpoints over their carries.

Limits: a scatter whose places aren't known to differ is a function of unknown
things, unless it sums integers; so is whatever has an effect, and a primitive
of another library. They differ along what their types say.

Cost: a visit of each equation of a jaxpr, once; of a loop's body or a branch a
union of integers for each result and each trip until nothing changes.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
import functools
from typing import Any, NamedTuple

import numpy as np

from jax._src import core
from jax._src.mend import abstract
from jax._src.mend import anatomy
from jax._src.varying import contents
from jax._src.varying import types as vt
from jax._src.varying.types import Axes, NO_AXES


class Dependence(NamedTuple):
  """Axes along which a value may differ, given those of the inputs.

  Attributes:
    own: the axes along which it may differ whatever the inputs are.
    inputs: sets of inputs, as the bits of an integer, by the axes that don't
      count of them and by whether they count as their types say.
  """
  own: Axes
  inputs: dict[tuple[Axes, bool], int]

  def axes(self, differ: Callable[[int], Axes], types: Callable[[int], Axes],
           own: bool = True, limit: Axes | None = None) -> Axes:
    """The axes along which the value may differ.

    Args:
      differ: gives those of an input, by its number.
      types: gives what its type says.
      own: whether the value's own count.
      limit: axes beyond which there are none, at which the search ends.
    """
    found = self.own if own else NO_AXES
    if limit is not None and limit <= found:
      return found
    for (less, by_type), mask in self.inputs.items():
      of_input = types if by_type else differ
      for n in _bits(mask):
        axes = of_input(n)
        if axes and not axes <= found:
          found |= axes - less
          if limit is not None and limit <= found:
            return found
    return found

  def numbers(self, axes: Axes) -> set[int]:
    """The inputs with which it would differ along any of these axes."""
    return {n for (less, _), mask in self.inputs.items() if axes - less
            for n in _bits(mask)}


NOTHING = Dependence(NO_AXES, {})


def on_input(n: int) -> Dependence:
  return Dependence(NO_AXES, {(NO_AXES, False): 1 << n})


def _bits(mask: int) -> Iterable[int]:
  while mask:
    low = mask & -mask
    yield low.bit_length() - 1
    mask ^= low


def joined(parts: Iterable[Dependence]) -> Dependence:
  """The dependence of a function of values of these."""
  own, alone = NO_AXES, None
  inputs: dict = {}
  for part in parts:
    if alone is None:
      alone = part
    elif part is not alone:
      if not inputs:
        own, inputs = alone.own, dict(alone.inputs)
      own |= part.own
      for key, mask in part.inputs.items():
        inputs[key] = inputs.get(key, 0) | mask
  if alone is None:
    return NOTHING
  return Dependence(own, inputs) if inputs or own else alone


def _gathered(part: Dependence, names: Axes) -> Dependence:
  """The dependence of what is the same along these axes."""
  inputs: dict[tuple[Axes, bool], int] = {}
  for (less, by_type), mask in part.inputs.items():
    key = less | names, by_type
    inputs[key] = inputs.get(key, 0) | mask
  return Dependence(part.own - names, inputs)


def _by_type(part: Dependence, traced: Axes) -> Dependence:
  """The dependence of what may differ as its type says, or will say."""
  mask = 0
  for m in part.inputs.values():
    mask |= m
  return Dependence(traced, {(NO_AXES, True): mask} if mask else {})


_OVER_DEVICES = frozenset(
    name for name, row in anatomy.REDUCTIONS.rows.items()
    if row.types not in (anatomy.REDUCED, anatomy.UNREDUCED))
_ELSEWHERE = frozenset([  # functions, too, in modules that hold others
    'stop_gradient', 'cumsum', 'cumprod', 'cummax', 'cummin', 'cumlogsumexp',
    'platform_index', 'random_seed', 'random_split', 'random_fold_in',
    'random_bits', 'random_wrap', 'random_unwrap', 'random_clone',
    'threefry2x32', 'iota_2x32_shape'])
_OTHERWISE = frozenset([  # in the modules of _operations, and not functions
    'rng_uniform', 'infeed', 'outfeed', 'after_all', 'create_token', 'empty',
    'empty2'])
_EACH = frozenset([
    'device_put', *anatomy.named(anatomy.COPIES),
    *anatomy.named(anatomy.CASTS, anatomy.VARYING)])


@functools.cache
def _operations() -> frozenset[core.Primitive]:
  """The operations of JAX that are functions of their operands."""
  from jax._src.lax import convolution, fft, lax, linalg, slicing, special
  from jax._src.lax import windowed_reductions
  found = [p for module in (convolution, fft, lax, linalg, slicing, special,
                            windowed_reductions)
           for p in vars(module).values() if type(p) is core.Primitive]
  return frozenset([p for p in found if p.name not in _OTHERWISE])


@functools.cache
def plain_operations() -> frozenset[core.Primitive]:
  """Operations whose result is a function of the operands, whatever it is."""
  casts = [p for p in vars(core).values() if type(p) is core.Primitive
           and p.name == 'pvary' and not p.multiple_results]
  return frozenset(casts).union([
      p for p in _operations()
      if p.name[:7] != 'scatter' and p.name != 'optimization_barrier'])


def _is_function(eqn: Any) -> bool:
  """True if an equation's results are functions of its operands alone.

  A scatter to the same place, or a sum of its floating updates, depends on
  their order, which can be another on another device.
  """
  prim, name = eqn.primitive, vt.name_of(eqn.primitive)
  if prim not in _operations():
    return name in _ELSEWHERE
  return not name.startswith('scatter') or eqn.params['unique_indices'] or (
      name != 'scatter'
      and np.issubdtype(_type(eqn.outvars[0]).dtype, np.integer))


def of_results(eqn: Any, ins: Sequence[Dependence]) -> list[Dependence]:
  """The dependences of an equation's results, by those of its operands.

  Args:
    eqn: an equation, or what was bound as one.
    ins: the dependences of its operands.
  """
  prim, count = eqn.primitive, len(eqn.outvars)
  name = vt.name_of(prim)
  if eqn.effects and any(
      not isinstance(e, core.NamedAxisEffect) for e in eqn.effects):
    return _unknown(eqn, ins)
  if name in _EACH and len(ins) == count:
    return list(ins)
  if _is_function(eqn):
    return [joined(ins)] * count
  if name in _OVER_DEVICES:
    if eqn.params.get('axis_index_groups') is not None:
      return _unknown(eqn, ins)
    names = contents.named_axes(eqn)
    if len(ins) == count:
      return [_gathered(i, names) for i in ins]
    return [_gathered(joined(ins), names)] * count
  if name in ('agreed', 'doubted', 'compared'):
    return list(ins)  # its type says the rest, as long as that holds
  if name not in _FOLLOWED:
    return _unknown(eqn, ins)
  return abstract.of_equation(_domain, eqn, ins).outs


def _unknown(eqn: Any, ins: Sequence[Dependence]) -> list[Dependence]:
  every = joined(ins)
  return [_by_type(every, vt.varying(_type(v))) for v in eqn.outvars]


def _type(v: Any) -> Any:
  return vt.typeof(v) if isinstance(v, core.Tracer) else v.aval


@contents.cached
def of_values(jaxpr: core.Jaxpr) -> dict[core.Var, Dependence]:
  """The dependence of each value of a jaxpr on its inputs."""
  known = {v: on_input(n) for n, v in enumerate(
      [*jaxpr.invars, *jaxpr.constvars])}
  plain = plain_operations()
  for eqn in jaxpr.eqns:
    ins = [NOTHING if type(v) is core.Literal else known[v]
           for v in eqn.invars]
    if eqn.primitive in plain and not eqn.effects:
      first = ins[0] if ins else NOTHING
      every = first if ins.count(first) == len(ins) else joined(ins)
      for v in eqn.outvars:
        known[v] = every
    else:
      known.update(zip(eqn.outvars, of_results(eqn, ins)))
  return known


def of_atom(known: dict[core.Var, Dependence], atom: Any) -> Dependence:
  return NOTHING if type(atom) is core.Literal else known[atom]


@contents.cached
def _outputs(jaxpr: core.Jaxpr) -> list[Dependence]:
  known = of_values(jaxpr)
  return [of_atom(known, v) for v in jaxpr.outvars]


class _Inside:
  """A jaxpr in an equation, and the dependences of what it is given."""

  def __init__(self, jaxpr: core.Jaxpr, ins: Sequence[Dependence]):
    self.jaxpr, self.ins = jaxpr, [*ins, *(
        Dependence(vt.varying(v.aval), {}) for v in jaxpr.constvars)]
    self.known: dict[tuple[Axes, bool, int], Dependence] = {}

  def outputs(self) -> list[Dependence]:
    return [joined([Dependence(out.own, {}), *(
        self._of_inputs(less, by_type, mask)
        for (less, by_type), mask in out.inputs.items())])
            for out in _outputs(self.jaxpr)]

  def _of_inputs(self, less: Axes, by_type: bool, mask: int) -> Dependence:
    key = less, by_type, mask  # many outputs are functions of the same
    if key not in self.known:
      parts = [self.ins[n] for n in _bits(mask)]
      if by_type:
        parts = [_by_type(part, vt.varying(v.aval)) for part, v in zip(
            parts, map(self._input, _bits(mask)))]
      self.known[key] = _gathered(joined(parts), less)
    return self.known[key]


  def _input(self, n: int) -> core.Var:
    first = len(self.jaxpr.invars)
    return (self.jaxpr.invars[n] if n < first else
            self.jaxpr.constvars[n - first])


def composed(part: Dependence, ins: Sequence[Dependence],
             types: Sequence[Axes]) -> Dependence:
  """The dependence of a value on what its inputs depend on.

  Args:
    part: that of the value on its inputs.
    ins: those of the inputs.
    types: the axes that the inputs vary over.
  """
  parts = [Dependence(part.own, {})]
  for (less, by_type), mask in part.inputs.items():
    given = [_by_type(ins[n], types[n]) if by_type else ins[n]
             for n in _bits(mask)]
    parts.append(_gathered(joined(given), less))
  return joined(parts)


class _Dependences(abstract.Domain[Dependence]):
  """The domain, in which a jaxpr's own dependences are found once."""

  def join(self, facts):
    return joined(facts)

  def inside(self, jaxpr, ins):
    return abstract.Found(_Inside(jaxpr, ins).outputs())


_domain = _Dependences()
# What is compiled with a remark is typed as it was traced.
_FOLLOWED = frozenset([
    'cond', 'scan', 'while', 'custom_linear_solve',
    *anatomy.named(anatomy.CALLS)]).difference(
        anatomy.named(anatomy.CALLS, anatomy.REMARKED))


def inner(eqn: Any) -> list[core.Jaxpr]:
  """The jaxprs in an equation, a loop's predicate before its body."""
  return [vt.open_jaxpr(part.jaxpr) for part in anatomy.inner(eqn)]


def operand_of(eqn: Any, number: int, n: int) -> int | None:
  """The operand that an input of a jaxpr in an equation is, in the first trip.

  Args:
    eqn: the equation.
    number: which of the jaxprs that ``inner`` gives.
    n: which of its inputs.

  Returns:
    The operand's number; None if the input isn't one.
  """
  loop = anatomy.loop(eqn)
  if loop is not None:
    return loop.operand(n, loop.predicate is not None and not number)
  if vt.name_of(eqn.primitive) in _FOLLOWED:
    return anatomy.inner(eqn)[number].operands[n]
  return None


def of_inputs(eqn: Any, number: int) -> list[Dependence | None]:
  """The dependences of the inputs of a jaxpr in an equation, on its operands.

  Those of a loop are of all of its trips.

  Args:
    eqn: the equation.
    number: which of the jaxprs that ``inner`` gives.

  Returns:
    A dependence for each input; None where that isn't known.
  """
  ins = list(map(on_input, range(len(eqn.invars))))
  loop = anatomy.loop(eqn)
  if loop is not None:
    every = abstract.of_loop(_domain, loop, ins).inputs
    of_predicate = loop.predicate is not None and not number
    return ins[:loop.tests] + every[loop.consts:] if of_predicate else every
  places = [operand_of(eqn, number, n)
            for n in range(len(inner(eqn)[number].invars))]
  return [None if n is None else ins[n] for n in places]


def of_result(eqn: Any, n: int, count: int) -> list[tuple[Dependence, int]]:
  """The dependences that a result joins.

  Args:
    eqn: an equation, or one of a trace.
    n: the number of the result.
    count: that of the operands.

  Returns:
    Each, with the number of the operand that its first input is.
  """
  name = vt.name_of(eqn.primitive)
  if name == 'cond':
    return [(on_input(0), 0), *(
        (_outputs(b)[n], 1) for b in anatomy.branches(eqn.params))]
  called = anatomy.called(eqn) if name in _FOLLOWED else None
  if called is not None and list(called.operands) == list(range(count)):
    jaxpr = vt.open_jaxpr(called.jaxpr)
    if not jaxpr.constvars:
      return [(_outputs(jaxpr)[n], 0)]
  return [(of_results(eqn, list(map(on_input, range(count))))[n], 0)]


def reduced_over(eqn: Any) -> Axes:
  """The axes along which a gather's or reduction's result is the same."""
  if (vt.name_of(eqn.primitive) in _OVER_DEVICES
      and eqn.params.get('axis_index_groups') is None):
    return contents.named_axes(eqn)
  return NO_AXES


def of_predicate(params: dict[str, Any], count: int, trips: bool
                 ) -> Dependence:
  """The dependence of a while loop's predicate on the loop's operands.

  Args:
    params: the loop's parameters.
    count: the number of its operands.
    trips: whether it is that of all trips, or of the first.
  """
  ins = list(map(on_input, range(count)))
  loop = anatomy.while_loop(params)
  if trips:
    return abstract.of_loop(_domain, loop, ins).predicate
  tests, _, init, _ = loop.split(ins)
  return _Inside(loop.predicate, [*tests, *init]).outputs()[0]
