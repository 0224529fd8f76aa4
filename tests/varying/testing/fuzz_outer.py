# SPDX-License-Identifier: Apache-2.0
"""What a random program's shard_map stands in: transformations around it.

Each takes a function of the arguments to a loss and results, and gives another.
"""
import jax
from jax import lax
import jax.numpy as jnp


def _two(x):
  return jnp.stack([x, x * .7])


def _first(losses_and_outs):
  losses, outs = losses_and_outs
  return jnp.sum(losses), jax.tree.map(lambda o: o[0], outs)


def _scanned(f):
  def outer(*args):
    def step(carried, xs):
      loss, outs = f(*(c + x for c, x in zip(carried, xs)))
      return tuple(c * .9 for c in carried), (loss, outs)
    return _first(lax.scan(step, args, [_two(x) * .5 for x in args])[1])
  return outer


# What the shard_map stands in, given its loss and results.
OUTER = dict(
    plain=lambda f: f,
    vmap=lambda f: lambda *args: _first(jax.vmap(f)(*map(_two, args))),
    vmap_of_some=lambda f: lambda *args: _first(jax.vmap(
        f, [0 if i % 2 else None for i in range(len(args))])(
            *(_two(x) if i % 2 else x for i, x in enumerate(args)))),
    vmap_of_closure=lambda f: lambda a, *args: _first(jax.vmap(
        lambda x: f(x, *args))(_two(a))),
    scan=_scanned,
    cond=lambda f: lambda *args: lax.cond(
        jnp.sum(args[0]) < 100., f, lambda *a: jax.tree.map(
            lambda x: x * 0., f(*a)), *args),
    checkpoint=jax.checkpoint,
)
