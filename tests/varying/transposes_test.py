# SPDX-License-Identifier: Apache-2.0
"""Gradients inside shard_map that 0.6.0 refuses, for want of a type."""
from absl.testing import parameterized
import jax
from jax import lax
from jax._src import test_util as jtu
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
from testing.red import red
from varying.testing.common import run_rows

jax.config.parse_flags_with_absl()

# What pristine JAX says.
COTANGENT_MISMATCH = ('^TypeError: cotangent type does not match function '
                      r'output, expected \(ShapedArray\(complex64\[')
UNLIKE_OPERANDS = ('^ValueError: .*dynamic_update_slice requires varying '
                   'manual axes to match')

WHERE = [('1d', True), ('2d', True), ('1d', False)]
X = np.random.RandomState(0).uniform(0.5, 2., (4, 6)).astype(np.float32)
W = np.random.RandomState(1).uniform(0.5, 2., 6).astype(np.float32)


def gradient(f, x):
  """jax.grad with a cotangent that varies as the result does."""
  y, pull = jax.vjp(f, x)
  return pull(y * 0. + 1.)[0]


def rows(f, *args):
  return np.stack([jax.jit(f)(*a) for a in zip(*args)])


class TransposesTest(jtu.JaxTestCase):

  def check(self, f, where, tol=1e-4):
    got = run_rows(f, where, X)
    np.testing.assert_allclose(got, rows(f, X), rtol=tol, atol=tol)

  @red(UNLIKE_OPERANDS, bases='<0.7')
  @parameterized.product(where=WHERE)
  def test_update(self, where):
    def loss(x):
      y = lax.dynamic_update_slice(jnp.sin(x), x[:2] ** 2, (1,))
      return jnp.sum(y * jnp.arange(6.) * x)
    self.check(lambda x: gradient(loss, x), where)

  @red(UNLIKE_OPERANDS, bases='<0.7')
  @parameterized.product(where=WHERE)
  def test_update_at_an_index(self, where):
    def loss(x):
      i = (x[0] > 1.).astype(int)
      y = lax.dynamic_update_index_in_dim(x, x[5] ** 2, i, 0)
      return jnp.sum(y * jnp.arange(6.))
    self.check(lambda x: gradient(loss, x), where)

  @red(COTANGENT_MISMATCH, bases='<0.9.1')
  @parameterized.product(where=WHERE)
  def test_real_fft(self, where):
    def loss(x):
      return jnp.sum(jnp.abs(jnp.fft.rfft(x)) ** 2 * jnp.arange(4.))
    self.check(lambda x: gradient(loss, x), where)

  @red(COTANGENT_MISMATCH, bases='<0.9.1')
  @parameterized.product(where=WHERE)
  def test_real_fft_in_two_dimensions(self, where):
    def loss(x):
      y = jnp.fft.rfft2(x.reshape(2, 3))
      return jnp.sum(jnp.abs(y) ** 2 * jnp.arange(4.).reshape(2, 2))
    self.check(lambda x: gradient(loss, x), where)

  def test_outside_of_shard_map(self):
    # Upstream's own program: no array stands for the primal's type.
    f = lambda x: jax.grad(lambda x: jnp.abs(jnp.fft.rfft(x))[1])(x)
    np.testing.assert_allclose(
        f(X[0]), np.real(np.exp(1j * (
            np.angle(np.fft.rfft(X[0])[1]) + 2 * np.pi * np.arange(6) / 6))),
        rtol=1e-4, atol=1e-5)

  @red(r'^ValueError: unexpected JAX type \(e\.g\. shape/dtype\) for '
       r'argument to vjp function: got float32\[\],', bases='<0.7')
  @red('^TypeError: _psum_invariant_abstract_eval', bases='>=0.8.1,<0.9')
  @parameterized.parameters(*[w for w in WHERE if w[1]])
  def test_zero_cotangents(self, *where):
    # The cast of two values, of which one has no gradient.
    def f(w, x):
      h = jax.hessian(lambda x: jnp.sum(jnp.sin(x * w)))(x)
      return jnp.sum(h) * x[0]
    got = run_rows(jax.grad(f, 1), where, X, shared=W, out=P())
    want = sum(jax.grad(f, 1)(x, W) for x in X)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)

  @red(r"^TypeError: Argument 'Zero\((ShapedArray\()?float32\[3,2\]\{",
       bases='<0.6.2')
  @parameterized.parameters(*[w for w in WHERE if w[1]])
  def test_zero_cotangents_of_least_squares(self, *where):
    def f(x, w):
      a = jnp.eye(3) * 3. + x.reshape(3, 2) @ x.reshape(2, 3)
      return jnp.sum(jnp.linalg.lstsq(a, w.reshape(3, 2))[0] ** 2)
    got = run_rows(lambda x, w: gradient(lambda w: f(x, w), w), where, X,
                   shared=W, out=P())
    want = sum(jax.grad(f, 1)(x, W) for x in X)
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4)

  @red('^TypeError: .*must have equal output types')
  @parameterized.product(where=WHERE)
  def test_operand_that_no_branch_reads(self, where):
    # Found by random programs: 510020.
    def f(x, w):
      return lax.switch(
          (x[0] * 3).astype(int) % 3,
          [lambda a, b: b, lambda a, b: w, lambda a, b: jnp.zeros(6)],
          jnp.sin(w), x)
    def grads(x, w):
      pulled = jax.vjp(f, x, w)
      return pulled[1](pulled[0] * 0. + 1.)
    got = run_rows(lambda x, w: grads(x, w)[0], where, X, shared=W)
    want = [jax.jit(grads)(x, W) for x in X]
    np.testing.assert_allclose(got, np.stack([g[0] for g in want]))
    got = run_rows(lambda x, w: grads(x, w)[1], where, X, shared=W, out=P())
    np.testing.assert_allclose(got, sum(g[1] for g in want))

  @red(r'^TypeError: Called add with a float0 at position 0\. float0s do not '
       'support any operations by', bases='<0.8.2')
  @parameterized.product(where=WHERE, how=['jvp', 'linearize'])
  def test_integers_in_a_sum_of_a_tree(self, where, how):
    # Integers, and what does not move, have no tangent that could be summed.
    def f(x):
      tree = {'x': x, 'n': jnp.arange(3) + x.astype(int)[0], 'c': x * 0. + 2.}
      axes = ('x',) if where[0] == '1d' else ('x', 'y')
      y = lax.psum({**tree, 'c': lax.stop_gradient(tree['c'])}, axes)
      return y['x'] * y['n'][1].astype(x.dtype) + y['c']
    def g(x):
      if how == 'jvp':
        return jax.jvp(f, (x,), (jnp.cos(x),))
      y, push = jax.linearize(f, x)
      return y, push(jnp.cos(x))
    y, t = run_rows(g, where, X, out=P())
    n = np.float32(sum(1 + X[:, 0].astype(int)))
    np.testing.assert_allclose(y, X.sum(0) * n + 8., rtol=1e-5)
    np.testing.assert_allclose(t, np.cos(X).sum(0) * n, rtol=1e-4, atol=1e-5)
