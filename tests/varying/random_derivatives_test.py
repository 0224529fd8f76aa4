# SPDX-License-Identifier: Apache-2.0
"""Random loops and branches that differentiate by what they carry.

Each program is a loop whose carry starts replicated and comes to vary. Inside
are loops and branches, up to four deep, whose predicates vary, and steps that
differentiate by the carries: in reverse and forward mode, twice, through loops,
branches, solvers, remat and rules. The oracle is the same program on each
device's row alone.

  MEND_FUZZ_PROGRAMS=200 MEND_FUZZ_SEED=1000 pytest random_derivatives_test.py
"""
import os
import random

import jax
from jax import lax
from jax._src import test_util as jtu
import jax.numpy as jnp
import numpy as np
from varying.testing.common import run_rows

jax.config.parse_flags_with_absl()

PROGRAMS = int(os.environ.get('MEND_FUZZ_PROGRAMS', '5'))
SEED = int(os.environ.get('MEND_FUZZ_SEED', '0'))
X = np.random.RandomState(0).uniform(.5, 1.5, (4, 3)).astype(np.float32)

@jax.custom_vjp
def ruled(y):
  return jnp.sin(y)


def _ruled_bwd(y, ct):
  return (jax.vjp(lambda y: lax.fori_loop(
      0, 2, lambda i, s: s * jnp.cos(s), jnp.sin(y)), y)[1](ct)[0],)


ruled.defvjp(lambda y: (ruled(y), y), _ruled_bwd)


def root(y, a):
  """The root of r + r ** 3 = y * a, by Newton's method, derived implicitly."""
  f = lambda r: r + r ** 3 - y * a
  def solve(f, r):
    step = lambda i, r: r - f(r) / jax.jvp(f, (r,), (jnp.ones(3),))[1]
    return lax.fori_loop(0, 6, step, r)
  return lax.custom_root(f, jnp.zeros(3), solve,
                         lambda g, b: b / g(jnp.ones(3)))


def solution(y, a):
  """The solution of a system of linear equations, by conjugate gradients."""
  matvec = lambda v: (1. + y ** 2) * v + .1 * jnp.sum(v)
  return jax.scipy.sparse.linalg.cg(matvec, a, maxiter=4)[0]


LOSSES = [  # of a carry and the device's row
    lambda y, a: jnp.sum(jnp.sin(y * a)),
    lambda y, a: jnp.sum((y - a) ** 2) * .5,
    lambda y, a: jnp.sum(jnp.tanh(y) * jnp.cos(a)),
    lambda y, a: jnp.sum(y * y * .3),
    lambda y, a: lax.fori_loop(0, 2, lambda i, s: s * .5 + jnp.sum(y * a), 0.),
    lambda y, a: jnp.sum(
        lax.cond(jnp.sum(y) > .1, jnp.sin, jnp.cos, y)) * a[0],
    lambda y, a: lax.scan(lambda s, b: (s + jnp.sum(y) * b, None), 0., a)[0],
    lambda y, a: jnp.sum(root(y, a) * a),
    lambda y, a: jnp.sum(solution(y, a)),
    lambda y, a: jnp.sum(lax.map(lambda b: jnp.sum(jnp.sin(y) * b), a)),
    lambda y, a: lax.associative_scan(jnp.multiply, y * a)[1],
    lambda y, a: jnp.sum(jnp.linalg.solve(
        jnp.eye(3) * 3. + jnp.outer(y, jnp.cos(y)), a)),
    lambda y, a: jnp.sum(jnp.sort(y * a)[:2]) + jax.nn.logsumexp(y),
]

REVERSE_LOSSES = [*LOSSES, lambda y, a: jnp.sum(ruled(y) * a)]

# Of a loss of one argument; at y, in the direction z.
FORWARD = [
    lambda f, y, z: jax.jacfwd(lambda y: f(y) * y)(y) @ z,
    lambda f, y, z: jax.jvp(f, (y,), (z,))[1] * y,
    lambda f, y, z: jax.linearize(f, y)[1](z) * y,
    lambda f, y, z: jax.linear_transpose(
        jax.linearize(f, y)[1], z)(jnp.sum(z))[0],
    lambda f, y, z: jax.jvp(jax.grad(f), (y,), (z,))[1],
]

REVERSE = [
    lambda f, y, z: jax.grad(f)(y),
    lambda f, y, z: jax.jacrev(lambda y: f(y) * y)(y) @ z,
    lambda f, y, z: jax.grad(lambda y: jnp.sum(jax.grad(f)(y) * z))(y),
    lambda f, y, z: jax.vjp(lambda y: f(y) * y, y)[1](z)[0],
    lambda f, y, z: jax.grad(jax.checkpoint(f))(y),
    lambda f, y, z: jax.jit(jax.grad(f))(z),
    lambda f, y, z: jnp.sum(jax.vmap(jax.grad(f))(jnp.stack([y, z])), 0),
    lambda f, y, z: jax.value_and_grad(lambda p: f(p['y']) * f(p['z']))(
        {'y': y, 'z': z})[1]['y'],
]


def make_step(rng):
  derivative = rng.choice(FORWARD + REVERSE)
  loss = rng.choice(LOSSES if derivative in FORWARD else REVERSE_LOSSES)
  return lambda y, z, a: y * .5 - .1 * derivative(lambda y: loss(y, a), y, z)


def make_block(rng, depth):
  """A function of two carries and the row: the first carry's new value."""
  if not depth:
    return make_step(rng)
  inner = make_block(rng, depth - 1)
  other = make_block(rng, depth - 1) if rng.random() < .5 else None
  bound, trips, swap = rng.uniform(2, 4), rng.randrange(1, 4), rng.random() < .5

  def step(c, a):
    y, z = c
    return inner(y, z, a), y if swap else z

  def cond(y, z, a):
    return lax.cond(jnp.sum(a) > bound, lambda: inner(y, z, a),
                    lambda: other(y, z, a) if other else z)

  def fori(y, z, a):
    return lax.fori_loop(0, trips, lambda i, c: step(c, a), (y, z))[0]

  def scan(y, z, a):
    body = lambda c, _: (step(c, a), None)
    return lax.scan(body, (y, z), None, length=trips)[0][0]

  def loop(y, z, a):
    more = lambda c: (c[1] < trips) & (jnp.sum(a) * .5 > c[1])
    body = lambda c: (step(c[0], a), c[1] + 1)
    return lax.while_loop(more, body, ((y, z), 0))[0][0]

  def call(y, z, a):
    return jax.jit(inner)(y, z, a) + (other(y, z, a) * .1 if other else z)

  return rng.choice([cond, fori, scan, loop, call])


def make_program(seed):
  rng = random.Random(seed)
  block = make_block(rng, rng.randrange(1, 5))
  scanned = rng.random() < .5

  def program(a):
    def body(c):
      y, z = c
      return block(y, z, a) + .01 * a, y * .5  # so that both carries vary
    start = jnp.full(3, .3), jnp.full(3, .2)
    if scanned:
      return lax.scan(lambda c, _: (body(c), None), start, None, length=2)[0][0]
    return lax.while_loop(lambda c: c[1] < 2, lambda c: (body(c[0]), c[1] + 1),
                          (start, 0))[0][0]
  return program


class RandomDerivativesTest(jtu.JaxTestCase):

  def test_programs(self):
    for seed in range(SEED, SEED + PROGRAMS):
      with self.subTest(seed=seed):
        f = make_program(seed)
        want = np.stack(list(map(jax.jit(f), X)))
        got = run_rows(f, ('1d' if seed % 2 else '2d', True), X)
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4)
