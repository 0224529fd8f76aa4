# SPDX-License-Identifier: Apache-2.0
"""Minima and maxima of arrays that hold nan, on CPUs (jax#39887)."""

import itertools

from absl.testing import parameterized
import jax
from jax import export
from jax import lax
from jax import sharding as js
from jax._src import test_util as jtu
import jax.numpy as jnp
import numpy as np
from testing.red import red
from testing.sharding import eight_devices, shard_map, UNCHECKED

jax.config.parse_flags_with_absl()
eight_devices()

# What pristine JAX says.
FORGOT_NAN = '^AssertionError: .*forgot nan'

P = js.PartitionSpec
DTYPES = ('float32', 'float64', 'float16', 'bfloat16')
# Shape and axes: minor, major, both, between, all; the last have a 1.
CASES = (((5000,), (0,)), ((4, 1100), (1,)), ((1100, 4), (0,)),
         ((70, 80), (0, 1)), ((8, 24, 32), (1,)), ((8, 24, 32), (0, 2)),
         ((8, 24, 32), (1, 2)), ((1, 4096), (0,)), ((4096, 1), (0, 1)),
         ((70, 80), (1, 0)), ((4, 40, 48), (2, 1)), ((8, 24, 32), (-1, 0)))


def x64():
  return (jax.experimental.enable_x64() if hasattr(
      jax.experimental, 'enable_x64') else jax.enable_x64(True))


def with_nans(shape, dtype='float32', count=3, sign=1, seed=0):
  """Random numbers, infinities among them, of which some are nan."""
  rng = np.random.RandomState(seed)
  x = rng.randn(*shape).astype(np.float32)
  flat = x.reshape(-1)
  flat[rng.choice(x.size, 2, replace=False)] = np.inf, -np.inf
  flat[rng.choice(x.size, count, replace=False)] = np.copysign(np.nan, sign)
  return x.astype(jnp.dtype(dtype))


def forgets_on_one_device():
  """True if the compiler has the library that forgets nan."""
  return jax._src.lib.version >= (0, 10, 2)


def set_option(value):
  """Sets the option, where it exists: not on pristine."""
  if hasattr(jax.config, 'jax_cpu_nan_extrema'):
    jax.config.update('jax_cpu_nan_extrema', value)


class Case(jtu.JaxTestCase):

  def with_option(self):
    set_option(True)
    self.addCleanup(set_option, False)

  def agrees(self, got, want):
    np.testing.assert_array_equal(
        np.asarray(got).astype(np.float64), np.asarray(want), 'forgot nan')


