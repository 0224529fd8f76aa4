# SPDX-License-Identifier: Apache-2.0
"""Casts by hand in what is traced again with promoted inputs.

The loops below descend along a gradient that their body takes by the carry. The
carry begins replicated and comes to vary, so the body is traced again with it
promoted; its loss has a cast of the carry, written for the first trace.
"""
from functools import partial

from absl.testing import parameterized
import jax
from jax import lax
from jax._src import core
from jax._src import test_util as jtu
import jax.numpy as jnp
import numpy as np
from testing.sharding import shard_map
from varying.testing.common import cast
from varying.testing.common import make_mesh
from jax.sharding import PartitionSpec as P
from testing.red import red

jax.config.parse_flags_with_absl()

# What pristine JAX says.
OTHER_EXPECTED_COTANGENT = ('^ValueError: unexpected JAX type .* for argument '
                            r'to vjp function: got float32\[\], but expected')
SCAN_CARRY = ('^TypeError: scan body function carry input and carry output '
              'must have equal types')
OTHER_EXPECTED_COTANGENT_BY_RELEASE = {
    '<0.6.1': OTHER_EXPECTED_COTANGENT,
    '>=0.6.1': SCAN_CARRY,
}

MESHES = {'1d': (4,), '2d': (2, 2), 'ones': (1, 4)}


def scan(step, init, xs):
  return lax.scan(lambda c, x: (step(c, x), None), init, xs)[0]


def fori(step, init, xs):
  return lax.fori_loop(0, 3, lambda i, c: step(c, jnp.asarray(xs)[i]),
                       init)


def while_loop(step, init, xs):
  return lax.while_loop(lambda c: c[0] < 3, lambda c: (
      c[0] + 1, step(c[1], jnp.asarray(xs)[c[0]])), (0, init))[1]


def jitted(step, init, xs):
  return scan(jax.jit(step), init, xs)


def nested(step, init, xs):
  return scan(lambda c, x: scan(step, c, x[None]), init, xs)


def remat(step, init, xs):
  return scan(jax.checkpoint(step), init, xs)


LOOPS = dict(scan=scan, fori=fori, while_loop=while_loop, jitted=jitted,
             nested=nested, remat=remat)


def descended(loop, by_hand, init, xs, times=1):
  """A carry after steps along ``times`` the gradient of its own loss."""
  def step(c, x):
    loss = lambda c: jnp.sum(by_hand(c)**2 * x + c * x)
    return c - .1 * times * jax.grad(loss)(c) + .2 * x
  return loop(step, init, xs)


