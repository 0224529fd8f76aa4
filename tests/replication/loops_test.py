# SPDX-License-Identifier: Apache-2.0
"""while_loop, fori_loop and scan in shard_map with check_rep=True."""
from unittest import mock

from absl.testing import parameterized
import jax
from jax import lax
from jax._src import test_util as jtu
from jax.experimental import shard_map as shard_map_lib
from jax.experimental.shard_map import shard_map
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
import numpy as np
from testing.red import red
from testing.sharding import eight_devices

jax.config.parse_flags_with_absl()
eight_devices()


def mesh_1d(n=4):
  return Mesh(np.array(jax.devices()[:n]), ('i',))


def mesh_2d():
  return Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ('i', 'j'))


def smap(mesh, in_specs, out_specs):
  return lambda f: shard_map(f, mesh=mesh, in_specs=in_specs,
                             out_specs=out_specs)


def eager_and_jit(cls):
  return parameterized.named_parameters(('_eager', lambda f: f),
                                        ('_jit', jax.jit))(cls)


def run_to_the_end(u, end=1.):
  """The time loop of jax#27664, on one device, in numpy."""
  u, t, n = np.array(u, np.float32), np.float32(0), 0
  while t < end:
    dt = min(np.float32(.3) / (1 + np.abs(u).max()), np.float32(end) - t)
    u, t, n = u + dt * np.sin(u), t + dt, n + 1
  return u, t, n


def time_loop(u, end=1.):
  """The same, on each device's part of `u`."""
  def body(c):
    u, t, n = c
    local = .3 / (1 + jnp.abs(u).max())
    dt = lax.pmin(jnp.minimum(local, end - t), 'i')
    return u + dt * jnp.sin(u), t + dt, n + 1
  return lax.while_loop(lambda c: c[1] < end, body, (u, jnp.float32(0), 0))