class ArrayApiNanExtremaTest(Case):
  """With the option on."""

  def setUp(self):
    super().setUp()
    self.with_option()

  @red(FORGOT_NAN, bases='>=0.10.2')
  @parameterized.parameters(*DTYPES)
  def test_large_dtypes_and_axes(self, dtype):
    with x64():
      for shape, axes in CASES:
        f = lambda x, axes=axes: (jnp.max(x, axes), jnp.min(x, axes))
        jitted = jax.jit(f)
        for sign in (1, -1):
          x = with_nans(shape, dtype, sign=sign)
          wide = x.astype(np.float64)
          got = jitted(x)
          self.assertEqual(got[0].dtype, x.dtype)
          self.agrees(got[0], wide.max(axes))
          self.agrees(got[1], wide.min(axes))
        self.agrees(f(jnp.asarray(x))[0], wide.max(axes))

  @red(FORGOT_NAN, bases='>=0.10.2')
  def test_large_one_nan_anywhere(self):
    f = jax.jit(lambda x: (jnp.max(x), jnp.min(x)))
    for i in (0, 1, 7, 15, 16, 2047, 4095):
      x = np.linspace(-1, 1, 4096).astype(np.float32)
      x[i] = np.nan
      self.agrees(f(x), [np.nan, np.nan])

  @red(FORGOT_NAN, bases='>=0.10.2')
  def test_large_arguments(self):
    x = with_nans((64, 80))
    some = ~np.isnan(x) | (np.arange(80) % 2 == 0)
    with np.errstate(invalid='ignore'):
      for f in (lambda m, x: m.max(x, axis=0, keepdims=True),
                lambda m, x: m.min(x, axis=1, initial=-2.),
                lambda m, x: m.max(x, axis=1, initial=np.nan),
                lambda m, x: m.max(x, where=some, initial=-9.),
                lambda m, x: m.min(x, axis=0, where=some, initial=9.),
                lambda m, x: m.ptp(m.clip(x, -3, 3)),
                lambda m, x: m.linalg.norm(m.abs(x).reshape(-1), m.inf)):
        want = f(np, x)
        self.agrees(jax.jit(lambda x, f=f: f(jnp, x))(x), want)
        self.agrees(f(jnp, jnp.asarray(x)), want)

  @red(FORGOT_NAN, bases='>=0.10.2')
  def test_large_elementwise_before_a_sum(self):
    x = with_nans((5000,), count=1)
    for f in (lambda m, x: m.maximum(x, 0), lambda m, x: m.maximum(0, x),
              lambda m, x: m.minimum(x, 0), lambda m, x: m.minimum(x, -x)):
      want = np.sum(f(np, x))
      self.agrees(jax.jit(lambda x, f=f: jnp.sum(f(jnp, x)))(x), want)
    self.agrees(jax.jit(lambda x: jnp.sum(jax.nn.relu(x)))(x), np.nan)
    zeros = np.zeros(5000, np.float32)  # constant: its select is dropped
    for f in (lambda x: jnp.maximum(zeros, x), lambda x: jnp.maximum(x, zeros),
              lambda x: jnp.minimum(jnp.ones_like(x), x)):
      self.agrees(jax.jit(lambda x, f=f: jnp.sum(f(x)))(x), np.nan)

  @red(FORGOT_NAN, bases='>=0.10.2')
  def test_large_windows(self):
    x = with_nans((64, 80))
    blocks = x.reshape(32, 2, 20, 4)
    for f, init, want in ((lax.max, -np.inf, np.max),
                          (lax.min, np.inf, np.min)):
      got = jax.jit(lambda x, f=f, init=init: lax.reduce_window(
          x, init, f, (2, 4), (2, 4), 'VALID'))(x)
      self.agrees(got, want(blocks, axis=(1, 3)))
    padded = jax.jit(lambda x: lax.reduce_window(
        x, -jnp.inf, lax.max, (2, 4), (2, 4), ((1, 1), (0, 0))))(x)
    want = np.full((66, 80), -np.inf, np.float32)
    want[1:-1] = x
    self.agrees(padded, want.reshape(33, 2, 20, 4).max((1, 3)))

  @red(FORGOT_NAN, bases='>=0.10.2')
  def test_large_infinities_and_overflow_are_no_nan(self):
    top = np.float32(3e38)
    for x in (np.float32([np.inf, -np.inf]), np.float32([top, -top]),
              np.float16([65504, -65504, np.inf, -np.inf])):
      x = np.resize(x, 5000)
      for f, want in ((jnp.max, x.max()), (jnp.min, x.min())):
        self.assertEqual(jax.jit(f)(x), want)
        y = np.array(x)
        y[4000] = np.nan
        self.agrees(jax.jit(f)(y), np.nan)

  @red(FORGOT_NAN, bases='>=0.10.2')
  def test_large_option_counts_when_a_function_is_called(self):
    f = jax.jit(jnp.max)
    x = np.linspace(-1, 1, 4096).astype(np.float32)
    x[7] = np.nan
    self.agrees(f(x), np.nan)
    text = f.lower(x).as_text()
    set_option(False)
    plain = f.lower(x).as_text()
    f(x), jnp.max(x)
    for operation in ('multiply', 'compare', 'select', 'bitcast'):
      self.assertNotIn(operation, plain)
    set_option(True)
    self.agrees(f(x), np.nan)
    self.agrees(jnp.max(x), np.nan)
    self.assertEqual(f.lower(x).as_text(), text)

  @red(FORGOT_NAN, bases='>=0.10.2')
  def test_large_transformed(self):
    x = with_nans((6, 1000))
    self.agrees(jax.jit(jax.vmap(jnp.max))(x), x.max(1))
    self.agrees(jax.jit(jax.vmap(jnp.min, 1))(x), x.min(0))
    self.agrees(lax.map(jnp.max, np.stack([x, -x])), [np.nan, np.nan])
    value, slope = jax.jit(jax.value_and_grad(jnp.max))(x)
    self.agrees(value, np.nan)
    self.assertEqual(slope.shape, x.shape)
    self.agrees(jax.jvp(jnp.max, (x,), (x,))[0], np.nan)
    self.agrees(lax.cond(True, jnp.max, jnp.sum, x), np.nan)
    self.agrees(jax.jit(jax.checkpoint(jnp.min))(x), np.nan)

  @red(FORGOT_NAN, bases='>=0.10.2')
  def test_large_exported(self):
    x = with_nans((4100,))
    symbolic = jax.ShapeDtypeStruct(export.symbolic_shape('n'), x.dtype)
    for f in (jnp.max, lambda x: jnp.sum(jnp.maximum(x, 0)),
              lambda x: lax.reduce_window(x, np.inf, lax.min, (2,), (2,),
                                          ((0, 0),)).sum()):
      for platforms in (('cpu',), ('tpu', 'cpu')):
        exported = export.export(jax.jit(f), platforms=platforms)
        self.agrees(exported(x).call(x), np.nan)
        self.agrees(exported(symbolic).call(x), np.nan)
        self.agrees(jax.jit(exported(x).call)(x), np.nan)

  @parameterized.parameters(*DTYPES)
  def test_of_nothing(self, dtype):
    with x64():
      size, = export.symbolic_shape('n')
      one = np.ones((2, 1), dtype)
      for f, expected in (
          (lambda x: jnp.max(x[:, 1:], 1, initial=0), 0),
          (lambda x: jnp.min(x[:, 1:], initial=3), 3),
          (lambda x: lax.reduce(x[:, 1:], -np.inf, lax.max, (1,)), -np.inf),
          (lambda x: lax.reduce(x[:, 1:], np.inf, lax.min, (0, 1)), np.inf)):
        exported = export.export(jax.jit(f))(
            jax.ShapeDtypeStruct((2, size), dtype))
        out = exported.call(one)
        self.agrees(out, np.full(out.shape, expected, dtype))

  @red(FORGOT_NAN, bases='>=0.10.2')
  def test_large_exported_and_called_over_devices(self):
    x = with_nans((64, 80), count=1)
    mesh = js.Mesh(np.array(jax.devices()), ('x',))
    split = jax.device_put(x, js.NamedSharding(mesh, P('x')))
    for f in (lambda m, x: m.max(x, 0), lambda m, x: m.min(x),
              lambda m, x: m.max(x, 1)):
      exported = export.export(jax.jit(lambda x, f=f: f(jnp, x)))(x)
      got = jax.jit(exported.call)(split)
      if forgets_on_one_device():
        self.agrees(got, f(np, x))


