# SPDX-License-Identifier: Apache-2.0
"""Axes along which values may differ, where types don't say.

With ``check_vma=False``, and up to 0.5.3, a jaxpr's types have no axes. They
are inferred forwards, by what values are and not by what types say: a cast adds
nothing. A result may differ along what its operands do, less what a reduction
over devices names; loops are solved as fixpoints, and what they change may
differ along the predicate's axes. What runs code that isn't JAX's and what
holds jaxprs that no rule knows may differ along every axis, and so may what is
read from a ref: such values aren't compared, and their places are noted.

Cost: each jaxpr is walked once, the body of a loop once for each round of its
fixpoint.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from jax._src import core
from jax._src.mend import anatomy
from jax._src.mend import coarse
from jax._src.mend import foreign as foreign_lib
from jax._src.mend import jaxprs
from jax._src.mend import manual_maps

Axes = frozenset
NO_AXES: Axes = frozenset()
union, names_in, is_cast = coarse.union, coarse.names_in, anatomy.is_cast


class Scope(NamedTuple):
  """The place at which types are inferred.

  Attributes:
    axes: those of more than one device that are manual here.
    unknown: is called with each equation that no rule knows.
  """
  axes: Axes
  unknown: Callable[[core.JaxprEqn], None] = lambda eqn: None


def name_of(primitive: core.Primitive) -> str:
  """The name that rules have for a primitive; none for another library's."""
  return foreign_lib.name_of(primitive).removesuffix('_p')


def title_of(primitive: core.Primitive) -> str:
  """A primitive's own name, whoever defined it."""
  return getattr(primitive, 'prim', primitive).name.removesuffix('_p')


# What gives each device what is its own.
_OWN = {'axis_index', 'ppermute', 'all_to_all', 'ragged_all_to_all',
        'reduce_scatter', 'unreduced_reduce_scatter', 'psend', 'precv',
        'pgather'}
_FOREIGN = ('io_callback', 'debug_callback', 'debug_print', 'ffi_call',
            'pallas_call', 'run_state', 'for', 'custom_call', 'xla_call',
            'python_callback', 'infeed')
_REDUCERS = ('reduce', 'scatter', 'select_and_scatter')
# The primitives that call a jaxpr on their operands, or on some of them, and do
# no more; others that do have it compiled in a way of its own.
CALLS = {'custom_linear_solve', *anatomy.named(anatomy.CALLS)}.difference(
    anatomy.named(anatomy.CALLS, anatomy.COMPILED, anatomy.REMARKED))


def callee(eqn: core.JaxprEqn, operands: Sequence[Any]
           ) -> tuple[Any, list[Any]]:
  """The jaxpr that a call calls, and which of the operands it calls it on."""
  called = anatomy.called(eqn)
  return called.jaxpr, [operands[n] for n in called.operands]


def inner(eqn: core.JaxprEqn) -> list[core.Jaxpr]:
  """The jaxprs in an equation's parameters."""
  return list(_jaxprs(tuple(eqn.params.values())))


def _jaxprs(value: Any) -> Iterator[core.Jaxpr]:
  if isinstance(value, jaxprs.CLASSES):
    yield jaxprs.open_jaxpr(value)
  elif isinstance(value, (tuple, list)):
    for each in value:
      yield from _jaxprs(each)


def foreign(eqn: core.JaxprEqn) -> bool:
  """True if nothing is known of what an equation gives on each device."""
  name = name_of(eqn.primitive)
  if (name in _RULES or anatomy.REDUCTIONS[eqn.primitive] is not None
      or anatomy.called(eqn) is not None or is_cast(eqn)):
    return False
  if name.startswith(_FOREIGN):
    return True
  if name == 'call_hi_primitive':  # JAX's own only compute
    return not type(eqn.params.get('_prim')).__module__.startswith('jax.')
  if any(hasattr(v.aval, 'inner_aval') for v in (*eqn.invars, *eqn.outvars)):
    return True
  return not name.startswith(_REDUCERS) and any(
      _by_device(e) for j in inner(eqn) for e in j.eqns)


def _by_device(eqn: core.JaxprEqn) -> bool:
  """True if an equation, or one within, isn't a function of its operands."""
  return (foreign(eqn) or name_of(eqn.primitive) in _OWN
          or anatomy.REDUCTIONS[eqn.primitive] is not None
          or any(_by_device(e) for j in inner(eqn) for e in j.eqns))


