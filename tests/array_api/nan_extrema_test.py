# Copyright 2026 The Mend Authors.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     https://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""Minima and maxima of arrays that hold nan, on CPUs (jax#39887)."""

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax import export
from jax import lax
from jax import sharding as js
from jax._src import test_util as jtu
import jax.numpy as jnp
import numpy as np
from testing.sharding import eight_devices, shard_map, UNCHECKED

jax.config.parse_flags_with_absl()
eight_devices()

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


class ArrayApiNanExtremaTest(jtu.JaxTestCase):

  def agrees(self, got, want):
    np.testing.assert_array_equal(
        np.asarray(got).astype(np.float64), np.asarray(want), 'forgot nan')

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

  def test_large_one_nan_anywhere(self):
    f = jax.jit(lambda x: (jnp.max(x), jnp.min(x)))
    for i in (0, 1, 7, 15, 16, 2047, 4095):
      x = np.linspace(-1, 1, 4096).astype(np.float32)
      x[i] = np.nan
      self.agrees(f(x), [np.nan, np.nan])

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

  def test_large_functions_of_the_user(self):
    x = with_nans((5000,), count=1)
    least = np.float32(-np.inf)
    for f in (lax.max, lambda a, b: lax.max(b, a),
              lambda a, b: lax.max(a, b) * 1):
      self.agrees(jax.jit(lambda x, f=f: lax.reduce(x, least, f, (0,)))(x),
                  np.nan)

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

  def test_large_exported(self):
    x = with_nans((4100,))
    symbolic = jax.ShapeDtypeStruct(export.symbolic_shape('n'), x.dtype)
    for f in (jnp.max, lambda x: jnp.sum(jnp.maximum(x, 0))):
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

  @parameterized.parameters(('x', 'y'), ('x',), (None, 'y'), (('x', 'y'),))
  def test_split_among_devices(self, *spec):
    mesh = js.Mesh(np.array(jax.devices()).reshape(2, 4), ('x', 'y'))
    where = js.NamedSharding(mesh, P(*spec))
    for shape in ((8, 16), (64, 96)):
      for axes in ((0,), (1,), (0, 1)):
        f = jax.jit(lambda x, axes=axes: (jnp.max(x, axes), jnp.min(x, axes)))
        for seed in range(4):
          x = with_nans(shape, seed=seed)
          most, least = f(jax.device_put(x, where))
          self.agrees(most, x.max(axes))
          self.agrees(least, x.min(axes))


class ArrayApiNanExtremaUnchangedTest(jtu.JaxTestCase):

  @parameterized.parameters(*DTYPES)
  def test_numbers(self, dtype):
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
    x = np.ones((64, 80), np.float32)
    for f in (jnp.max, lambda x: lax.max(x, -x)):
      text = jax.jit(f).trace(x).lower(lowering_platforms=('tpu',)).as_text()
      self.assertNotIn('compare', text)
      self.assertNotIn('bitcast', text)
    self.assertLen(jax.make_jaxpr(lambda x: lax.reduce_max(x, (0,)))(x).eqns, 1)

  def test_layers_have_one_function_for_reductions_that_are_alike(self):
    def layers(x):
      for i in range(6):
        x = x - jnp.max(x, 1, keepdims=True)
        x = x + jnp.min(x, 1, keepdims=True) * i
      return x, jnp.max(x, 0), jnp.max(x.reshape(80, 64), 1)
    x = np.random.RandomState(0).randn(64, 80).astype(np.float32)
    text = jax.jit(layers).lower(x).as_text()
    # By the rows' maxima, their minima, of columns, and of another shape.
    self.assertEqual(text.count('func private @reduce_max_keeping_nan')
                     + text.count('func private @reduce_min_keeping_nan'),
                     4 if 'bitcast' in text else 0)
    want = np.array(x)
    for i in range(6):
      want = want - want.max(1, keepdims=True)
      want = want + want.min(1, keepdims=True) * i
    got, of_columns, _ = jax.jit(layers)(x)
    self.assertAllClose(got, want, rtol=1e-5)
    self.assertAllClose(of_columns, want.max(0), rtol=1e-5)

  def test_what_is_small_complex_or_whole(self):
    for x in (np.ones(4095, np.float32), np.ones(5000, np.int32),
              np.ones(5000, np.uint8), np.ones(5000, bool)):
      for f in (jnp.max, jnp.min, lambda x: lax.max(x, x)):
        text = jax.jit(f).lower(x).as_text()
        self.assertNotIn('bitcast', text)
        self.assertNotIn('select', text)
    z = np.ones(5000, np.complex64)
    self.assertNotIn('bitcast', jax.jit(jnp.max).lower(z).as_text())
    self.assertEqual(jnp.max(z), 1)

  def test_windows_that_overlap(self):
    x = np.random.RandomState(0).randn(64, 80).astype(np.float32)
    f = jax.jit(lambda x: lax.reduce_window(
        x, -jnp.inf, lax.max, (3, 3), (2, 2), 'SAME'))
    self.assertNotIn('bitcast', f.lower(x).as_text())
    y = np.array(x)
    y[5, 5] = np.nan
    self.assertTrue(np.isnan(f(y)).any())


if __name__ == '__main__':
  absltest.main(testLoader=jtu.JaxTestLoader())