@red('^NotImplementedError: No replication rule for while')
class WhileTest(jtu.JaxTestCase):

  @eager_and_jit
  def test_adaptive_global_time_step(self, transform):
    u = np.linspace(0., 7., 8, dtype=np.float32)
    f = smap(mesh_1d(), P('i'), (P('i'), P(), P()))(time_loop)
    got, t, n = transform(f)(u)
    want, want_t, want_n = run_to_the_end(u)
    self.assertAllClose(got, want, rtol=1e-5, check_dtypes=False)
    self.assertAllClose(t, want_t, rtol=1e-5, check_dtypes=False)
    self.assertEqual(n, want_n)

  @eager_and_jit
  def test_fixed_point_in_every_step(self, transform):
    u = np.linspace(0., 1., 8, dtype=np.float32)

    def solve(u0):
      def body(c):
        w = .5 * jnp.cos(c[0]) + u0
        return w, lax.pmax(jnp.abs(w - c[0]).max(), 'i'), c[2] + 1
      return lax.while_loop(lambda c: c[1] > 1e-4, body, (u0, jnp.inf, 0))

    @smap(mesh_1d(), P('i'), (P('i'), P(), P()))
    def f(u):
      def step(u, _):
        v, residual, n = solve(u)
        return .5 * v, (residual, n)
      u, (residuals, n) = lax.scan(step, u, None, length=3)
      return u, residuals, n

    got, residuals, n = transform(f)(u)
    want, want_residuals, want_n = u, [], []
    for _ in range(3):
      v, residual, k = want, np.inf, 0
      while residual > 1e-4:
        w = np.float32(.5) * np.cos(v) + want
        v, residual, k = w, np.abs(w - v).max(), k + 1
      want = np.float32(.5) * v
      want_residuals.append(residual)
      want_n.append(k)
    self.assertAllClose(got, want, rtol=1e-5, check_dtypes=False)
    self.assertAllClose(residuals, np.array(want_residuals), atol=1e-6,
                        check_dtypes=False)
    self.assertArraysEqual(n, np.array(want_n, n.dtype))

  def test_fori_loop_with_traced_bounds(self):
    f = smap(mesh_1d(), (P('i'), P()), P('i'))(
        lambda x, n: lax.fori_loop(0, n, lambda i, c: c * 2 + i, x))
    x = np.arange(8.)
    want = x
    for i in range(3):
      want = want * 2 + i
    self.assertAllClose(jax.jit(f)(x, 3), want, check_dtypes=False)
    self.assertAllClose(f(x, 3), want, check_dtypes=False)

  def count_up(self, out_spec_of_w, out_spec_of_n):
    # Each device counts up to its own entry of x; w is handed through.
    @smap(mesh_1d(), (P('i'), P()), (P('i'), out_spec_of_w, out_spec_of_n))
    def f(x, w):
      limit = x[0]
      x, w, n = lax.while_loop(lambda c: c[2] < limit,
                               lambda c: (c[0] * c[1], c[1], c[2] + 1),
                               (x.astype('float32'), w, 0))
      return x, w, n[None] if out_spec_of_n == P('i') else n
    return jax.jit(f)(np.array([0, 3, 1, 2]), 2.)

  def test_what_a_varying_predicate_decides_varies(self):
    x, w, n = self.count_up(P(), P('i'))
    self.assertAllClose(x, np.array([0., 24., 2., 8.]), check_dtypes=False)
    self.assertAllClose(n, np.array([0, 3, 1, 2]), check_dtypes=False)
    # The body returns w as it is: after any number of trips it is the same.
    self.assertAllClose(w, 2., check_dtypes=False)

  def test_varying_count_is_not_replicated(self):
    with self.assertRaisesRegex(ValueError, 'out_specs'):
      self.count_up(P(), P())

  def test_two_axes_are_told_apart(self):
    @smap(mesh_2d(), (P('i', 'j'), P('j')), (P('i', 'j'), P('j'), P()))
    def f(x, y):
      def body(c):
        x, y, t = c
        s = lax.pmax(x.max(), ('i', 'j'))
        return x / 2, y + lax.psum(x.sum(1), 'i').sum(), t + s
      return lax.while_loop(lambda c: c[2] < 10., body,
                            (x, y, jnp.float32(0)))

    x = np.arange(16., dtype=np.float32).reshape(4, 4) + 1
    y = np.zeros(2, np.float32)
    gx, gy, gt = jax.jit(f)(x, y)
    t = 0.
    while t < 10:
      t, y, x = t + x.max(), y + x.sum(0).reshape(2, 2).sum(1), x / 2
    self.assertAllClose(gx, x, check_dtypes=False)
    self.assertAllClose(gy, y, check_dtypes=False)
    self.assertAllClose(gt, t, check_dtypes=False)

  @parameterized.named_parameters(
      ('_scan', lambda f: lambda x: lax.scan(
          lambda c, _: (f(c), None), x, None, length=2)[0], 64),
      ('_cond', lambda f: lambda x: lax.cond(
          lax.psum(x.sum(), 'i') > 0, f, lambda x: x, x)),
      ('_while', lambda f: lambda x: lax.while_loop(
          lambda c: c[1] < 2, lambda c: (f(c[0]), c[1] + 1), (x, 0))[0], 64),
      ('_remat', jax.checkpoint),
      ('_jit', jax.jit),
      ('_custom_jvp', lambda f: jax.custom_jvp(f)),
      ('_custom_vjp', lambda f: jax.custom_vjp(f)),
      ('_vmap', lambda f: lambda x: jax.vmap(f)(x.reshape(2, 1)).reshape(2)),
  )
  def test_nested_in(self, wrap, factor=8):
    def double(x):
      return lax.while_loop(lambda c: c[1] < 3, lambda c: (c[0] * 2, c[1] + 1),
                            (x, 0))[0]
    f = wrap(double)
    if isinstance(f, jax.custom_jvp):
      f.defjvp(lambda p, t: (double(*p), t[0] * 8))
    elif isinstance(f, jax.custom_vjp):
      f.defvjp(lambda x: (double(x), None), lambda _, ct: (ct * 8,))
    x = np.arange(8., dtype=np.float32)
    got = jax.jit(smap(mesh_1d(), P('i'), P('i'))(f))(x)
    self.assertAllClose(got, x * factor, check_dtypes=False)

  def test_vmap_of_the_shard_map(self):
    f = smap(mesh_1d(2), (P('i'), P()), (P('i'), P()))(
        lambda x, n: lax.while_loop(
            lambda c: c[1] > 0, lambda c: (c[0] * 2, c[1] - 1), (x, n)))
    x, n = np.ones((3, 4), np.float32), np.array([0, 1, 3])
    y, m = jax.jit(jax.vmap(f))(x, n)
    self.assertAllClose(y, x * 2. ** n[:, None], check_dtypes=False)
    self.assertAllClose(m, np.zeros(3, m.dtype))

  def test_forward_mode(self):
    def body(x, w, n):
      return lax.fori_loop(0, n, lambda i, c: jnp.sin(c * w), x)
    f = smap(mesh_1d(2), (P('i'), P(), P()), P('i'))(body)
    x, w = np.linspace(0., 1., 4, dtype='float32'), np.float32(1.5)
    push = lambda x, w, n: jax.jvp(
        lambda x, w: f(x, w, n), (x, w), (x + 1, jnp.ones_like(w)))
    want = jax.jvp(lambda x, w: body(x, w, 3), (x, w), (x + 1, np.ones_like(w)))
    self.assertAllClose(jax.jit(push)(x, w, 3), want, rtol=1e-5,
                        check_dtypes=False)
    self.assertAllClose(push(x, w, 3), want, rtol=1e-5, check_dtypes=False)

  def test_forward_mode_inside(self):
    g = lambda w, x: lax.fori_loop(0, x[1].astype(int),
                                   lambda i, c: jnp.sin(c * w), x[0])
    f = smap(mesh_1d(2), (P('i'), P()), P('i'))(
        lambda x, w: jax.jacfwd(g)(w, x)[None])
    x, w = np.array([.5, 2., .25, 3.], np.float32), np.float32(1.5)
    want = [jax.jacfwd(lambda w: g(w, jnp.array(p)))(w) for p in (x[:2], x[2:])]
    self.assertAllClose(jax.jit(f)(x, w), np.array(want), rtol=1e-5,
                        check_dtypes=False)

  @eager_and_jit
  def test_gradient_beside_a_loop(self, transform):
    # The loop finds the step; the derivative does not pass through it.
    def loss(w, x, sum_over):
      t = lax.while_loop(lambda t: t < 1., lambda t: t * 2.,
                         lax.stop_gradient(sum_over(jnp.sum(x * x))) * 1e-3)
      return sum_over(jnp.sum(jnp.sin(w * x) * t))
    f = smap(mesh_1d(2), (P(), P('i')), P())(
        lambda w, x: loss(w, x, lambda v: lax.psum(v, 'i')))
    x, w = np.linspace(0., 1., 4, dtype='float32'), np.float32(1.5)
    got = transform(jax.grad(f))(w, x)
    want = jax.grad(lambda w: loss(w, x, lambda v: v))(w)
    self.assertAllClose(got, want, rtol=1e-5, check_dtypes=False)

  def test_collective_in_a_divergent_loop_is_refused(self):
    @smap(mesh_1d(), P('i'), P('i'))
    def f(x):
      limit = x[0]
      return lax.while_loop(lambda c: c.sum() < limit,
                            lambda c: c + lax.psum(c, 'i'), x)
    with self.assertRaisesRegex(
        ValueError, r"psum over mesh axis 'i'.*lax.while_loop, at .*"
        r"loops_test.py.*varies over 'i'.*lax.pmax"):
      jax.jit(f)(np.ones(8, np.float32))

  def test_collective_in_a_divergent_predicate_is_refused(self):
    @smap(mesh_1d(), P('i'), P('i'))
    def f(x):
      limit = x[0]
      return lax.while_loop(
          lambda c: (c.sum() < limit) & (lax.pmax(c.max(), 'i') < 8),
          lambda c: c + 1, x)
    with self.assertRaisesRegex(ValueError, "pmax over mesh axis 'i'"):
      f(np.ones(8, np.float32))

  def test_collective_over_another_axis_is_accepted(self):
    @smap(mesh_2d(), (P('i', 'j'), P('i')), P('i', 'j'))
    def f(x, limit):
      def body(c):
        return c[0] + lax.psum(c[0], 'j'), c[1] + 1
      return lax.while_loop(lambda c: c[1] < limit[0], body, (x, 0))[0]
    x, limit = np.arange(4., dtype=np.float32).reshape(2, 2), np.array([1, 3])
    want = x.copy()
    for row, n in enumerate(limit):
      for _ in range(n):
        want[row] = want[row] + want[row].sum()
    self.assertAllClose(jax.jit(f)(x, limit), want, check_dtypes=False)

  def test_empty_carry_and_no_trips(self):
    @smap(mesh_1d(), P('i'), P('i'))
    def f(x):
      lax.while_loop(lambda c: False, lambda c: (), ())
      return lax.while_loop(lambda c: c[0] < 0, lambda c: c * x, x * x)
    x = np.arange(4., dtype=np.float32)
    self.assertAllClose(jax.jit(f)(x), x * x, check_dtypes=False)

  def test_carry_of_keys_and_weak_types(self):
    @smap(mesh_1d(), (P('i'), P()), (P('i'), P()))
    def f(x, key):
      def body(c):
        x, key, n = c
        key, sub = jax.random.split(key)
        return x + jax.random.uniform(sub), key, n + 1.
      x, key, _ = lax.while_loop(lambda c: c[2] < 2.5, body, (x, key, 0.))
      return x, jax.random.key_data(key)
    x, key = np.arange(4., dtype=np.float32), jax.random.key(3)
    got, data = jax.jit(f)(x, key)
    for _ in range(3):
      key, sub = jax.random.split(key)
      x = x + jax.random.uniform(sub)
    self.assertAllClose(got, x, check_dtypes=False)
    self.assertArraysEqual(data, jax.random.key_data(key))