def of_results(eqn: core.JaxprEqn, ins: Sequence[Axes],
               scope: Scope) -> list[Axes]:
  """The axes along which an equation's results may differ.

  Args:
    eqn: the equation.
    ins: what its operands may differ along.
    scope: where it stands.
  """
  name, count = name_of(eqn.primitive), len(eqn.outvars)
  if name in _RULES:
    return _RULES[name](eqn, list(ins), scope)
  if anatomy.called(eqn) is not None:
    return of_jaxpr(*callee(eqn, ins), scope)
  if is_cast(eqn) or anatomy.COPIES[eqn.primitive]:
    return list(ins)
  if name in _OWN:
    return [union(ins) | names_in(eqn) & scope.axes] * count
  if anatomy.REDUCTIONS[eqn.primitive] or name == 'pbroadcast':
    return coarse.reduced(eqn, ins)
  if foreign(eqn):
    if eqn.outvars:
      scope.unknown(eqn)
    return [scope.axes] * count
  return [union(ins)] * count


def of_jaxpr(jaxpr: Any, ins: Sequence[Axes], scope: Scope) -> list[Axes]:
  """The axes along which a jaxpr's results may differ."""
  jaxpr = jaxprs.open_jaxpr(jaxpr)
  at = dict(zip(jaxpr.invars, ins))
  read = lambda v: (NO_AXES if isinstance(v, core.Literal)
                    else at.get(v, NO_AXES))
  for eqn in jaxpr.eqns:
    at.update(zip(eqn.outvars,
                  of_results(eqn, list(map(read, eqn.invars)), scope)))
  return list(map(read, jaxpr.outvars))


def of_loop(loop: anatomy.Loop, ins: Sequence[Axes], scope: Scope,
            predicate=None) -> tuple[list[Axes], list[Axes]]:
  """The least axes of a loop's inputs that hold in each round, and results'.

  Args:
    loop: its parts.
    ins: of all inputs of its body, at first.
    scope: where the loop stands.
    predicate: gives the predicate's axes, by the carries', if there is one.
  """
  body = loop.body
  return coarse.solved(
      loop, ins, lambda ins: of_jaxpr(body, ins, scope), predicate,
      lambda n: body.outvars[n] is not body.invars[loop.own[n]])[:2]


def of_while(eqn: core.JaxprEqn, ins: Sequence[Axes],
             scope: Scope) -> tuple[list[Axes], Axes]:
  """The axes of a while loop's carries, and of its predicate."""
  loop = anatomy.while_loop(eqn.params)
  tests = ins[:loop.tests]

  def predicate(carries):
    return of_jaxpr(loop.predicate, [*tests, *carries], scope)[0]

  ends, _ = of_loop(loop, ins[loop.tests:], scope, predicate)
  return ends[loop.consts:], predicate(ends[loop.consts:])


def _while(eqn, ins, scope) -> list[Axes]:
  return of_while(eqn, ins, scope)[0]


def of_scan(eqn: core.JaxprEqn, ins: Sequence[Axes],
            scope: Scope) -> tuple[list[Axes], list[Axes]]:
  """The axes of a scan's inputs, in its body, and of its results."""
  loop = anatomy.scan(eqn.params)
  ins, outs = of_loop(loop, ins, scope)
  return ins, [*loop.split(ins)[2], *outs[loop.carries:]]


def _scan(eqn, ins, scope) -> list[Axes]:
  return of_scan(eqn, ins, scope)[1]


def _cond(eqn, ins, scope) -> list[Axes]:
  each = [of_jaxpr(b, ins[1:], scope) for b in anatomy.branches(eqn.params)]
  return [union(outs) | ins[0] for outs in zip(*each)]


def at_entry(parts: manual_maps.ManualMap, ins: Sequence[Axes],
             axes: Axes) -> list[Axes]:
  """The axes of a shard_map's arguments inside of it."""
  return [a | manual_maps.named(s) & axes for a, s in zip(ins, parts.in_specs)]


def _shard_map(eqn, ins, scope) -> list[Axes]:
  parts = manual_maps.of(eqn)
  sizes = parts.mesh.shape
  own = frozenset(a for a in parts.manual if sizes[a] > 1)
  outs = of_jaxpr(eqn.params['jaxpr'], at_entry(parts, ins, own),
                  Scope(scope.axes | own, scope.unknown))
  return [a - own for a in outs]


_RULES: dict[str, Callable] = {
    'while': _while, 'scan': _scan, 'cond': _cond, 'shard_map': _shard_map}