@red(FORGOT_NAN)
class ArrayApiNanExtremaAmongDevicesTest(Case):
  """By default, where nothing is said."""

  @parameterized.parameters(*DTYPES)
  def test_among_devices(self, dtype):
    for shape in ((8,), (2, 4), (1, 8)):
      names = ('x', 'y')[:len(shape)]
      mesh = js.Mesh(np.array(jax.devices()).reshape(shape), names)
      with x64():
        x = with_nans((8, 1000), dtype, count=1)
        x[3, 1] = np.nan
        wide = x.astype(np.float64)
        f = shard_map(lambda x: (lax.pmax(x, names), lax.pmin(x, names)),
                      mesh=mesh, in_specs=P(names), out_specs=P(), **UNCHECKED)
        for most, least in (jax.jit(f)(x), f(x)):
          self.assertEqual(most.dtype, x.dtype)
          self.agrees(most[0], wide.max(0))
          self.agrees(least[0], wide.min(0))

  def test_among_devices_by_axis(self):
    mesh = js.Mesh(np.array(jax.devices()).reshape(2, 4), ('x', 'y'))
    x = with_nans((8, 4), count=2)
    f = shard_map(lambda x: lax.pmax(x, 'y'), mesh=mesh, in_specs=P('x', 'y'),
                  out_specs=P('x'), **UNCHECKED)
    self.agrees(jax.jit(f)(x), x.max(1, keepdims=True))
    several = shard_map(lambda t: lax.pmin(t, 'x'), mesh=mesh,
                        in_specs=(({'a': P('x'), 'b': P('x')}),),
                        out_specs={'a': P(), 'b': P()}, **UNCHECKED)
    ints = np.arange(8)
    got = jax.jit(several)({'a': x, 'b': ints})
    self.agrees(got['a'], x.reshape(2, 4, 4).min(0))
    self.agrees(got['b'], np.arange(4))

  def test_among_devices_of_pmap(self):
    x = with_nans((8, 5), count=1)
    x[4, 2] = np.nan
    got = jax.pmap(lambda x: lax.pmax(x, 'i'), axis_name='i')(x)
    self.agrees(got[5], x.max(0))

  @parameterized.parameters(
      *itertools.product(((('x', 'y'),), ('x', 'y'), ('x',), (None, 'y')),
                         DTYPES))
  def test_split_among_devices(self, spec, dtype):
    if forgets_on_one_device():
      self.with_option()  # there it costs more, and is left alone without
    mesh = js.Mesh(np.array(jax.devices()).reshape(2, 4), ('x', 'y'))
    where = js.NamedSharding(mesh, P(*spec))
    with x64():
      for shape in ((8, 16), (64, 96)):
        for axes in ((0,), (1,), (0, 1)):
          f = jax.jit(lambda x, axes=axes: (jnp.max(x, axes),
                                            jnp.min(x, axes)))
          for seed in range(4):
            x = with_nans(shape, dtype, seed=seed)
            wide = x.astype(np.float64)
            most, least = f(jax.device_put(x, where))
            self.agrees(most, wide.max(axes))
            self.agrees(least, wide.min(axes))


