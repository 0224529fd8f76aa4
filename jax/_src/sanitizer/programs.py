# SPDX-License-Identifier: Apache-2.0
"""Evaluates a program around its shard_maps, and these with comparisons.

Outside of a shard_map there is one value of everything, and nothing to compare.
Calls, loops and branches that hold a shard_map are made again, so that each of
its iterations is told apart; what holds none is bound as it is. A gradient that
was taken outside is in the jaxpr as a shard_map of its own, with its types.

Limits: what is neither a call, nor a loop, nor a branch, and holds a shard_map
(a reduction of the user's), is bound as it is and noted; so is a shard_map
whose specs say that values are (un)reduced.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
from jax import lax
from jax._src import core
from jax._src.mend import anatomy
from jax._src.mend import jaxprs
from jax._src.mend import manual_maps
from jax._src.sanitizer import axes as axes_lib
from jax._src.sanitizer import bodies
from jax._src.sanitizer import comparing
from jax._src.sanitizer import sites as sites_lib
import jax.numpy as jnp


class Around(NamedTuple):
  """The surroundings of an equation: the plan, the loops, their iterations."""
  plan: comparing.Plan
  loops: tuple = ()
  counters: Any = None

  def within(self, eqn: core.JaxprEqn, what: str) -> Callable[[Any], Around]:
    """The surroundings of the body of a loop, by its iteration."""
    loop = sites_lib.Loop(self.plan.number(),
                          f'{what} at {sites_lib.place(eqn)}')
    return lambda count: Around(
        self.plan, (*self.loops, loop),
        jnp.concatenate([self.counters, count[None]]))


def run(plan: comparing.Plan, jaxpr: Any, args: Sequence[Any]) -> list[Any]:
  """Evaluates a closed jaxpr on arguments, with comparisons."""
  # One more than there are loops, and so with coordinates: jaxlib 0.11.2 ends
  # the process where a callback in a shard_map has an empty operand.
  around = Around(plan, (), jnp.zeros(1, jnp.int32))
  return evaluate(around, *bodies.closed(jaxpr), args)


def evaluate(around: Around, jaxpr: core.Jaxpr, consts: Sequence[Any],
             args: Sequence[Any]) -> list[Any]:
  """Evaluates an open jaxpr; see ``run``."""
  env = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *args)))
  read = lambda v: v.val if isinstance(v, core.Literal) else env[v]
  for eqn in jaxpr.eqns:
    values = list(map(read, eqn.invars))
    outs = (_again(around, eqn, values) if _holds(eqn)
            else _as_it_is(eqn, values))
    env.update(zip(eqn.outvars, outs))
  return list(map(read, jaxpr.outvars))


def _holds(eqn: core.JaxprEqn) -> bool:
  """True if an equation is a shard_map or holds one."""
  return axes_lib.name_of(eqn.primitive) == 'shard_map' or any(
      _holds(e) for j in axes_lib.inner(eqn) for e in j.eqns)


def _as_it_is(eqn: core.JaxprEqn, values: Sequence[Any]) -> list[Any]:
  with bodies.context(eqn):
    return jaxprs.bind_again(eqn, values, eqn.params)


def _again(around: Around, eqn: core.JaxprEqn, values) -> list[Any]:
  name = axes_lib.name_of(eqn.primitive)
  if name in _RULES:
    return _RULES[name](around, eqn, values)
  if name in axes_lib.CALLS:
    return _call(around, eqn, values)
  around.plan.note(eqn)
  return _as_it_is(eqn, values)


def _shard_map(around: Around, eqn: core.JaxprEqn, values) -> list[Any]:
  parts = manual_maps.of(eqn)
  if any(map(manual_maps.partly_reduced, (*parts.in_specs, *parts.out_specs))):
    around.plan.note(eqn)
    return _as_it_is(eqn, values)
  outs, _ = bodies.mapped(around.plan, eqn, values,
                          [frozenset()] * len(values), None, around.loops,
                          around.counters)
  return outs


def _call(around: Around, eqn: core.JaxprEqn, values) -> list[Any]:
  values = _placed(values, eqn.params.get('in_shardings', ()))
  called, values = axes_lib.callee(eqn, values)
  outs = evaluate(around, *bodies.closed(called), values)
  return _placed(outs, eqn.params.get('out_shardings', ()))


def _placed(values: Sequence[Any], shardings: Sequence[Any]) -> list[Any]:
  """Constrains values to the shardings of a jit, if it names any."""
  if not any(isinstance(s, jax.sharding.Sharding) for s in shardings):
    return list(values)
  return [lax.with_sharding_constraint(v, s)
          if isinstance(s, jax.sharding.NamedSharding) else v
          for v, s in zip(values, shardings)]


def _scan(around: Around, eqn: core.JaxprEqn, values) -> list[Any]:
  params = eqn.params
  body, consts = bodies.closed(params['jaxpr'])
  loop = anatomy.scan(params)
  _, own, init, over = loop.split(values)
  inside = around.within(eqn, 'scan')

  def step(carry, xs):
    count, *carry = carry
    index = params['length'] - 1 - count if params['reverse'] else count
    outs = evaluate(inside(index), body, consts, [*own, *carry, *xs])
    return [count + 1, *outs[:loop.carries]], outs[loop.carries:]

  (_, *ends), ys = lax.scan(
      step, [jnp.int32(0), *map(jnp.asarray, init)], over,
      length=params['length'], reverse=params['reverse'],
      unroll=params['unroll'])
  return [*ends, *ys]


def _while(around: Around, eqn: core.JaxprEqn, values) -> list[Any]:
  params = eqn.params
  body, body_consts = bodies.closed(params['body_jaxpr'])
  cond, cond_consts = bodies.closed(params['cond_jaxpr'])
  tests, own, init, _ = anatomy.while_loop(params).split(values)
  inside = around.within(eqn, 'while loop')

  def goes_on(count, carry):
    pred, = evaluate(inside(count), cond, cond_consts, [*tests, *carry])
    return pred

  def step(state):
    count, pred, *carry = state
    outs = evaluate(inside(count), body, body_consts, [*own, *carry])
    outs = bodies.unfinished(pred, outs, carry)
    return [count + 1, goes_on(count + 1, outs), *outs]

  init = list(map(jnp.asarray, init))
  start = jnp.int32(0)
  return lax.while_loop(lambda state: jnp.any(state[1]), step,
                        [start, goes_on(start, init), *init])[2:]


def _cond(around: Around, eqn: core.JaxprEqn, values) -> list[Any]:
  index, *operands = values
  taken = [lambda *ops, b=b: evaluate(around, *bodies.closed(b), ops)
           for b in eqn.params['branches']]
  return lax.switch(index, taken, *operands)


_RULES: dict[str, Callable[..., list[Any]]] = {
    'shard_map': _shard_map, 'scan': _scan, 'while': _while, 'cond': _cond}