class TraceOnceTest(jtu.JaxTestCase):

  @red('^AssertionError: .*not less than 2')
  @parameterized.named_parameters(*[(f'_{d}', d) for d in (2, 4, 8)])
  def test_nested_body_is_rewritten_once(self, depth):
    def nest(f):
      # Another entry of the carry becomes varying at every level.
      return lambda c: lax.scan(lambda c, _: ((*c[1:], f(c)[0] + c[0]), None),
                                c, None, length=2)[0]
    f = lambda c: (jnp.sin(c[0]), *c[1:])
    for _ in range(depth):
      f = nest(f)
    rule = shard_map_lib._rewrite_rules[lax.sin_p]
    count = mock.Mock(side_effect=rule)
    with mock.patch.dict(shard_map_lib._rewrite_rules, {lax.sin_p: count}):
      g = smap(mesh_1d(), (P('i'), P()), P('i'))(
          lambda x, w: jnp.stack([*f((x[0], w, w))])[:1])
      jax.make_jaxpr(g)(np.ones(4, np.float32), np.float32(1))
    # On pristine: once for each guess and each check, to the power of depth.
    self.assertLess(count.call_count, 2)


class GuardTest(jtu.JaxTestCase):
  """Programs that worked before stay as they were."""

  def test_scan_of_one_type_has_no_casts(self):
    f = smap(mesh_1d(), P('i'), P('i'))(
        lambda x: lax.scan(lambda c, y: (c + y, c * y), x[0], x)[1])
    text = str(jax.make_jaxpr(f)(np.arange(8.)))
    self.assertNotIn('pbroadcast', text)

  def test_scan_casts_what_becomes_varying(self):
    f = smap(mesh_1d(), (P('i'), P()), P('i'))(
        lambda x, w: lax.scan(lambda c, y: (c + y, c - y), w, x)[1])
    text = str(jax.make_jaxpr(f)(np.arange(8.), 1.))
    self.assertEqual(text.count('pbroadcast'), 1)
    grad = jax.jit(jax.grad(lambda w: f(np.arange(8.), w).sum()))(1.)
    self.assertAllClose(grad, 8., check_dtypes=False)

  def test_false_claim_of_replication_is_refused(self):
    f = smap(mesh_1d(), P('i'), P())(
        lambda x: lax.scan(lambda c, y: (c + y, None), 0., x)[0])
    with self.assertRaisesRegex(ValueError, 'out_specs'):
      jax.jit(f)(np.arange(8.))
