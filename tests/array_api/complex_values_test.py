# SPDX-License-Identifier: Apache-2.0
"""Complex functions at infinities and nan, by the standard (jax#27606)."""

from absl.testing import parameterized
import jax
from jax import export
from jax import sharding as js
from jax._src import test_util as jtu
import jax.numpy as jnp
import numpy as np
from testing.red import red
from testing.sharding import AxisType, eight_devices, shard_map, typed_mesh

jax.config.parse_flags_with_absl()
eight_devices()

I, N, P = np.inf, np.nan, np.pi

# Name: rows of the standard's table, (real, imag): (real, imag).
TABLES = {
    'log1p': {(I, N): (I, N), (-I, N): (I, N), (N, I): (I, N),
              (1, I): (I, P / 2), (-I, 1): (I, P), (I, I): (I, P / 4),
              (1, N): (N, N), (N, 1): (N, N)},
    'tanh': {(0, N): (0, N), (I, I): (1, 0), (I, N): (1, 0),
             (I, 1): (1, 0), (1, I): (N, N), (1, N): (N, N), (N, 0): (N, 0),
             (N, 1): (N, N), (1e-40, N): (N, N)},
    'arcsinh': {(N, 0): (N, 0), (1, I): (I, P / 2), (1, N): (N, N),
                (0, N): (N, N), (I, 1): (I, 0), (I, I): (I, P / 4),
                (N, 1): (N, N), (N, I): (I, N), (I, N): (I, N),
                (N, 1e-40): (N, N), (N, 1e30): (N, N)},
    # 0+nanj is nan+nanj in NumPy, and here.
    'arccosh': {(1, I): (I, P / 2), (-I, 1): (I, P), (1e30, N): (N, N),
                (1, N): (N, N), (N, 1): (N, N), (I, N): (I, N), (N, I): (I, N)},
    'arccos': {(0, N): (P / 2, N), (1, I): (P / 2, I), (-I, 1): (P, I),
               (I, 1): (0, I), (1, N): (N, N), (N, 1): (N, N), (I, N): (N, I),
               (N, I): (N, I), (1e-40, N): (N, N), (1e30, N): (N, N)},
    'arctanh': {(0, N): (0, N), (1, N): (N, N), (I, N): (0, N), (N, 1): (N, N),
                (N, N): (N, N), (N, I): (0, P / 2), (1, I): (0, P / 2),
                (I, 1): (0, P / 2), (I, I): (0, P / 2), (1e-40, N): (N, N)},
}
if hasattr(jax.lax, 'log2'):
  TABLES['log2'] = {z: (p, q / np.log(2))
                    for z, (p, q) in TABLES['log1p'].items()}
# -j f(jz), of the hyperbolic f.
for _name, _of in (('tan', 'tanh'), ('arcsin', 'arcsinh'),
                   ('arctan', 'arctanh')):
  TABLES[_name] = {(b, -a): (q, -p) for (a, b), (p, q) in TABLES[_of].items()}
# Functions that rules of differentiation compute with.
LEFT = ('exp', 'expm1', 'log', 'log10', 'sqrt', 'sin', 'cos', 'sinh', 'cosh')


def array(pairs, dtype):
  out = np.empty(len(pairs), dtype)
  out.real, out.imag = np.array(pairs, float).T
  return out


