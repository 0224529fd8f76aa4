# SPDX-License-Identifier: Apache-2.0
"""Loops in a shard_map with the check on need no annotations and are sound.

The oracle runs the same function on one device, under ``vmap`` with the mesh
axis' name, where nothing is typed.
"""
import contextlib
import functools
import importlib
import io
import os
import time
import traceback
import unittest

from absl.testing import parameterized
import jax
from jax import lax
from jax._src import config
from jax._src import test_util as jtu
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
import numpy as np
from testing.oracle import MeshTestCase
from testing.red import red
from testing.sharding import eight_devices, shard_map

config.parse_flags_with_absl()
eight_devices()

# What pristine JAX says.
UNEQUAL_TYPES = '^TypeError: .*must have equal types'
NOT_REFUSED = '^AssertionError: ValueError not raised'

MESHES = {'1d': ((2,), ('x',)), '2d': ((2, 2), ('x', 'y'))}


def make_mesh(name):
  shape, axes = MESHES[name]
  devices = np.array(jax.devices()[:np.prod(shape)]).reshape(shape)
  return Mesh(devices, axes)


def sharded(f, mesh, out_specs):
  return shard_map(f, mesh=mesh, in_specs=P('x'), out_specs=out_specs)


def emulated(f, x):
  """f on each half of x, on one device, outputs stacked along the axis."""
  return jax.vmap(f, axis_name='x')(x.reshape(2, -1, *x.shape[1:]))


def alone(f, *args):
  """f, compiled for one device; jax's own jaxprs aren't checked."""
  with jax.enable_checks(False):
    return jax.jit(f)(*args)


NEW_REF = {(0, 7, 0): 'jax.experimental.mutable_array',
           (0, 7, 1): 'jax.array_ref'}.get(
               jax.__version_info__, 'jax.new_ref')


def new_ref(x):
  """A ref, by the public name that the release has for it."""
  module, _, name = NEW_REF.rpartition('.')
  return getattr(importlib.import_module(module), name)(x)


def annotate(x):
  """The cast that a program needed where promotion wasn't automatic."""
  if hasattr(lax, 'pcast'):
    return lax.pcast(x, 'x', to='varying')
  return lax.pvary(x, 'x')


# Functions of a device's part of the input that give an array of rank one. A
# carry starts replicated in each and becomes varying.


def while_predicate(x):
  return lax.while_loop(lambda c: c < x[0], lambda c: c + 1., 0.)[None]


def while_body(x):
  body = lambda c: (c[0] + 1, c[1] + x.sum())
  return lax.while_loop(lambda c: c[0] < 3, body, (0, 0.))[1][None]


def while_chain(x):  # a needs three rounds: d varies, then c, then b, then a
  def body(s):
    i, a, b, c, d = s
    return i + 1, a + b, b + c, c + d, d + x[0]
  return lax.while_loop(lambda s: s[0] < 5, body, (0, 0., 1., 2., 3.))[1][None]


def while_zero_trips(x):
  return lax.while_loop(lambda c: c < -1., lambda c: c + x[0], 0.)[None]


def fori_bound(x):
  return lax.fori_loop(0, x[0].astype(int), lambda i, c: c + i, 0)[None]


def fori_static(x):
  return lax.fori_loop(0, 3, lambda i, c: c * 2. + x[i % 2], 1.)[None]


def scan_carry(x):
  carry, ys = lax.scan(lambda c, a: (c + a, c * a), 0., x)
  return jnp.append(ys, carry)


def scan_weak_type(x):  # the carry is promoted to float32, and to varying
  return lax.scan(lambda c, a: (c + a, None), 0, x)[0][None]


def scan_reset(x):  # the body's output varies less than its input
  return lax.scan(lambda c, a: (0., c + a), x[0], x)[1]


def scan_unroll(x):
  return lax.scan(lambda c, a: (c + a, c), 0., x, unroll=2)[1]


def scan_reverse_pytree(x):
  def body(c, a):
    return {'sum': c['sum'] + a, 'n': c['n'] + 1}, c['sum'] * c['n']
  return lax.scan(body, {'sum': 0., 'n': 0}, x, reverse=True)[1]


