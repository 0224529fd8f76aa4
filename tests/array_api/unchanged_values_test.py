# SPDX-License-Identifier: Apache-2.0
"""Signs, remainders and quotients keep their values and jaxprs (jax#27606)."""
from absl.testing import parameterized
import jax
from jax import lax
from jax import sharding as js
from jax._src import test_util as jtu
from jax.experimental import jet
from jax.experimental import pallas
from jax.experimental import sparse
from jax.experimental.compute_on import compute_on
import jax.numpy as jnp
import numpy as np

jax.config.parse_flags_with_absl()

I, N = np.inf, np.nan
REMAINDERS = {
    'remainder': jnp.remainder, 'mod': jnp.mod, 'operator': lambda a, b: a % b,
    'divmod': lambda a, b: jnp.divmod(a, b)[1],
    'jit': jax.jit(jnp.remainder), 'vmap': jax.vmap(jnp.remainder),
}
REALS = {
    'sign': jnp.sign, 'remainder': lambda x: x % 2.,
    'quotient': lambda x: x // 2.,
    'divmod': lambda x: jnp.divmod(x, 2.)[0], 'fmod': lambda x: jnp.fmod(x, 2.),
}
COMPLEX = ('sign', 'exp', 'expm1', 'log', 'log1p', 'log2', 'log10', 'sqrt',
           'sin', 'cos', 'tan', 'sinh', 'cosh', 'tanh', 'arcsin', 'arccos',
           'arctan', 'arcsinh', 'arccosh', 'arctanh')


def primitives_of(jaxpr):
  """The names of the primitives, those of inner jaxprs too."""
  names = set()
  for eqn in jaxpr.eqns:
    inner = [p for p in eqn.params.values() if hasattr(p, 'jaxpr')]
    names |= {eqn.primitive.name} if not inner else set()
    for closed in inner:
      names |= primitives_of(closed.jaxpr)
  return names


def host_memory():
  """A sharding in a host memory of the first device, and its kind."""
  device = jax.devices()[0]
  kinds = [m.kind for m in device.addressable_memories()]
  kind = 'pinned_host' if 'pinned_host' in kinds else 'unpinned_host'
  return js.SingleDeviceSharding(device, memory_kind=kind)