@red('^AssertionError: .*another special value')
class ArrayApiComplexValuesTest(jtu.JaxTestCase):

  @parameterized.parameters(*TABLES)
  def test_table(self, name):
    # Each function maps conjugates to conjugates.
    rows = [((a, sign * b), w) for (a, b), w in TABLES[name].items()
            for sign in (1, -1)]
    z, want = (array(parts, np.complex64) for parts in zip(*rows))
    for f in (getattr(jnp, name), jax.jit(getattr(jnp, name))):
      got = np.asarray(f(z))
      for part in ('real', 'imag'):
        # The standard leaves some of the signs open.
        g, w = (np.abs(getattr(y, part)) for y in (got, want))
        bad = ~(np.isclose(g, w, 1e-5) | np.isnan(g) & np.isnan(w))
        self.assertFalse(bad.any(), 'another special value: ' + ', '.join(
            f'{x} gives {y}' for x, y in zip(z[bad], got[bad])))

  def test_double_precision(self):
    with jax.experimental.enable_x64() if hasattr(
        jax.experimental, 'enable_x64') else jax.enable_x64(True):
      z = array([(0, N), (1e-310, N), (1, N)], np.complex128)
      got = np.asarray(jnp.tanh(z))
      self.assertEqual(got.dtype, np.complex128)
      self.assertEqual(got[0].real, 0., 'another special value')
      self.assertTrue(np.isnan(got.real[1:]).all())
      traced = jax.jit(jnp.tanh).trace(z)
    lowered = traced.lower()  # where there are no 64 bits
    self.assertIn('tensor<3xf64>', lowered.as_text())
    lowered.compile()

  @red(r'^AssertionError: \s*Not equal to tolerance rtol=1e-06')
  def test_signs(self):
    for f, z, want in (
        (jnp.log1p, (-I, N), (I, N)), (jnp.tanh, (-0., N), (-0., N)),
        (jnp.arctanh, (-0., N), (-0., N)), (jnp.arccos, (0, N), (P / 2, N)),
        (jnp.tan, (N, -0.), (N, -0.)), (jnp.arcsin, (-0., N), (-0., N)),
        (jnp.arcsinh, (N, -0.), (N, -0.))):
      got = np.asarray(f(array([z], np.complex64)))[0]
      np.testing.assert_allclose([got.real, got.imag], want, 1e-6)
      for g, w in zip((got.real, got.imag), want):
        if not np.isnan(w):
          self.assertEqual(np.signbit(g), np.signbit(w), (f, z, got))

  def test_in_programs(self):
    z = array([(N, 0), (0, 1), (0, N), (N, 1)] * 2, np.complex64)
    want = np.asarray(jnp.arctan(z))
    self.assertEqual(want[0].imag, 0., 'another special value')
    mesh = typed_mesh((2, 4), ('x', 'y'), (AxisType.Explicit,) * 2)
    split = js.NamedSharding(mesh, js.PartitionSpec(('x', 'y')))
    ps = js.PartitionSpec('y')
    rows = jax.device_put(z, split)
    symbolic = jax.ShapeDtypeStruct(export.symbolic_shape('n'), z.dtype)
    several = export.export(jax.jit(jnp.arctan), platforms=('tpu', 'cpu'))
    for got in (
        jax.jit(jnp.arctan)(rows),
        jax.jit(shard_map(jnp.arctan, mesh=js.Mesh(mesh.devices, ('x', 'y')),
                          in_specs=ps, out_specs=ps))(z),
        export.export(jax.jit(jnp.arctan))(symbolic).call(z),
        several(z).call(z), several(symbolic).call(z),
        jax.jit(lambda z: several(z).call(z))(z),
        jax.lax.map(jnp.arctan, z), jax.vmap(jnp.arctan)(z),
        jax.lax.cond(True, jnp.arctan, jnp.exp, z)):
      np.testing.assert_array_equal(np.asarray(got), want)