def scan_keys(x):
  def body(key, a):
    key = jax.random.fold_in(key, a.astype(int))
    return key, jax.random.uniform(key)
  return lax.scan(body, jax.random.key(0), x)[1]


def scan_jit_remat(x):
  @jax.jit
  @jax.checkpoint
  def body(c, a):
    return jnp.sin(c) + a, c
  return lax.scan(body, 0., x)[1]


def map_over(x):
  return lax.map(lambda a: lax.fori_loop(0, 2, lambda i, c: c + a, 0.), x)


def associative(x):
  ones = jnp.ones(x.shape)
  return lax.associative_scan(
      lambda a, b: (a[0] + b[0], a[1] * b[1] + a[0]), (x, ones))[1]


def nested(x):
  def outer(c, a):
    return lax.fori_loop(0, 2, lambda i, d: d * .5 + a, c), c
  carry, ys = lax.scan(outer, 0., x)
  return jnp.append(ys, carry)


def collective(x):
  def body(c, a):
    return c + lax.psum(c + a, 'x') / 4. + a, c
  return lax.scan(body, 0., x)[1]


def vmapped(x):
  return jax.vmap(lambda b: lax.while_loop(
      lambda c: c < b, lambda c: c + 1., 0.))(x)


def custom_rules(x):
  @jax.custom_vjp
  def f(c, a):
    return jnp.sin(c) * a
  f.defvjp(lambda c, a: (f(c, a), (c, a)),
           lambda r, g: (g * jnp.cos(r[0]) * r[1], g * jnp.sin(r[0])))
  @jax.custom_jvp
  def g(c):
    return jnp.cos(c)
  g.defjvp(lambda p, t: (g(*p), -jnp.sin(p[0]) * t[0]))
  return lax.scan(lambda c, a: (f(c, a) + g(c), c), .5, x)[1]


PROGRAMS = {f.__name__: f for f in [
    scan_reset, while_predicate, while_body, while_chain, while_zero_trips,
    fori_bound,
    fori_static, scan_carry, scan_weak_type, scan_unroll, scan_reverse_pytree,
    scan_keys, scan_jit_remat, nested, collective, vmapped, custom_rules,
    map_over]}
# Upstream accepted these, with a type that claimed too much.
RIGHT_BEFORE = {'fori_bound', 'vmapped', 'while_predicate'}
DIFFERENTIABLE = ['fori_static', 'scan_carry', 'scan_unroll', 'nested',
                  'scan_reverse_pytree', 'scan_jit_remat', 'collective',
                  'custom_rules', 'map_over']


# Values that are the same everywhere though others vary.


def untouched_carry(x):
  return lax.while_loop(lambda c: c[0] < x[0], lambda c: (c[0] + 1., c[1]),
                        (0., 7.))[1]


def counter(x):
  return lax.while_loop(lambda c: c[0] < 4, lambda c: (c[0] + 1, c[1] + x[0]),
                        (0, 0.))[0]


def global_time_step(x):
  def body(c):
    t, u = c
    dt = lax.pmin(1. / (1. + u[0]), 'x')
    return t + dt, u * (1. - dt)
  return lax.while_loop(lambda c: c[0] < 2., body, (0., x))[0]


def global_convergence(x):
  def go(c):
    return lax.pmax(jnp.abs(c[1]).max(), 'x') > .5
  return lax.while_loop(go, lambda c: (c[0] + 1, c[1] * .5), (0, x))[0]


PRECISE = {f.__name__: f for f in [
    untouched_carry, counter, global_time_step, global_convergence]}


