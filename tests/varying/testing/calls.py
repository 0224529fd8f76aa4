# SPDX-License-Identifier: Apache-2.0
"""The ways in which a function is called, for tests of what reads a call.

Each way is a function of ``g, p, w, x`` that gives ``g(p, w, x)``, and passes
``p`` on in its own manner: as an argument or a captured value, with others that
are static, named, or left out, through loops, rules and traced jaxprs.
"""
import functools
from typing import Any, NamedTuple

import jax
from jax import lax
import jax.extend
import jax.numpy as jnp
from varying.testing.common import cast


def positional(g, p, w, x):
  return jax.jit(g)(p, w, x)


def keyword(g, p, w, x):
  return jax.jit(lambda p, w, x: g(p, w, x))(x=x, w=w, p=p)


def default_left_out(g, p, w, x):
  return jax.jit(lambda p, w, x, n=1.: n * g(p, w, x))(p, w, x)


def keyword_only(g, p, w, x):
  return jax.jit(lambda w, *, p, x: g(p, w, x))(w, x=x, p=p)


def static_first(g, p, w, x):
  return jax.jit(lambda n, p, w, x: n * g(p, w, x), static_argnums=0)(
      1., p, w, x)


def static_in_the_middle(g, p, w, x):
  f = jax.jit(lambda w, n, p, m, x: n * m * g(p, w, x), static_argnums=(1, 3))
  return f(w, 1., p, 1., x)


def static_by_name(g, p, w, x):
  f = jax.jit(lambda n, p, w, x: n * g(p, w, x), static_argnames='n')
  return f(p=p, w=w, x=x, n=1.)


class Model:
  """Has a jitted method, with itself as a static argument."""

  def __init__(self, g):
    self.g = g

  @functools.partial(jax.jit, static_argnums=0)
  def apply(self, p, w, x):
    return self.g(p, w, x)

  def __call__(self, p, w, x):
    return self.g(p, w, x)


def method(g, p, w, x):
  return Model(g).apply(p, w, x)


def callable_object(g, p, w, x):
  return jax.jit(Model(g))(p, w, x)


def partial(g, p, w, x):
  return jax.jit(functools.partial(g, p, x=x))(w)


class State(NamedTuple):
  unused: Any
  p: Any
  others: Any


def pytree(g, p, w, x):
  f = jax.jit(lambda s: g(s.p, *s.others['w']))
  return f(State(None, p, dict(a=(), w=(w, x))))


def captured(g, p, w, x):
  return jax.jit(lambda w: g(p, w, x))(w)


def checkpointed(g, p, w, x):
  return jax.checkpoint(g)(p, w, x)


def checkpointed_static(g, p, w, x):
  return jax.checkpoint(
      lambda n, p, w, x: n * g(p, w, x), static_argnums=(0,))(1., p, w, x)


def scanned(g, p, w, x):
  step = lambda c, p: (c, g(p, w, x))
  return lax.scan(step, 0, p[None])[1][0]


def scanned_reverse(g, p, w, x):
  step = lambda c, q: (g(q[0], w, q[1]) + 0. * c, None)
  return lax.scan(step, _like(g, p, w, x), (p[None], x[None]), reverse=True)[0]


def scanned_unrolled(g, p, w, x):
  step = lambda c, q: (c, g(q, w, x))
  return lax.scan(step, 0, jnp.stack([p, p]), unroll=2)[1][1]


def carried(g, p, w, x):
  def step(c, _):
    p, y = c
    return (p, g(p, w, x) + 0. * y), None
  return lax.scan(step, (p, _like(g, p, w, x)), None, length=1)[0][1]


def carried_beside_captured(g, p, w, x):
  own = 1. * x  # is hoisted into the loop
  def step(c, _):
    q, y = c
    return (q * 1., g(q, w, own) + 0. * y), None
  return lax.scan(step, (p, _like(g, p, w, x)), None, length=1)[0][1]


