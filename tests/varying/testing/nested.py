# SPDX-License-Identifier: Apache-2.0
"""What the tests of nested shard_maps share: programs, and an oracle.

Each program is of a's rows, split over 'x' outside, and of b's rows, split over
'y' inside.
"""
import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

A, B = np.random.RandomState(0).uniform(.5, 1.5, (2, 4, 6)).astype(np.float32)


def product(a, b):
  return jnp.sin(a) * b


def summed(a, b):
  c = product(a, b)
  return c + lax.psum(c, 'y')


def looped(a, b):
  # The carry starts with what 'y' leaves alone.
  return lax.fori_loop(0, 3, lambda i, c: jnp.cos(c) * b + a, a)


def branched(a, b):
  return lax.cond(jnp.sum(b) > 12., lambda: a * b, lambda: a)


PROGRAMS = [product, summed, looped, branched]


def unnested(f):
  """The program on one device: 'x' by hand, 'y' as an axis of vmap."""
  def g(a, b):
    parts = jax.vmap(f, (None, 0), axis_name='y')
    return jnp.concatenate([
        parts(rows, b.reshape(2, 2, 6)).reshape(4, 6)
        for rows in a.reshape(2, 2, 6)])
  return g