@jtu.with_config(jax_numpy_dtype_promotion='standard')
class ArrayApiUnchangedValuesTest(jtu.JaxTestCase):

  @parameterized.parameters(*REMAINDERS)
  def test_gradient_by_a_masked_remainder(self, name):
    f = REMAINDERS[name]
    a, b = jnp.array([1., 4., 5.]), jnp.array([N, 2., 2.])
    masked = lambda a: jnp.where(jnp.isnan(b), 0., f(a, b))
    loss = lambda a: masked(a).sum()
    for slope in (jax.grad(loss)(a), jax.jit(jax.grad(loss))(a),
                  jax.vjp(masked, a)[1](jnp.ones(3))[0],
                  jax.linearize(masked, a)[1](jnp.ones(3)),
                  jax.jvp(masked, (a,), (jnp.ones(3),))[1]):
      np.testing.assert_array_equal(slope, [0., 1., 1.])
    by_b = jax.grad(lambda b: jnp.where(jnp.isnan(b), 0., f(a, b)).sum())(b)
    np.testing.assert_array_equal(by_b, [N, -2., -2.])  # 0 times nan

  def test_gradient_by_a_masked_remainder_in_loops(self):
    a, b = jnp.array([1., 4., 5.]), jnp.array([N, 2., 2.])
    safe = lambda a, b: jnp.where(jnp.isnan(b), 0., a % b)
    rows = lambda a: lax.map(lambda ab: safe(*ab), (a, b)).sum()
    scanned = lambda a: lax.scan(
        lambda c, ab: (c + safe(*ab), None), 0., (a, b))[0]
    kept = lambda a: jax.checkpoint(safe)(a, b).sum()
    for f in (rows, scanned, kept):
      for wrap in (lambda f: f, jax.jit):
        np.testing.assert_array_equal(wrap(jax.grad(f))(a), [0., 1., 1.])

  def test_derivatives_at_zeros(self):
    for x, y in ((4., 2.), (-4., 2.), (4., -2.), (5.5, 2.), (-5.5, 2.),
                 (0., 3.), (-0., 3.)):
      for wrap in (lambda f: f, jax.jit):
        dx, dy = wrap(jax.grad(jnp.remainder, (0, 1)))(x, y)
        self.assertEqual(dx, 1., (x, y))
        # Derivative of x - y * trunc(x / y), or of that plus y.
        quotients = {-np.trunc(x / y), -np.floor(x / y)}
        self.assertIn(float(dy), quotients, (x, y))
        self.assertEqual(wrap(jax.grad(jnp.floor_divide, (0, 1)))(x, y),
                         (0., 0.))
    self.assertEqual(jax.grad(jnp.sign)(2.), 0.)

  def test_subnormal_remainder_is_kept(self):
    if (0, 8, 2) <= jax.__version_info__ < (0, 9):
      self.skipTest('jaxlib rounds it to zero there')
    for dtype in (np.float32, jnp.bfloat16):
      x, y = jnp.asarray([3e-38], dtype), jnp.asarray([2e-38], dtype)
      for f in REMAINDERS.values():
        got = np.asarray(f(x, y)).astype(np.float64)
        # 1e-38 is less than the least normal number.
        np.testing.assert_allclose(got, 1e-38, rtol=0.05)

  def test_quotients_as_in_numpy(self):
    x = np.array([I, -I, I, 1., -1., N, 7., -7.], np.float32)
    y = np.array([1., 2., I, I, I, 1., 2., 2.], np.float32)
    with np.errstate(all='ignore'):
      want = np.divmod(x, y)
      quotient = np.floor_divide(x, y)
    for wrap in (lambda f: f, jax.jit, jax.vmap):
      np.testing.assert_array_equal(wrap(jnp.floor_divide)(x, y), quotient)
      for g, w in zip(wrap(jnp.divmod)(x, y), want):
        np.testing.assert_array_equal(g, w)

  def test_sign_of_zero_is_the_primitives(self):
    zeros = np.array([0., -0.], np.float32)
    np.testing.assert_array_equal(np.signbit(jnp.sign(zeros)), [False, True])
    # A subnormal part stays.
    got = np.asarray(jnp.sign(np.array([1e-40j, 1e-40], np.complex64)))
    self.assertTrue((got != 0).any() or (np.abs(got) <= 1).all())

  def test_jaxprs(self):
    x = jnp.array([1., 2.])
    for f, args, want in (
        (jnp.sign, (x,), {'sign'}), (jnp.sign, (x + 1j,), {'sign'}),
        (jnp.remainder, (x, x), {'rem', 'ne', 'lt', 'and', 'add', 'select_n'}),
        (jnp.exp, (x + 1j,), {'exp'}), (jnp.tanh, (x + 1j,), {'tanh'}),
        (jnp.arctan, (x + 1j,), {'atan'})):
      names = primitives_of(jax.make_jaxpr(f)(*args).jaxpr)
      self.assertEqual(names, want, f)
    names = primitives_of(jax.make_jaxpr(jnp.floor_divide)(x, x).jaxpr)
    self.assertFalse(names & {'abs', 'mul', 'is_finite'}, names)

  @parameterized.parameters(*REALS)
  def test_in_host_memory(self, name):
    sharding = host_memory()
    x = np.array([5., -3., 2.], np.float32)
    on_host = jax.device_put(x, sharding)
    want = np.asarray(REALS[name](jnp.asarray(x)))
    for f in (REALS[name], jax.jit(REALS[name])):
      np.testing.assert_array_equal(f(on_host), want)
    by_array = {'sign': lambda x: jnp.sign(x), 'remainder': lambda x: x % x,
                'quotient': lambda x: x // x,
                'divmod': lambda x: jnp.divmod(x, x)[1],
                'fmod': lambda x: jnp.fmod(x, x)}[name]
    np.testing.assert_array_equal(by_array(on_host), by_array(jnp.asarray(x)))

  @parameterized.parameters(*COMPLEX)
  def test_complex_in_host_memory(self, name):
    f = getattr(jnp, name)
    z = np.array([1 + 2j, complex(0, N), complex(N, 0), 0.5], np.complex64)
    on_host = jax.device_put(z, host_memory())
    want = np.asarray(f(jnp.asarray(z)))
    for wrap in (lambda f: f, jax.jit):
      np.testing.assert_allclose(wrap(f)(on_host), want, rtol=1e-6)

  def test_frequencies_in_host_memory(self):
    for f, g in ((jnp.fft.fftfreq, np.fft.fftfreq),
                 (jnp.fft.rfftfreq, np.fft.rfftfreq)):
      try:
        got = f(5, device=host_memory())
      except Exception as e:  # pylint: disable=broad-except
        if 'annotate_device_placement' not in str(e):
          raise
        self.skipTest('the CPU places nothing, from 0.7.1 to 0.10.1')
      np.testing.assert_allclose(got, g(5), rtol=1e-6)

  @parameterized.parameters(*REALS, 'exp', 'log1p', 'tanh', 'arctan', 'arccos')
  def test_computed_on_the_host(self, name):
    f = REALS.get(name) or (lambda x: getattr(jnp, name)(x * (1 + 1j)))
    x = jnp.array([5., -3., 2.])
    if jax.__version_info__ < (0, 11, 1):
      on_host = compute_on('device_host')(f)
    else:
      on_host = compute_on(f, compute_type='device_host',
                           out_memory_spaces=jax.memory.Space.Device)
    np.testing.assert_allclose(jax.jit(on_host)(x), f(x), rtol=1e-6)

  def test_sparse(self):
    dense = np.array([[0., -2.], [3., 0.]], np.float32)
    for dtype in (np.float32, np.complex64):
      m = sparse.BCOO.fromdense(jnp.asarray(dense, dtype))
      for name in ('sign', 'tanh', 'arctan'):
        got = sparse.sparsify(getattr(jnp, name))(m).todense()
        np.testing.assert_allclose(
            got, getattr(np, name)(dense.astype(dtype)), rtol=1e-6)

  def test_kernel_for_tpu(self):
    def kernel(x, y):
      y[...] = x[...] % 3.
    def f(x):
      shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
      return pallas.pallas_call(kernel, out_shape=shape)(x)
    x = jnp.ones((8, 128))
    text = jax.jit(f).trace(x).lower(lowering_platforms=('tpu',)).as_text()
    self.assertIn('tpu_custom_call', text)

  def test_kernel_interpreted(self):
    def kernel(x, y):
      y[...] = jnp.sign(x[...] % 3.) + x[...] // 3.
    x = jnp.arange(8.)
    got = pallas.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(
        x.shape, x.dtype), interpret=True)(x)
    np.testing.assert_array_equal(got, np.sign(x % 3) + x // 3)

  def test_taylor_series(self):
    for f, want in ((jnp.sign, [0., 0.]), (jnp.tanh, None)):
      value, series = jet.jet(f, (0.5,), ([1., 0.],))
      self.assertAllClose(value, f(0.5))
      if want is not None:
        np.testing.assert_array_equal(series, want)

  def test_numbers(self):
    rng = np.random.RandomState(0)
    x = rng.uniform(-9, 9, 500).astype(np.float32)
    y = rng.uniform(-3, 3, 500).astype(np.float32)
    np.testing.assert_allclose(x // y, np.floor_divide(x, y))
    np.testing.assert_allclose(jnp.remainder(x, y), np.remainder(x, y),
                               rtol=1e-5, atol=1e-6)
    for dtype in (np.int32, np.uint8):
      i = rng.randint(1, 90, 50).astype(dtype)
      j = rng.randint(1, 9, 50).astype(dtype)
      np.testing.assert_array_equal(jnp.remainder(i, j), np.remainder(i, j))
      np.testing.assert_array_equal(jnp.floor_divide(i, j), i // j)