def in_while(g, p, w, x):
  body = lambda s: (s[0] + 1, s[1], g(s[1], w, x) + 0. * s[2])
  return lax.while_loop(lambda s: s[0] < 1, body, (
      0, p, _like(g, p, w, x)))[2]


def in_fori(g, p, w, x):
  body = lambda i, s: (s[0], g(s[0], w, x) + 0. * s[1])
  return lax.fori_loop(0, 1, body, (p, _like(g, p, w, x)))[1]


def mapped(g, p, w, x):
  return lax.map(lambda p: g(p, w, x), p[None])[0]


def operand_of_cond(g, p, w, x):
  return lax.cond(w < 9., lambda p: g(p, w, x), lambda p: g(p, w, x), p)


def operand_of_switch(g, p, w, x):
  return lax.switch(jnp.int32(w > 9.), [lambda q, p: g(p, w, x)] * 2, x, p)


def with_jvp(g, p, w, x):
  f = jax.custom_jvp(g)
  f.defjvp(lambda primals, tangents: jax.jvp(g, primals, tangents))
  return f(p, w, x)


def with_jvp_by_name(g, p, w, x):
  f = jax.custom_jvp(lambda p, w, x: g(p, w, x))
  f.defjvp(lambda primals, tangents: jax.jvp(g, primals, tangents))
  return f(p, x=x, w=w)


def with_vjp(g, p, w, x):
  return _rule(g)(p, w, x)


def with_vjp_by_name(g, p, w, x):
  return _rule(lambda p, w, x, n=1.: n * g(p, w, x))(p, x=x, w=w)


def with_vjp_nondiff(g, p, w, x):
  f = jax.custom_vjp(lambda n, p, w, x: n * g(p, w, x), nondiff_argnums=(0,))
  f.defvjp(lambda n, *args: (g(*args), args),
           lambda n, args, ct: jax.vjp(g, *args)[1](ct))
  return f(1., p, w, x)


def _rule(g):
  f = jax.custom_vjp(g)
  f.defvjp(lambda *args: (g(*args), args),
           lambda args, ct: jax.vjp(g, *args)[1](ct))
  return f


def with_vmap(g, p, w, x):
  f = jax.custom_batching.custom_vmap(g)
  f.def_vmap(lambda size, mapped, *args: (jax.vmap(
      g, [0 if m else None for m in mapped])(*args), True))
  return f(p, w, x)


def converted(g, p, w, x):
  f, consts = jax.closure_convert(lambda w: g(p, w, x), w)
  return f(w, *consts)


def converted_for_another(g, p, w, x):
  """What is hoisted agrees; it is called with the value that is given."""
  same = jnp.max(lax.all_gather(p, 'x'))
  f, consts = jax.closure_convert(lambda w: g(same, w, x), w)
  return f(w, *(p if c is same else c for c in consts))


def made_jaxpr(g, p, w, x):
  same = jnp.max(lax.all_gather(p, 'x'))
  closed = jax.make_jaxpr(g)(same, w, x)
  return jax.extend.core.jaxpr_as_fun(closed)(p, w, x)[0]


def eager(g, p, w, x):
  return g(p, w, x)


def _like(g, p, w, x):
  """A carry's initial value, that varies as the result may."""
  del g, p
  return cast(0. * w, 'x') + 0. * x


WAYS = {f.__name__: f for f in (
    positional, keyword, default_left_out, keyword_only, static_first,
    static_in_the_middle, static_by_name, method, callable_object, partial,
    pytree, captured, checkpointed, checkpointed_static, scanned,
    scanned_reverse, scanned_unrolled, carried, carried_beside_captured,
    in_while, in_fori, mapped, operand_of_cond, operand_of_switch, with_jvp,
    with_jvp_by_name, with_vjp, with_vjp_by_name, with_vjp_nondiff, with_vmap,
    converted, made_jaxpr, eager)}


def nested(*names):
  """One way within another, the outermost first."""
  def way(g, p, w, x):
    for name in reversed(names):
      g = functools.partial(WAYS[name], g)
    return g(p, w, x)
  return way