class ShardMapLoopsTest(MeshTestCase):

  def setUp(self):
    super().setUp()
    self.x = jnp.array([1., 2., 3., 4.])

  def check(self, f, how, mesh):
    want = alone(functools.partial(emulated, f), self.x).reshape(-1)
    g = sharded(f, make_mesh(mesh), P('x'))
    got = (jax.jit(g) if how == 'jit' else g)(self.x)
    self.assertAllClose(got, want, check_dtypes=False)

  @red(NOT_REFUSED)
  @parameterized.parameters('jit', 'eager')
  def test_unsound_while(self, how):
    g = sharded(lambda x: while_predicate(x)[0], make_mesh('2d'), P())
    with self.assertRaisesRegex(ValueError, 'require replication'):
      (jax.jit(g) if how == 'jit' else g)(self.x)

  @red(NOT_REFUSED)
  def test_unsound_fori(self):
    g = sharded(lambda x: fori_bound(x)[0], make_mesh('1d'), P())
    with self.assertRaisesRegex(ValueError, 'require replication'):
      jax.jit(g)(self.x)

  @red('^TypeError: scan body function carry input and carry output must '
       'have equal types, but they')
  def test_unsound_nested(self):
    # The outer loop makes the inner one's bound vary, after it was typed.
    def f(x):
      def body(c, a):
        n, total = c
        inner = lax.while_loop(lambda s: s < n, lambda s: s + 1., 0.)
        return (n + a, total + inner), None
      return lax.scan(body, (0., 0.), x)[0][1]
    g = sharded(f, make_mesh('1d'), P())
    with self.assertRaisesRegex(ValueError, 'require replication'):
      jax.jit(g)(self.x)

  @red(UNEQUAL_TYPES)
  @parameterized.parameters(*sorted(set(PROGRAMS) - RIGHT_BEFORE))
  def test_jit(self, name):
    self.check(PROGRAMS[name], 'jit', '2d')

  @red(UNEQUAL_TYPES)
  @parameterized.parameters('while_chain', 'scan_carry', 'scan_keys')
  def test_eager(self, name):
    self.check(PROGRAMS[name], 'eager', '1d')

  @parameterized.product(name=sorted(RIGHT_BEFORE), how=['jit', 'eager'])
  def test_guard(self, name, how):
    self.check(PROGRAMS[name], how, '1d')

  @parameterized.parameters('while_predicate', 'scan_carry')
  def test_disable_jit(self, name):
    f = PROGRAMS[name]
    want = alone(functools.partial(emulated, f), self.x).reshape(-1)
    with jax.disable_jit():
      got = sharded(f, make_mesh('1d'), P('x'))(self.x)
    self.assertAllClose(got, want, check_dtypes=False)

  def test_associative_scan(self):
    self.check(associative, 'jit', '2d')

  @red(UNEQUAL_TYPES)
  def test_precise(self):
    self.check_replicated('counter')

  @parameterized.parameters(*sorted(set(PRECISE) - {'counter'}))
  def test_guard_precise(self, name):
    self.check_replicated(name)

  def check_replicated(self, name):
    f = PRECISE[name]
    got = jax.jit(sharded(f, make_mesh('2d'), P()))(self.x)
    want = alone(functools.partial(emulated, f), self.x)[0]
    self.assertAllClose(got, want, check_dtypes=False)

  @red(UNEQUAL_TYPES)
  @parameterized.parameters(*DIFFERENTIABLE)
  def test_gradient(self, name):
    f = PROGRAMS[name]
    g = sharded(f, make_mesh('2d'), P('x'))
    grad = lambda run: jax.grad(lambda x: jnp.sum(jnp.sin(run(x))))
    want = alone(grad(functools.partial(emulated, f)), self.x)
    runs = [g, jax.checkpoint(g)] if jax.__version_info__ >= (0, 7) else [g]
    for got in jax.jit(lambda x: [grad(run)(x) for run in runs])(self.x):
      self.assertAllClose(got, want)

  @red(UNEQUAL_TYPES)
  def test_parameter_gradient(self):
    def f(w, x):
      return lax.scan(lambda c, a: (jnp.sin(c * w) + a, c), 0., x)[1]
    run = shard_map(f, mesh=make_mesh('2d'), in_specs=(P(), P('x')),
                    out_specs=P('x'))
    oracle = lambda w: jnp.sum(jax.vmap(f, (None, 0))(
        w, self.x.reshape(2, 2)))
    total = lambda w: jnp.sum(run(w, self.x))
    got = jax.jit(lambda w: (jax.grad(total)(w),
                             jax.jvp(total, (w,), (1.,))[1]))(.7)
    self.assertAllClose(got, (alone(jax.grad(oracle), .7),) * 2)

  @red(UNEQUAL_TYPES)
  def test_while_jvp(self):
    def f(w, x):
      body = lambda c: (c[0] + 1., c[1] * w + x[1])
      return lax.while_loop(lambda c: c[0] < x[0], body, (0., 1.))[1][None]
    run = shard_map(f, mesh=make_mesh('2d'), in_specs=(P(), P('x')),
                    out_specs=P('x'))
    oracle = lambda w: jax.vmap(f, (None, 0))(
        w, self.x.reshape(2, 2)).reshape(-1)
    got = jax.jit(jax.jacfwd(lambda w: run(w, self.x)))(.7)
    self.assertAllClose(got, jax.jacfwd(oracle)(.7))

  @red(UNEQUAL_TYPES)
  def test_annotated_program_is_the_same(self):
    def f(x, cast):
      def outer(c, a):
        inner = lax.fori_loop(0, 2, lambda i, d: d * .5 + a, c)
        return inner, lax.while_loop(lambda s: s < 3., lambda s: s + 1.,
                                     cast(0.))
      return lax.scan(outer, cast(0.), x)[1]
    texts = []
    for cast in (annotate, lambda c: c):
      # The same name, so that the modules' names agree.
      run = functools.wraps(f)(functools.partial(f, cast=cast))
      texts.append(jax.jit(sharded(run, make_mesh('2d'), P('x')))
                   .lower(self.x).compile().as_text())
    strip = lambda t: [line.split('metadata=')[0] for line in t.splitlines()
                       if 'Location' not in line and 'file' not in line]
    self.assertEqual(*map(strip, texts))

  @red(UNEQUAL_TYPES)
  def test_mesh_size_does_not_matter(self):
    def trace(n):
      mesh = jax.sharding.AbstractMesh(
          (n,), ('x',), axis_types=(jax.sharding.AxisType.Auto,))
      x = jax.ShapeDtypeStruct((2 * n,), np.float32)
      start = time.perf_counter()
      jaxpr = jax.make_jaxpr(sharded(nested, mesh, P('x')))(x)
      return str(jaxpr), time.perf_counter() - start
    trace(4)
    (small, fast), (large, slow) = trace(4), trace(65536)
    self.assertEqual(len(small.splitlines()), len(large.splitlines()))
    self.assertLess(slow, 20 * fast + .1)

  @red(UNEQUAL_TYPES, bases='>=0.6.1')
  def test_inner_shard_map(self):
    if jax.__version_info__ < (0, 6, 1):
      self.skipTest('0.6.0 nests shard_map without types')
    mesh = make_mesh('2d')
    def outer(x):
      def inner(x):
        shift = lax.axis_index('y').astype(x.dtype)
        body = lambda c, a: (c + a + shift, c)
        return lax.scan(body, 0., x)[1]
      def step(c, _):
        ys = shard_map(inner, in_specs=P('y'), out_specs=P('y'),
                       axis_names={'y'})(x + c)
        return c + ys.sum(), None
      return lax.scan(step, 0., None, length=2)[0][None]
    f = shard_map(outer, mesh=mesh, in_specs=P('x'), out_specs=P('x'),
                  axis_names={'x'})
    got = jax.jit(f)(jnp.arange(8.))
    def oracle(x):
      c = 0.
      for _ in range(2):
        ys = np.concatenate([[0., (x + c)[2 * y] + y] for y in range(2)])
        c = c + ys.sum()
      return c
    want = [oracle(x) for x in np.arange(8.).reshape(2, 4)]
    self.assertAllClose(got, np.array(want), check_dtypes=False)

  @red(UNEQUAL_TYPES, bases='>=0.7')
  def test_refs(self):
    if jax.__version_info__ < (0, 7):
      self.skipTest('shard_map takes no refs there')
    def f(x):
      ref = new_ref(annotate(jnp.zeros(())))
      def body(i, c):
        ref[...] += c
        return c + x[0]
      lax.fori_loop(0, 3, body, 0.)
      return ref[...][None]
    got = jax.jit(sharded(f, make_mesh('2d'), P('x')))(self.x)
    self.assertAllClose(got, 3. * self.x[::2])

  def test_guard_refs_written_where_devices_part(self):
    if not (0, 7) <= jax.__version_info__ < (0, 9, 1):
      self.skipTest('no refs, or refs that widen')
    def branch(x, ref):
      def put():
        ref[...] = 1.
      lax.cond(x[0] > 1., put, lambda: None)
    def loop(x, ref):
      def body(c):
        ref[...] = c
        return c + 1.
      lax.while_loop(lambda c: c < x[0], body, 0.)
    def branch_in_loop(x, ref):
      lax.fori_loop(0, 2, lambda i, _: branch(x, ref), None)
    x = jnp.arange(8.)
    for f, want in ((branch, [0., 1.]), (loop, [0., 3.]),
                    (branch_in_loop, [0., 1.])):
      def per_device(x, f=f):
        ref = new_ref(jnp.zeros(()))
        f(x, ref)
        return ref[...][None]
      with jax.enable_checks(False):
        got = jax.jit(sharded(per_device, make_mesh('1d'), P('x')))(x)
      self.assertAllClose(got, jnp.array(want), check_dtypes=False)

  @red('^AssertionError: .jax.*: expected a ref that .* does not match',
       bases='>=0.7,<0.9.1')
  def test_ref_that_would_have_to_vary_is_refused(self):
    if not (0, 7) <= jax.__version_info__ < (0, 9, 1):
      self.skipTest('no refs, or refs that widen')
    def f(x):
      ref = new_ref(jnp.zeros(()))
      def body(i, c):
        ref[...] = c
        return c + x[0]
      lax.fori_loop(0, 3, body, 0.)
      return ref[...][None]
    cast = 'pcast' if hasattr(lax, 'pcast') else 'pvary'
    said = f'{NEW_REF}: expected a ref that .*{NEW_REF}.jax.lax.{cast}'
    with self.assertRaisesRegex(TypeError, said):
      jax.jit(sharded(f, make_mesh('1d'), P('x')))(self.x)

  def test_option_restores_the_refusal(self):
    f = sharded(scan_carry, make_mesh('1d'), P('x'))
    if hasattr(jax.config, 'jax_shard_map_promote_carries'):
      self.assertAllClose(jax.jit(f)(self.x).shape, (6,))
      jax.config.update('jax_shard_map_promote_carries', False)
      self.addCleanup(jax.config.update, 'jax_shard_map_promote_carries', True)
    with self.assertRaisesRegex(TypeError, 'must have equal types'):
      jax.jit(f)(self.x)

  def test_real_mismatch_is_refused(self):
    f = sharded(lambda x: lax.scan(lambda c, a: (c + x, None), 0., x)[0],
                make_mesh('1d'), P('x'))
    with self.assertRaisesRegex(TypeError, 'the shapes do not match'):
      f(self.x)

  def test_check_off(self):
    for name, kw in [('check_vma', {}), ('check_rep', {})]:
      try:
        f = shard_map(scan_carry, mesh=make_mesh('1d'), in_specs=P('x'),
                      out_specs=P('x'), **{name: False}, **kw)
      except TypeError:
        continue
      self.assertAllClose(jax.jit(f)(self.x),
                          emulated(scan_carry, self.x).reshape(-1))

  @red(UNEQUAL_TYPES)
  def test_a_weak_carry_is_traced_once(self):
    traces = []
    def f(x):
      def body(c, _):
        traces.append(c)
        return c * x[0], None
      return lax.scan(body, 1., None, length=2)[0][None]
    x = np.float32([2., 3.])
    got = jax.jit(sharded(f, make_mesh('1d'), P('x')))(x)
    self.assertAllClose(got, x ** 2)
    self.assertLen(traces, 1)

  @red("^AttributeError: module 'jax.errors' has no attribute")
  def test_the_warning_is_public(self):
    self.assertTrue(issubclass(jax.errors.DivergentLoopWarning, UserWarning))

  def test_adds_no_frame_outside(self):
    files = []

    def look(c):
      files.extend(f.filename for f in traceback.extract_stack())
      return c + 1.

    lax.scan(lambda c, _: (look(c), None), 0., None, length=2)
    lax.while_loop(lambda c: c < 2., look, 0.)
    self.assertContainsSubset(['loops.py'], map(os.path.basename, files))
    ours = os.path.join('_src', 'varying', '')
    self.assertEmpty([f for f in files if ours in f])



