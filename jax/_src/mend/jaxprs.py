# SPDX-License-Identifier: Apache-2.0
"""Opening jaxprs, finding and changing those in parameters, binding again."""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
import functools
import operator
from typing import Any

from jax._src import core
from jax._src.mend import releases
from jax._src import source_info_util

import numpy as np

CLASSES = releases.jaxpr_classes()

_var: Any = core.Var  # what it takes differs by release
# A new variable of a type.
new_var: Callable[[Any], core.Var] = (
    functools.partial(_var, '') if releases.variables_have_suffixes()
    else _var)


# Every call asks its jaxpr for these: in the fewest steps.
effects_of_closed: Callable[[Any], Any] = operator.attrgetter(
    '_effects' if len(CLASSES) == 1 else '_jaxpr._effects')
effects_of_open: Callable[[Any], Any] = operator.attrgetter('_effects')
traced_for: Callable[[Any], str] = operator.attrgetter('_debug_info.traced_for')


def open_jaxpr(jaxpr) -> core.Jaxpr:
  """The jaxpr itself, of a closed or an open one."""
  return jaxpr if isinstance(jaxpr, core.Jaxpr) else jaxpr.jaxpr


def reclose(like, jaxpr: core.Jaxpr):
  """Closes ``jaxpr`` over the constants of ``like`` if ``like`` is closed."""
  inner = open_jaxpr(like)
  if inner is jaxpr:
    return like
  return jaxpr if inner is like else like.replace(jaxpr=jaxpr)


def replace_inputs(jaxpr: core.Jaxpr, inputs: Sequence[core.Var],
                   **others: Any) -> core.Jaxpr:
  """``jaxpr.replace`` of a jaxpr's inputs, with debug info that fits them.

  ``replace`` keeps the names of the arguments as they are, up to 0.7.1, however
  many inputs there are then, and from 0.7.2 on gives up all of them, which the
  derivative of a while loop can't do without up to 0.9.2.

  Args:
    jaxpr: the jaxpr.
    inputs: the new inputs. One that was an input keeps its name. Of as many as
      before, any other has the name that its place had; of more or fewer it
      has none.
    **others: as ``replace`` takes them; with as many results as before.

  Returns:
    The jaxpr with these inputs.
  """
  info, old = jaxpr.debug_info, jaxpr.invars
  names = info.arg_names
  if names is not None:
    names = tuple(names) if len(names) == len(old) else ('',) * len(old)
    known = dict(zip(old, names))
    rest = names if len(inputs) == len(old) else ('',) * len(inputs)
    names = tuple(map(known.get, inputs, rest))
  return jaxpr.replace(invars=list(inputs), **others,
                       debug_info=info._replace(arg_names=names))


def map_jaxprs(f: Callable[[core.Jaxpr], core.Jaxpr], value: Any) -> Any:
  """A parameter with ``f`` of each jaxpr in it; itself if ``f`` changes none.

  Traced functions and the operations that hold them stay as they are.
  """
  kind = type(value)
  if kind in CLASSES:
    return reclose(value, f(open_jaxpr(value)))
  if isinstance(value, (tuple, list)):
    new = [map_jaxprs(f, x) for x in value]
    if all(map(operator.is_, new, value)):
      return value
    return kind(*new) if hasattr(value, '_fields') else kind(new)
  if isinstance(value, dict):
    new = [map_jaxprs(f, x) for x in value.values()]
    if all(map(operator.is_, new, value.values())):
      return value
    return kind(zip(value, new))
  return value


_PLAIN = frozenset([bool, int, float, str, type(None)])


def within(value: Any) -> Iterator[core.Jaxpr]:
  """The jaxprs, opened, that a parameter of an equation holds.

  It can be one, or a container of such, nested to any depth: the four of
  ``custom_linear_solve`` are in a named tuple. An operation that is a parameter
  itself (``call_hi_primitive``, 0.12) holds traced functions.

  Not seen: those that a function is still to be traced to.
  """
  kind = type(value)
  if kind in _PLAIN:
    return
  if kind in CLASSES:
    yield open_jaxpr(value)
  elif kind is tuple and _PLAIN.issuperset(map(type, value)):
    return
  elif isinstance(value, (tuple, list)):
    for x in value:
      if type(x) not in _PLAIN:
        yield from within(x)
  elif isinstance(value, dict):
    for x in value.values():
      yield from within(x)
  elif type(getattr(value, 'jaxpr', None)) in CLASSES:
    # A traced function.
    yield open_jaxpr(value.jaxpr)
  elif hasattr(value, 'in_avals_flat') and hasattr(value, 'params'):
    yield from within(value.params)


def in_params(params: dict[str, Any]) -> Iterator[core.Jaxpr]:
  """The jaxprs, opened, in the parameters of an equation."""
  for value in params.values():
    yield from within(value)


def is_one_number(atoms: Sequence[Any]) -> bool:
  """True if all are literals of one number, bit by bit.

  An array can be a literal, too, where ``jax_use_simplified_jaxpr_constants``
  is on: none of these is taken for another.
  """
  avals: list[Any] = [v.aval for v in atoms if type(v) is core.Literal]
  return len(avals) == len(atoms) and not any(a.shape for a in avals) and len({
      np.asarray(v.val, a.dtype).tobytes() for v, a in zip(atoms, avals)}) == 1


def written(x) -> set[int]:
  """The positions of the refs that an equation, or a jaxpr, writes to."""
  if not x.effects:
    return set()
  from jax._src.state import types as state  # imports core
  named = releases.effects_name_variables()
  effects: list[Any] = [e for e in x.effects if isinstance(
      e, (state.WriteEffect, state.AccumEffect))]
  refs = [e.input if named else e.input_index for e in effects]
  return {n if isinstance(n, int) else x.invars.index(n) for n in refs
          if isinstance(n, int) or n in x.invars} if refs else set()


def bind_again(eqn: core.JaxprEqn, values: Sequence[Any],
               params: dict[str, Any]) -> list[Any]:
  """Binds an equation's primitive to other values, with these parameters.

  Returns:
    The results, in a list if there is one only, too.
  """
  found = eqn.primitive.get_bind_params(params)
  # Functions come first, and by themselves, until they joined the parameters.
  subfuns, params = found if isinstance(found, tuple) else ((), found)
  outs = eqn.primitive.bind(*subfuns, *values, **params)
  return list(outs) if eqn.primitive.multiple_results else [outs]


def with_output(jaxpr: core.Jaxpr, primitive: core.Primitive,
                params: dict[str, Any], aval: Any = None) -> core.Jaxpr:
  """A jaxpr whose one output is one more operation's.

  Args:
    jaxpr: it.
    primitive: the operation, of the output.
    params: its parameters.
    aval: its type; by default the output's.
  """
  out, = jaxpr.outvars
  new = new_var(aval or out.aval)
  source = (jaxpr.eqns[-1].source_info if jaxpr.eqns else
            source_info_util.current())
  eqn = core.new_jaxpr_eqn([out], [new], primitive, params, core.no_effects,
                           source)
  return jaxpr.replace(outvars=[new], eqns=[*jaxpr.eqns, eqn],
                       debug_info=jaxpr.debug_info)