class CastsTest(jtu.JaxTestCase):

  def setUp(self):
    super().setUp()
    rng = np.random.RandomState(0)
    self.init = rng.randn(3).astype('f')
    self.xs = rng.randn(4, 3, 3).astype('f')  # of four devices, three steps

  def expected(self, loop, times=1):
    return np.stack([descended(loop, lambda c: c, self.init, x, times)
                     for x in self.xs])

  def run_on(self, mesh, loop, by_hand, jit):
    mesh = make_mesh(*MESHES[mesh])
    axes = mesh.axis_names
    f = shard_map(
        lambda init, xs: descended(
            loop, partial(by_hand, axes), init, xs[0])[None],
        mesh=mesh, in_specs=(P(), P(axes)), out_specs=P(axes))
    return (jax.jit(f) if jit else f)(self.init, self.xs)

  @red({
      '<0.6.1': OTHER_EXPECTED_COTANGENT,
      '>=0.6.1':
          '^TypeError: while_loop body function carry input and carry output '
          'must have equal types',
  }, cases={'loop': 'while_loop'})
  @red(OTHER_EXPECTED_COTANGENT_BY_RELEASE)
  @parameterized.named_parameters(
      (f'_{loop}_{mesh}_{"jit" if jit else "eager"}', loop, mesh, jit)
      for n, loop in enumerate(LOOPS)
      for mesh, jit in (('1d' if n % 2 else 'ones', True), ('2d', n % 2 == 0)))
  def test_of_the_carry(self, loop, mesh, jit):
    loop = LOOPS[loop]
    got = self.run_on(mesh, loop, lambda axes, c: cast_now(c, axes), jit)
    self.assertAllClose(got, self.expected(loop), rtol=1e-5)

  @red(OTHER_EXPECTED_COTANGENT_BY_RELEASE)
  def test_by_pvary(self):
    pvary = getattr(lax, 'pvary', core.pvary)  # gone, but JAX's own calls stay
    got = self.run_on('1d', scan, lambda axes, c: pvary(c, axes), True)
    self.assertAllClose(got, self.expected(scan), rtol=1e-5)

  @red(SCAN_CARRY)
  def test_of_what_only_computes(self):
    # From 0.10 and 0.12 on, these are objects that hold their own types.
    traces = []
    def step(c, x):
      traces.append(c)
      c = jnp.sort(c)
      places = jnp.searchsorted(c, c * .5), jnp.nonzero(c > 0, size=3)[0]
      m, e = jnp.frexp(jnp.ldexp(c, 1) + x)
      return m + sum(n.astype(m.dtype) for n in (e, *places))
    got = jax.jit(shard_map(
        lambda c, xs: scan(step, c, xs[0])[None], mesh=make_mesh(4),
        in_specs=(P(), P('x')), out_specs=P('x')))(self.init, self.xs)
    self.assertLen(traces, 1)
    with jax.enable_checks(False):
      want = np.stack([scan(step, self.init, x) for x in self.xs])
    self.assertAllClose(got, want, rtol=1e-5)

  @red(OTHER_EXPECTED_COTANGENT_BY_RELEASE)
  @parameterized.parameters(True, False)
  def test_along_one_axis_and_then_both(self, jit):
    def by_hand(axes, c):
      return cast_now(cast_now(c * 1., axes[:1]), axes[1:])
    got = self.run_on('2d', scan, by_hand, jit)
    self.assertAllClose(got, self.expected(scan), rtol=1e-5)

  @red(OTHER_EXPECTED_COTANGENT_BY_RELEASE)
  @parameterized.parameters(True, False)
  def test_what_varies_along_one_axis_already(self, jit):
    # In the end the carry varies along 'x' alone, so its gradient, of a loss
    # that the cast makes vary along 'y', is the sum of two.
    mesh = make_mesh(2, 2)
    def f(init, xs):
      by_hand = lambda c: cast_now(c, ('x', 'y'))
      return descended(scan, by_hand, init, xs[0])[None]
    g = shard_map(f, mesh=mesh, in_specs=(P(), P('x')), out_specs=P(('x', 'y')))
    got = (jax.jit(g) if jit else g)(self.init, self.xs[:2])
    self.assertAllClose(got[::2], got[1::2])
    self.assertAllClose(got[::2], self.expected(scan, 2)[:2], rtol=1e-5)

  @red(OTHER_EXPECTED_COTANGENT_BY_RELEASE)
  def test_gradient_from_outside(self):
    mesh = make_mesh(4)
    def on_devices(init, xs):
      f = lambda init, xs: lax.psum(jnp.sum(descended(
          scan, lambda c: cast_now(c, ('x',)), init, xs[0])**2), 'x')
      return shard_map(f, mesh=mesh, in_specs=(P(), P('x')), out_specs=P())(
          init, xs)
    def on_one(init, xs):
      return sum(jnp.sum(descended(scan, lambda c: c, init, x)**2) for x in xs)
    got = jax.jit(jax.grad(on_devices, (0, 1)))(self.init, self.xs)
    self.assertAllClose(got, jax.grad(on_one, (0, 1))(self.init, self.xs),
                        rtol=1e-4)

  @red(SCAN_CARRY, cases=['scan'])
  @red('^TypeError: cond branches must have equal output types')
  @parameterized.parameters(('scan', True), ('cond', True), ('scan', False),
                            ('cond', False))
  def test_in_a_backward_rule(self, holder, jit):
    # Its function was traced for a weight that didn't vary.
    def product(by_hand):
      @jax.custom_vjp
      def times(w, x):
        return w * x
      def back(kept, ct):
        w, x = kept
        slope = jax.grad(lambda w: jnp.sum(by_hand(w)**2) / 2)(w)
        return x * ct, slope * ct
      times.defvjp(lambda w, x: (w * x, (w, x)), back)
      return times
    def loss(times, w, x):
      if holder == 'scan':
        y, _ = lax.scan(lambda c, _: (times(c, x), None), w, None, length=2)
      else:
        y = lax.cond(x[0] > 0, lambda w: times(w, x), lambda w: w * 2., w)
      return jnp.sum(y)
    by_hand = product(lambda w: cast_now(w, ('x',)))
    g = shard_map(
        lambda w, x: jax.grad(lambda x: loss(by_hand, w, x))(x[0])[None],
        mesh=make_mesh(4), in_specs=(P(), P('x')), out_specs=P('x'))
    got = (jax.jit(g) if jit else g)(self.init, self.xs[:, 0])
    want = np.stack([jax.grad(lambda x: loss(product(lambda w: w), self.init,
                                             x))(x) for x in self.xs[:, 0]])
    self.assertAllClose(got, want, rtol=1e-5)

  def test_where_nothing_is_traced_again_it_is_refused(self):
    # A guard: the cast of what varies by its own type is the user's mistake.
    mesh = make_mesh(4)
    f = shard_map(lambda x: cast_now(x, ('x',)), mesh=mesh, in_specs=P('x'),
                  out_specs=P('x'))
    with self.assertRaisesRegex(ValueError, 'pcast|pvary'):
      jax.jit(f)(self.xs)


def cast_now(x, axes):
  """A cast by a user who has not looked at what ``x`` varies along."""
  return cast(x, axes)