def _rule_of(kind):
  """The identity, with a derivative rule that is its own."""
  if kind is jax.custom_jvp:
    f = jax.custom_jvp(lambda c, r: (c * 2., r))
    f.defjvp(lambda ps, ts: (f(*ps), (ts[0] * 2., ts[1])))
  else:
    f = jax.custom_vjp(lambda c, r: (c * 2., r))
    f.defvjp(lambda c, r: (f(c, r), ()), lambda _, ct: (ct[0] * 2., ct[1]))
  return f


def _plain(c, r):
  return c * 2., r


def _scanned(c, r):
  return lax.scan(lambda cr, _: ((cr[0] * 2., cr[1]), ()), (c, r), length=1)[0]


def _looped(c, r):
  return lax.fori_loop(0, jnp.int32(jnp.sum(r) > 0), lambda _, cr: _plain(*cr),
                       (c, r))


def _branched(c, r):
  return lax.cond(jnp.sum(r) > 0, _plain, lambda c, r: (c * 2., r), c, r)


UNTOUCHED = {
    'plain': _plain,
    'jit': jax.jit(_plain),
    'nested': jax.jit(lambda c, r: jax.jit(_plain)(c, r)),
    'checkpoint': jax.checkpoint(_plain),
    'custom_jvp': _rule_of(jax.custom_jvp),
    'custom_vjp': _rule_of(jax.custom_vjp),
    'scan': _scanned,
    'while': _looped,
    'cond': _branched,
    'jitted scan': jax.jit(_scanned),
}


