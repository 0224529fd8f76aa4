# SPDX-License-Identifier: Apache-2.0
"""Axes along which values may differ, where types don't say.

With ``check_vma=False``, and up to 0.5.3, a jaxpr's types have no axes. They
are inferred (``mend.coarse``), by what values are. What runs code that isn't
JAX's and what holds jaxprs that no rule knows may differ along every axis, and
so may what is read from a ref: such values aren't compared, and their places
are noted.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from jax._src import core
from jax._src.mend import abstract
from jax._src.mend import anatomy
from jax._src.mend import coarse
from jax._src.mend import foreign
from jax._src.mend import jaxprs
from jax._src.mend.manual_axes import Axes

union, names_in, is_cast = coarse.union, coarse.names_in, anatomy.is_cast
at_entry = coarse.at_entry


def name_of(primitive: core.Primitive) -> str:
  """The name that rules have for a primitive; none for another library's."""
  return foreign.name_of(primitive).removesuffix('_p')


def title_of(primitive: core.Primitive) -> str:
  """A primitive's own name, whoever defined it."""
  return getattr(primitive, 'prim', primitive).name.removesuffix('_p')


# The primitives that call a jaxpr on their operands, or on some of them, and do
# no more; others that do have it compiled in a way of its own.
CALLS = {'custom_linear_solve', *anatomy.named(anatomy.CALLS)}.difference(
    anatomy.named(anatomy.CALLS, anatomy.COMPILED, anatomy.REMARKED))


def callee(eqn: core.JaxprEqn, operands: Sequence[Any]
           ) -> tuple[Any, list[Any]]:
  """The jaxpr of a call, and the operands that the call passes to it."""
  called = anatomy.called(eqn)
  assert called is not None
  return called.jaxpr, [operands[n] for n in called.operands if n is not None]


def inner(eqn: core.JaxprEqn) -> list[core.Jaxpr]:
  """The jaxprs in an equation's parameters."""
  return list(_jaxprs(tuple(eqn.params.values())))


def _jaxprs(value: Any) -> Iterator[core.Jaxpr]:
  if isinstance(value, jaxprs.CLASSES):
    yield jaxprs.open_jaxpr(value)
  elif isinstance(value, (tuple, list)):
    for each in value:
      yield from _jaxprs(each)


def communicates(jaxpr: core.Jaxpr) -> Axes:
  """The axes along which all devices are to reach something in a jaxpr."""
  found: Axes = Axes()
  for eqn in jaxpr.eqns:
    if not is_cast(eqn) and name_of(eqn.primitive) != 'axis_index' and (
        eqn.params.get('axis_index_groups') is None):
      found |= names_in(eqn)
    found |= union(map(communicates, inner(eqn)))
  return found


def setting(axes: Axes, note: Callable[[core.JaxprEqn], None] = lambda eqn: None
            ) -> coarse.Setting:
  """The setting in which nothing is believed of what no rule knows.

  Args:
    axes: those of more than one device that are manual.
    note: is called with each equation of which nothing is known.
  """
  def opaque(eqn: core.JaxprEqn, ins: Sequence[Axes], here: coarse.Setting
             ) -> coarse.Found | None:
    del ins
    if not coarse.is_opaque(eqn):
      return None
    if eqn.outvars:
      note(eqn)
    return coarse.Found([here.manual] * len(eqn.outvars))
  return coarse.Setting(axes, opaque)


def of_results(eqn: core.JaxprEqn, ins: Sequence[Axes],
               here: coarse.Setting) -> list[Axes]:
  """The axes along which an equation's results may differ.

  Args:
    eqn: the equation.
    ins: what its operands may differ along.
    here: where it stands.
  """
  return coarse.of_equation(eqn, ins, here).outs


def of_loop(eqn: core.JaxprEqn, ins: Sequence[Axes],
            here: coarse.Setting) -> abstract.Ends:
  """The axes of a loop's inputs and results, that hold in each round."""
  loop = anatomy.loop(eqn)
  assert loop is not None
  return abstract.of_loop(here, loop, ins)