class ArrayApiNanExtremaUnchangedTest(Case):

  @parameterized.product(dtype=DTYPES, option=(False, True))
  def test_numbers(self, dtype, option):
    if option:
      self.with_option()
    with x64():
      x = np.random.RandomState(0).randn(70, 80).astype(np.float32)
      x = x.astype(jnp.dtype(dtype))
      for shape in ((70, 80), (7, 10, 80), (5600,)):
        y = x.reshape(shape)
        for axis in (None, 0, -1):
          for name in ('max', 'min'):
            np.testing.assert_array_equal(
                jax.jit(lambda y: getattr(jnp, name)(y, axis=axis))(y),
                getattr(np, name)(y.astype(np.float64), axis=axis).astype(
                    y.dtype))
      for value in (np.inf, -np.inf, 0.):
        y = np.full(4096, value, x.dtype)
        np.testing.assert_array_equal(jnp.max(y), value)
        np.testing.assert_array_equal(jnp.min(y), value)

  def test_gradients(self):
    x = np.random.RandomState(0).randn(64, 80).astype(np.float32)
    for f, at in ((jnp.max, x.argmax()), (jnp.min, x.argmin())):
      want = np.zeros(x.size, np.float32)
      want[at] = 1
      np.testing.assert_array_equal(jax.jit(jax.grad(f))(x),
                                    want.reshape(x.shape))
    slope = jax.jit(jax.grad(lambda x: jnp.sum(jax.nn.relu(x))))(x)
    np.testing.assert_array_equal(slope, x > 0)

  def test_other_platforms_and_jaxprs(self):
    self.with_option()
    x = np.ones((64, 80), np.float32)
    for f in (jnp.max, lambda x: lax.max(x, -x)):
      text = jax.jit(f).trace(x).lower(lowering_platforms=('tpu',)).as_text()
      self.assertNotIn('compare', text)
      self.assertNotIn('multiply', text)
    self.assertLen(jax.make_jaxpr(lambda x: lax.reduce_max(x, (0,)))(x).eqns, 1)

  def test_one_device_has_the_plain_lowering(self):
    window = lambda x: lax.reduce_window(
        x, -np.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), 'VALID')
    for f in (jnp.max, lambda x: jnp.min(x, (0, 2)), window, jax.nn.relu,
              lambda x: jnp.sum(lax.max(x, x + x)), jax.nn.logsumexp,
              lambda x: lax.reduce(x, np.float32(0),
                                   lambda a, b: lax.max(b, a), (1, 3))):
      text = jax.jit(f).lower(np.ones((4, 32, 32, 8), np.float32)).as_text()
      for operation in ('multiply', 'compare NE', 'bitcast'):
        self.assertNotIn(operation, text)

  @parameterized.parameters(*DTYPES)
  def test_softmax_keeps_nan(self, dtype):
    with x64():
      x = with_nans((64, 80), dtype, count=40)
      x[np.isinf(x)] = 1
      for axis in (0, 1):
        found = np.isnan(x).any(axis)
        self.agrees(np.isnan(jax.nn.logsumexp(x, axis)), found)
        soft = np.isnan(np.asarray(jax.nn.softmax(x, axis)))
        self.agrees(soft.any(axis), found)
        self.agrees(soft.all(axis), found)

  def test_exported_and_called_over_devices(self):
    x = np.random.RandomState(0).randn(64, 80).astype(np.float32)
    mesh = js.Mesh(np.array(jax.devices()), ('x',))
    for f in (lambda x: jnp.max(x, 0), jnp.min, lambda x: jnp.max(x, 1),
              lambda x: jax.nn.softmax(x, 0), jax.nn.logsumexp,
              lambda x: lax.reduce(x, np.float32(-np.inf),
                                   lambda a, b: lax.max(b, a), (0,)),
              lambda x: jnp.mean(jax.nn.relu(x), 0)):
      exported = export.export(jax.jit(f))(x)
      for spec in (P('x'), P(None, 'x')):
        split = jax.device_put(x, js.NamedSharding(mesh, spec))
        self.assertAllClose(jax.jit(exported.call)(split), f(x), rtol=1e-5)

  def test_what_is_small_complex_or_whole(self):
    self.with_option()
    for x in (np.ones(4095, np.float32), np.ones(5000, np.int32),
              np.ones(5000, np.uint8), np.ones(5000, bool)):
      for f in (jnp.max, jnp.min, lambda x: lax.max(x, x)):
        text = jax.jit(f).lower(x).as_text()
        self.assertNotIn('multiply', text)
        self.assertNotIn('select', text)
    z = np.ones(5000, np.complex64)
    self.assertNotIn('multiply', jax.jit(jnp.max).lower(z).as_text())
    self.assertEqual(jnp.max(z), 1)

  def test_windows_that_overlap(self):
    self.with_option()
    x = np.random.RandomState(0).randn(64, 80).astype(np.float32)
    f = jax.jit(lambda x: lax.reduce_window(
        x, -jnp.inf, lax.max, (3, 3), (2, 2), 'SAME'))
    self.assertNotIn('multiply', f.lower(x).as_text())
    y = np.array(x)
    y[5, 5] = np.nan
    self.assertTrue(np.isnan(f(y)).any())
