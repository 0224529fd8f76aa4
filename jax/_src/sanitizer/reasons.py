# SPDX-License-Identifier: Apache-2.0
"""Why a cast, or a sum over devices, stands in a program.

Whose it is says the traceback that the equation keeps: where the user's line
calls ``pcast`` or ``pvary`` it is the user's own, and where it calls anything
else, JAX has put it in. A jaxpr that is made again at other types gives what it
puts in the source info of the equation that it is for; such a cast shares it
with an earlier equation, and can't be the user's. A sum over devices that no
collective of the user's made is a gradient's: the transpose of the cast on its
line.

Why it is there says what reads it: a carry of a loop, a branch, the result of
one, or an operation whose operands must be alike.

Limits: a program's own function named ``pcast`` in the folder of JAX, or a
library of functions that JAX takes for its own, is taken for JAX.

Cost: for each cast its jaxpr is walked once.
"""
from __future__ import annotations

import collections
from typing import Any, NamedTuple

from jax._src import core
from jax._src.lax import parallel
from jax._src.mend import anatomy
from jax._src.mend import source_lines
from jax._src.sanitizer import axes as axes_lib
from jax._src.sanitizer.annotated import Annotated
from jax._src.sanitizer import sites
import numpy as np

_OWN_CASTS = ('pcast', 'pvary')
# What reads their result is the reader.
PASSING = ('broadcast_in_dim', 'squeeze', 'transpose')


class Reason(NamedTuple):
  """A cast or a sum that was put in, and why.

  Attributes:
    what: the operand, as a literal or by its type.
    kind: 'cast' or 'sum', which JAX put in; 'own' is a cast of the user's.
    axes: over which, in order.
    text: a clause.
  """
  what: str
  kind: str
  axes: tuple
  text: str


def of(annotated: Annotated, eqn: core.JaxprEqn) -> Reason | None:
  """The reason that an equation was put in; None if the user wrote it."""
  axes = annotated.ordered(axes_lib.names_in(eqn))
  if not axes or not eqn.invars:
    return None
  called = source_lines.called(eqn)
  what = ', '.join(map(_operand, eqn.invars))
  if axes_lib.is_cast(eqn):
    if called in _OWN_CASTS and not _shares_its_source(annotated, eqn):
      return Reason(what, 'own', axes, 'your own cast')
    why = _why(annotated, eqn, called)
    return Reason(what, 'cast', axes, why) if why else None
  reduction = anatomy.REDUCTIONS[eqn.primitive]
  if reduction and reduction.how == 'psum' and not _is_collective(called):
    whose = 'your cast' if called in _OWN_CASTS else 'the cast'
    return Reason(what, 'sum', axes, f'the gradient of {whose} here: each '
                  'device has its own part of it')
  return None


def _is_collective(called: str) -> bool:
  """True of a function that users write: a sum traced in one is theirs."""
  function = vars(parallel).get(called)
  return called not in _OWN_CASTS and (
      getattr(function, '__module__', '') == parallel.__name__)


def _operand(v: Any) -> str:
  return (str(np.asarray(v.val)) if isinstance(v, core.Literal)
          else sites.type_text(v.aval))


def _shares_its_source(annotated: Annotated, eqn: core.JaxprEqn) -> bool:
  for other in annotated.jaxpr.eqns:
    if other is eqn:
      return False
    if other.source_info is eqn.source_info:
      return True
  return False


def quoted(axes: Any) -> str:
  return ', '.join(f"'{a}'" for a in axes)


def _why(annotated: Annotated, cast: core.JaxprEqn, called: str) -> str:
  """The reason of a cast, by the reader of its result; '' without one."""
  given = set(cast.outvars)
  new = axes_lib.names_in(cast).difference(*map(annotated.axes, cast.invars))
  for eqn in annotated.jaxpr.eqns:
    places = [n for n, x in enumerate(eqn.invars)
              if isinstance(x, core.Var) and x in given]
    if places and (axes_lib.is_cast(eqn) or axes_lib.name_of(
        eqn.primitive) in PASSING):
      given.add(eqn.outvars[0])
    elif places:
      return _read_by(annotated, eqn, places[0], new, called)
  if not any(isinstance(x, core.Var) and x in given
             for x in annotated.jaxpr.outvars):
    return ''
  if annotated.role in _RESULTS:
    return _RESULTS[annotated.role](annotated, new)
  return f'put in by `{called}`' if called else 'put in by JAX'


