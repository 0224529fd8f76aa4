# SPDX-License-Identifier: Apache-2.0
"""Functions of batches over an Explicit axis, with jax_explicit_reshard on.

The oracle is the same function of the whole batch, over no mesh.
"""

from absl.testing import parameterized
import jax
from jax import lax
import jax.numpy as jnp
from jax.numpy import linalg
from jax.scipy import linalg as scipy_linalg
import numpy as np
from testing.oracle import OracleTestCase
from testing.red import red
from testing.sharding import eight_devices

jax.config.parse_flags_with_absl()
eight_devices()

RNG = np.random.RandomState(0)
A = RNG.rand(4, 6, 6).astype(np.float32)
S = A @ A.transpose(0, 2, 1) + 6 * np.eye(6, dtype=np.float32)
B = RNG.rand(4, 6, 2).astype(np.float32)
V = RNG.randn(4, 8).astype(np.float32)
INDICES = RNG.randint(0, 8, (4, 5))
TABLE = RNG.randn(8, 3).astype(np.float32)
IMAGES = RNG.randn(4, 2, 8, 8).astype(np.float32)
KERNEL = RNG.randn(3, 2, 3, 3).astype(np.float32)


def pool(x):
  return lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2),
                           'VALID')


def interp(x, xp, fp):
  return jnp.vectorize(jnp.interp, signature='(n),(m),(m)->(n)')(x, xp, fp)


# Name: a function of batches and of single elements, and its batches.
FUNCTIONS = {
    'inv': (linalg.inv, (S,)),
    'solve': (linalg.solve, (S, B)),
    'det': (linalg.det, (S,)),
    'cholesky': (linalg.cholesky, (S,)),
    'qr': (lambda a: linalg.qr(a)[1], (A,)),
    'svd': (lambda a: linalg.svd(a)[1], (A,)),
    'eigh': (lambda a: linalg.eigh(a)[0], (S,)),
    'pinv': (linalg.pinv, (A,)),
    'diagonal': (linalg.diagonal, (A,)),
    'expm': (scipy_linalg.expm, (A,)),
    'cho_solve': (lambda a, b: scipy_linalg.cho_solve(
        scipy_linalg.cho_factor(a), b), (S, B)),
    'lu_solve': (lambda a, b: scipy_linalg.lu_solve(
        scipy_linalg.lu_factor(a), b), (S, B)),
    'take_along_axis': (
        lambda a, i: jnp.take_along_axis(a, i, -1), (V, INDICES)),
    'take': (lambda i: jnp.take(TABLE, i, axis=0), (INDICES,)),
    'columns': (lambda a: a[..., jnp.array([1, 3])], (V,)),
    'sort': (lambda a: jnp.sort(a, -1), (V,)),
    'top_k': (lambda a: lax.top_k(a, 3)[0], (V,)),
    'median': (lambda a: jnp.median(a, -1), (V,)),
    'cumsum': (lambda a: jnp.cumsum(a, -1), (V,)),
    'fft': (lambda a: jnp.abs(jnp.fft.fft(a)), (V,)),
    'softmax': (jax.nn.softmax, (V,)),
    'interp': (interp, (V, np.sort(V), V[::-1])),
    'interp_in_table': (
        lambda a: jnp.interp(a, TABLE[:, 0].cumsum(), TABLE[:, 1]), (V,)),
    'row': (lambda i: jnp.asarray(TABLE)[i], (INDICES,)),
}
# Of single elements alone.
OF_ELEMENTS = {
    'polar': (lambda a: scipy_linalg.polar(a)[0], (A,)),
    'sqrtm': (lambda a: scipy_linalg.sqrtm(a).real, (S,)),
}


def gradient(f, args):
  """The gradient by the batches of numbers."""
  by = tuple(n for n, a in enumerate(args) if a.dtype == np.float32)
  return jax.grad(lambda *args: jnp.sum(jnp.sin(f(*args))), by)


FORMS = {
    'batch': lambda f, args: f,
    'vmap': lambda f, args: jax.vmap(f),
    'gradient': gradient,
    'vmap_of_gradient': lambda f, args: jax.vmap(gradient(f, args)),
}


@red("^AttributeError: .*has no attribute '", api_missing=True)
class BatchedFunctionsTest(OracleTestCase):

  def check(self, f, args, specs, sizes=(2, 2), context=False, jit=True):
    with jax.explicit_reshard('allow'):
      return self.same(f, args, specs, sizes, context=context, jit=jit,
                       rtol=2e-3, atol=2e-3)

  @parameterized.parameters(*[
      (name, form) for name in FUNCTIONS for form in FORMS
      if (name not in ('take', 'row') or 'gradient' not in form)])
  def test_values(self, name, form):
    f, args = FUNCTIONS[name]
    self.check(FORMS[form](f, args), args, [jax.P('x')] * len(args))

  @parameterized.product(name=list(OF_ELEMENTS), context=[True, False])
  def test_values_of_elements(self, name, context):
    f, args = OF_ELEMENTS[name]
    self.check(jax.vmap(f), args, [jax.P('x')] * len(args), context=context)

  @parameterized.product(name=['det', 'inv', 'interp', 'interp_in_table'],
                         form=['gradient', 'vmap_of_gradient'],
                         context=[True, False])
  def test_context_and_without_jit(self, name, form, context):
    f, args = FUNCTIONS[name]
    self.check(FORMS[form](f, args), args, [jax.P('x')] * len(args),
               context=context, jit=context)

  @parameterized.product(by=[0, (0, 1)], jit=[True, False],
                         context=[True, False])
  def test_gradient_of_convolution(self, by, jit, context):
    def of_images(x):
      return jax.grad(lambda k, x: jnp.sum(jnp.sin(
          lax.conv(x, k, (1, 1), 'SAME'))), by)(jnp.asarray(KERNEL), x)
    self.check(of_images, (IMAGES,), [jax.P('x')], context=context, jit=jit)

  @parameterized.product(form=['batch', 'gradient'], jit=[True, False])
  def test_batch_of_a_constant(self, form, jit):
    def f(a):
      return jnp.einsum('bij,bjk->bik', a, jnp.asarray(B))
    self.check(FORMS[form](f, (A,)), (A,), [jax.P('x')], jit=jit)

  @parameterized.product(name=['inv', 'expm', 'columns', 'take_along_axis'],
                         sizes=[(4, 1), (1, 2)])
  def test_other_meshes(self, name, sizes):
    f, args = FUNCTIONS[name]
    self.check(jax.vmap(f), args, [jax.P('x')] * len(args), sizes)

  def test_spec(self):
    out = self.check(jax.vmap(linalg.inv), (S,), [jax.P('x')])
    self.assertEqual(out.sharding.spec[0], 'x')

  @parameterized.parameters('conv', 'pool')
  def test_images(self, name):
    f = {'conv': lambda x: lax.conv(x, KERNEL, (1, 1), 'SAME'),
         'pool': pool}[name]
    self.check(f, (IMAGES,), [jax.P('x')])
    self.check(gradient(f, (IMAGES,)), (IMAGES,), [jax.P('x')])

  def test_what_is_spread_where_it_is_indexed_stays_refused(self):
    with jax.explicit_reshard('allow'), self.assertRaisesRegex(
        Exception, 'out_sharding'):
      self.check(lambda a: a[jnp.array([1, 3])], (V,), [jax.P('x')])