class ArrayApiComplexValuesUnchangedTest(jtu.JaxTestCase):

  @parameterized.parameters(*TABLES)
  def test_numbers(self, name):
    rng = np.random.RandomState(0)
    z = (rng.randn(64) + 1j * rng.randn(64)).astype(np.complex64)
    np.testing.assert_allclose(np.asarray(getattr(jnp, name)(z)),
                               getattr(np, name)(z), rtol=1e-4, atol=1e-5)

  def test_what_upstreams_tests_state(self):
    # lax_test.py, FunctionAccuracyTest: mpmath's values.
    for f in (jnp.exp, jnp.expm1, jnp.sinh, jnp.cosh):
      got = np.asarray(f(array([(-I, I), (I, I), (1, -I)], np.complex64)))
      self.assertTrue(np.isnan(got.real).all() and np.isnan(got.imag).all())
    for f in (jnp.sin, jnp.cos, jnp.tan):
      got = np.asarray(f(array([(I, 0), (-I, -0.)], np.complex64)))
      self.assertTrue(np.isnan(got.real).all() and np.isnan(got.imag).all())

  @parameterized.parameters(*LEFT)
  def test_what_derivatives_are_computed_from(self, name):
    f = getattr(jnp, name)
    z = array([(I, N), (-I, N), (N, I), (N, -I)], np.complex64)
    ones = jnp.ones_like(z)
    got = [f(z), jax.jit(f)(z)]
    if 'log' not in name:
      got += [jax.jvp(f, (z,), (ones,))[1], jax.vjp(f, z)[1](ones)[0],
              jax.jit(lambda z: jax.vjp(f, z)[1](ones)[0])(z)]
    for y in got:
      self.assertTrue((np.isnan(y.real) & np.isnan(y.imag)).all(), y)

  def test_gradient_by_a_power(self):
    z = array([(I, N), (N, I)], np.complex64)
    for y in (jnp.zeros_like(z), jnp.ones_like(z)):
      f = lambda z, y=y: jax.jvp(
          lambda y: jax.lax.pow(z, y), (y,), (jnp.ones_like(z),))[1]
      for slope in (f(z), jax.jit(f)(z)):
        self.assertTrue((np.isnan(slope.real) & np.isnan(slope.imag)).all())

  @parameterized.parameters(*TABLES)
  def test_derivatives_at_special_values(self, name):
    # What the rules give, from functions that nothing corrects.
    one = lambda z: jnp.ones_like(z)
    square = lambda z: jax.lax.mul(z, z)
    slopes = {
        'log1p': lambda z: 1 / (z + one(z)),
        'log2': lambda z: 1 / (z * jnp.log(2.)),
        'tanh': lambda z: jnp.full_like(z, complex(N, N)),
        'tan': lambda z: jnp.full_like(z, complex(N, N)),
        'arcsinh': lambda z: jax.lax.rsqrt(square(z) + one(z)),
        'arctan': lambda z: 1 / (one(z) + square(z)),
    }
    if name not in slopes:
      self.skipTest('its rule differs between releases')
    f = getattr(jnp, name)
    z = array([(N, 0), (N, -0.), (0, N), (-0., N), (N, 1), (1, N)],
              np.complex64)
    want = slopes[name](z)
    for slope in (jax.jvp(f, (z,), (one(z),))[1], jax.vjp(f, z)[1](one(z))[0]):
      for part in ('real', 'imag'):
        np.testing.assert_array_equal(getattr(slope, part),
                                      getattr(want, part))

  def test_other_platforms(self):
    z = np.ones(3, np.complex64)
    for f in (jnp.log1p, jnp.tanh, jnp.arctan):
      for platform in ('tpu', 'cuda'):
        text = jax.jit(f).trace(z).lower(
            lowering_platforms=(platform,)).as_text()
        self.assertNotIn('compare', text)

  def test_what_is_traced_and_what_is_real(self):
    for f in (jax.lax.exp, jax.lax.log1p, jax.lax.tanh, jax.lax.tan):
      jaxpr = jax.make_jaxpr(f)(np.ones(3, np.complex64))
      self.assertLen(jaxpr.eqns, 1)
      for dtype in (np.float32, jnp.bfloat16):
        text = jax.jit(f).lower(np.ones(3, dtype)).as_text()
        self.assertNotIn('select', text)

  def test_derivatives(self):
    z = np.complex64(0.3 - 0.7j)
    for f, df in ((jnp.exp, np.exp), (jnp.sqrt, lambda z: 0.5 / np.sqrt(z)),
                  (jnp.log, lambda z: 1 / z), (jnp.sinh, np.cosh),
                  (jnp.tanh, lambda z: 1 - np.tanh(z) ** 2)):
      slope, tangent = jax.jit(lambda z, f=f: (
          jax.grad(f, holomorphic=True)(z), jax.jvp(f, (z,), (z,))[1]))(z)
      np.testing.assert_allclose(slope, df(z), rtol=1e-5)
      np.testing.assert_allclose(tangent, df(z) * z, rtol=1e-5)