class UntouchedCarryTest(jtu.JaxTestCase):
  """A carry that a body hands through is the same on all devices."""

  def run_body(self, body, mesh, jit):
    def f(x):
      r = jnp.arange(1., 3.)
      return lax.while_loop(lambda cr: jnp.sum(cr[0]) < 9.,
                            lambda cr: body(*cr), (x, r))
    g = shard_map(f, mesh=make_mesh(mesh), in_specs=P('x'),
                  out_specs=(P('x'), P()))
    return (jax.jit(g) if jit else g)(jnp.array([1., 4.]))

  @parameterized.parameters(
      *((name, '2d', True) for name in UNTOUCHED),
      *((name, '1d', True) for name in ('nested', 'scan', 'custom_vjp')),
      *((name, '2d', False) for name in ('plain', 'checkpoint', 'cond')))
  def test_untouched(self, name, mesh, jit):
    c, r = self.run_body(UNTOUCHED[name], mesh, jit)
    self.assertArraysEqual(c, np.array([16., 16.], np.float32))
    self.assertArraysEqual(r, np.array([1., 2.], np.float32))

  @red(NOT_REFUSED)
  @parameterized.parameters(
      (jax.jit, '2d', True), (jax.checkpoint, '1d', True),
      (jax.checkpoint, '2d', False))
  def test_unsound_touched(self, body, mesh, jit):
    for touch in (lambda c, r: (c * 2., r + 1.), lambda c, r: (c * 2., r[::-1]),
                  lambda c, r: (c * 2., lax.cond(jnp.sum(r) > 0, lambda r: r,
                                                 lambda r: -r, r))):
      with self.assertRaisesRegex(ValueError, 'replicat'):
        jax.block_until_ready(self.run_body(body(touch), mesh, jit))


# The program that README.md begins with.
PROGRAM = '''\
import jax, jax.numpy as jnp
from jax.sharding import PartitionSpec as P
mesh = jax.sharding.Mesh(jax.devices("cpu")[:4], "x")
def loss(w, x):  # each device takes as many steps as its x says: 0, 1, 2, 3
  steps = jax.lax.while_loop(lambda n: n < x[0], lambda n: n + 1, 0.0)
  return jax.lax.psum(w * steps, "x")
f = jax.shard_map(loss, mesh=mesh, in_specs=(P(), P("x")), out_specs=P())
print(*jax.value_and_grad(f)(1.0, jnp.arange(4.0)))
'''


class StepsTest(jtu.JaxTestCase):

  @red(r"^AssertionError: Lists differ: \['6\.0', '0\.0'\] != \['6\.0', "
       r"'6\.0'\]", bases='>=0.6.1')
  @unittest.skipIf(not hasattr(jax, 'shard_map'), 'jax.shard_map is not there')
  def test_the_gradient_of_a_factor_is_the_number_of_steps(self):
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
      exec(PROGRAM, {})
    # The value and the gradient of w * (0 + 1 + 2 + 3).
    self.assertEqual(said.getvalue().split(), ['6.0', '6.0'])