def _read_by(annotated: Annotated, eqn: core.JaxprEqn, place: int, new,
             called: str) -> str:
  name = axes_lib.name_of(eqn.primitive)
  if _is_collective(called):
    return f'the gradient of `{called}`'
  inner = annotated.inner.get(id(eqn), [])
  loop = anatomy.loop(eqn)
  if loop is not None and inner:
    n = place - loop.first
    if 0 <= n < loop.carries:
      return _carry(inner, name, n, new)
  if name == 'cond' and place and new & annotated.axes(eqn.invars[0]):
    return ('a branch reads it, and devices along '
            f'{quoted(annotated.ordered(new))} choose differently: its '
            'gradient is '
            'summed over all of them')
  if name == 'shard_map':
    return 'an argument of the shard_map'
  others = axes_lib.union(annotated.axes(x) for n, x in enumerate(eqn.invars)
                          if n != place)
  if new <= others:
    return (f'`{name}` takes operands that vary alike, and another varies over '
            f'{quoted(annotated.ordered(new))}')
  return f'put in for `{name}`'


def _carry(inner: list, name: str, n: int, new) -> str:
  body = inner[-1]
  loop = 'while loop' if name == 'while' else 'loop'
  said: dict[str, list] = {}
  for axis in body.ordered(new):
    where = _origin(body, n, axis)
    if where:
      text = ('it starts the same, and varies over {} from the first round on, '
              f'by {where}')
    elif name == 'while' and axis in inner[0].axes(inner[0].jaxpr.outvars[0]):
      text = ('its predicate varies over {}: devices go round it a different '
              'number of times')
    else:
      text = 'its body makes it vary over {}'
    said.setdefault(text, []).append(axis)
  return f'a carry of the {loop}: ' + '; '.join(
      text.replace('{}', quoted(axes), 1) for text, axes in said.items())


def _origin(body: Annotated, n: int, axis) -> str:
  """The place where a carry of a loop becomes varying; '' if there is none.

  The walk goes from the body's result back along what varies, past casts, and
  on with the round before.
  """
  jaxpr = body.jaxpr
  made_by = {v: eqn for eqn in jaxpr.eqns for v in eqn.outvars}
  loop = anatomy.loop(body.eqn)
  own = {jaxpr.invars[place]: jaxpr.outvars[m]
         for m, place in enumerate(loop.own if loop else ())}
  todo: collections.deque = collections.deque([(jaxpr.outvars[n], None)])
  seen: set = set()
  while todo:
    v, reader = todo.popleft()
    if isinstance(v, core.Literal) or v in seen or axis not in body.axes(v):
      continue
    seen.add(v)
    eqn = made_by.get(v)
    if eqn is None and v in own:
      todo.append((own[v], reader))
    elif eqn is None:
      return _spoken(reader) if reader is not None else ''
    elif not axes_lib.is_cast(eqn):
      if not any(axis in body.axes(x) for x in eqn.invars):
        return _spoken(eqn)
      todo += [(x, eqn) for x in eqn.invars]
  return ''


def _spoken(eqn: core.JaxprEqn) -> str:
  frame = next(source_lines.frames(eqn), None)
  text = sites.program_text(eqn)
  if frame is None or not text:
    return f'`{axes_lib.title_of(eqn.primitive)}`'
  return f'`{text}` in line {frame.start_line}'


def _of_branch(annotated: Annotated, new) -> str:
  diverging = new & annotated.outer.axes(annotated.eqn.invars[0]) if (
      annotated.outer) else frozenset()
  if diverging:
    return ('the result of a branch that devices along '
            f'{quoted(annotated.ordered(diverging))} choose')
  return ("the result of a branch: another branch's varies over "
          f'{quoted(annotated.ordered(new))}')


def _of_body(annotated: Annotated, new) -> str:
  return 'a carry of the loop, which varies there at its start or elsewhere'


_RESULTS = {'branch': _of_branch, 'body': _of_body}
