# SPDX-License-Identifier: Apache-2.0
"""Gradients of ``linear_call`` in shard_map, against one device."""
from absl.testing import parameterized
import jax
from jax import lax
from jax._src import test_util as jtu
from jax.custom_derivatives import linear_call
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
from testing.red import red
from testing.sharding import shard_map
from varying.testing.common import make_mesh
from varying.testing.common import maybe_jit

jax.config.parse_flags_with_absl()

# What pristine JAX says.
SCAN_CARRY = ('^TypeError: scan body function carry input and carry output '
              'must have equal types')
OTHER_PRIMAL_TYPE = ('^ValueError: Input primal JAX type to VJP function is '
                     r'float32\[2\]\. Hence the expected')
OTHER_COTANGENT = {
    '<0.6.1':
        r'^ValueError: unexpected JAX type \(e\.g\. shape/dtype\) for '
        'argument to vjp function: got float32',
    '>=0.6.1,<0.8.2':
        "^ValueError: shard_map applied to the function '<lambda>' was given "
        'out_specs which require',
    '>=0.8.2,<0.10':
        r'^ValueError: Input primal JAX type to VJP function is float32\[2\]',
    '>=0.10': r'^ValueError: Expected cotangent type float32\[2\]',
}

MESHES = {'1d': (4,), '2d': (2, 2), 'ones': (1, 4)}
# A mesh, and whether to compile: each function runs both ways.
RUNS = [('1d', True), ('2d', False), ('2d', True), ('1d', False)]


def scaled(w, x):
  """``w * x``, linear in ``x``."""
  return linear_call(lambda w, x: w * x, lambda w, ct: w * ct, w, x)


def captured(w, x):
  return linear_call(lambda _, x: w * x, lambda _, ct: w * ct, (), x)


def beside(w, x):
  """One result that varies, one that doesn't, of two operands."""
  a, b = linear_call(lambda w, x: (w * x[0], 2. * x[1]),
                     lambda w, ct: (w * ct[0], 2. * ct[1]), w, (x, x * x))
  return a + b


def repeated(w, x):
  return lax.scan(lambda c, _: (scaled(w, c), None), x, None, length=2)[0]


def chosen(w, x):
  return lax.cond(w[0] > 1., lambda x: scaled(w, x), lambda x: x, x)


LOSSES = {f.__name__: f for f in (scaled, captured, beside, repeated, chosen)}
LOSSES['remat'] = jax.checkpoint(scaled)
LOSSES['jitted'] = jax.jit(scaled)


def gradient(f, w, x):
  return jax.grad(lambda x: jnp.sum(f(w, x) ** 2))(x)


def twice(f, w, x):
  return jax.grad(lambda x: jnp.sum(gradient(f, w, x) * x))(x)


class LinearCallTest(jtu.JaxTestCase):

  def setUp(self):
    super().setUp()
    self.w = np.arange(1, 9, dtype=np.float32).reshape(4, 2) / 4
    self.x = np.array([1., -2.], np.float32)

  def check(self, derivative, name, where, tol=1e-5):
    """A derivative inside, of each device's loss: the sum of theirs."""
    mesh, jit = where
    mesh = make_mesh(*MESHES[mesh])
    f = LOSSES[name]
    g = shard_map(lambda w, x: derivative(f, w[0], x), mesh=mesh,
                  in_specs=(P(mesh.axis_names), P()), out_specs=P())
    got = maybe_jit(jit)(g)(self.w, self.x)
    want = sum(derivative(f, w, self.x) for w in self.w)
    self.assertAllClose(got, want, rtol=tol)

  @red(SCAN_CARRY, cases=['repeated'])
  @red('^TypeError: cond branches must have equal output types',
       cases=['chosen'])
  @red(OTHER_COTANGENT)
  @parameterized.parameters(
      *((f, run) for n, f in enumerate(LOSSES)
        for run in RUNS[n % 2 * 2:n % 2 * 2 + 2]),
      ('scaled', ('ones', True)), ('beside', ('ones', False)))
  def test_gradient(self, name, where):
    self.check(gradient, name, where)

  @red(r'^AssertionError: \(ShapedArray\(float32\[2\]\), '
       r'ShapedArray\(float32\[2\]\{', bases='>=0.6.1,<0.8.2',
       cases={'where': [('2d', False), ('1d', False)]})
  @red(OTHER_COTANGENT)
  @parameterized.parameters(
      zip(('scaled', 'captured', 'beside', 'scaled'), RUNS))
  def test_second_derivative(self, name, where):
    self.check(twice, name, where)

  @red(SCAN_CARRY, cases=['repeated'])
  @red({
      '<0.7': '^_RepError: .*NoFail',
      '>=0.7,<0.8.2':
          '^ValueError: shard_map applied to the function '
          r"'transpose\(<lambda>\)' was given out_specs which",
      '>=0.8.2,<0.10': OTHER_PRIMAL_TYPE,
      '>=0.10,<0.10.2':
          r'^ValueError: Expected cotangent type float32\[2\] for primal type '
          r'float32\[2\], but got float32\[2\]\{V:',
      '>=0.10.2':
          r'^ValueError: Expected cotangent type float32\[2\] but got '
          r'float32\[2\]\{V:',
  })
  @parameterized.parameters(
      (f, jit) for f in ('scaled', 'repeated') for jit in (True, False))
  def test_gradient_from_outside(self, name, jit):
    mesh, f = make_mesh(2, 2), LOSSES[name]
    g = shard_map(lambda w, x: f(w[0], x)[None], mesh=mesh,
                  in_specs=(P(('x', 'y')), P()), out_specs=P(('x', 'y')))
    got = maybe_jit(jit)(jax.grad(lambda x: jnp.sum(g(self.w, x) ** 2)))(self.x)
    self.assertAllClose(
        got, sum(gradient(f, w, self.x) for w in self.w), rtol=1e-5)

  @red(OTHER_COTANGENT)
  @parameterized.parameters(True, False)
  def test_varies_along_one_axis(self, jit):
    # The sum is over the axis along which the operand doesn't vary, only.
    mesh = make_mesh(2, 2)
    x = np.stack([self.x, 3 * self.x])
    g = shard_map(lambda w, x: gradient(scaled, w[0], x[0])[None], mesh=mesh,
                  in_specs=(P(('x', 'y')), P('x')), out_specs=P('x'))
    w = self.w.reshape(2, 2, 2)
    want = np.stack([sum(gradient(scaled, w[i, j], x[i]) for j in range(2))
                     for i in range(2)])
    self.assertAllClose(maybe_jit(jit)(g)(self.w, x), want, rtol=1e-5)

  @red({
      '<0.8.2':
          "^ValueError: shard_map applied to the function 'transposed' was "
          'given out_specs which require',
      '>=0.8.2,<0.10': OTHER_PRIMAL_TYPE,
      '>=0.10,<0.10.2':
          r'^ValueError: Expected cotangent type float32\[2\] for primal type '
          r'float32\[2\], but got float32\[2\]\{V:x\}',
      '>=0.10.2':
          r'^ValueError: Expected cotangent type float32\[2\] but got '
          r'float32\[2\]\{V:x\}',
  })
  @parameterized.parameters(True, False)
  def test_transpose(self, jit):
    mesh = make_mesh(4)
    def transposed(w, x):
      return jax.linear_transpose(lambda x: scaled(w[0], x), x)(w[0])[0]
    g = shard_map(transposed, mesh=mesh, in_specs=(P('x'), P()), out_specs=P())
    self.assertAllClose(maybe_jit(jit)(g)(self.w, self.x),
                        np.sum(self.w ** 2, 0), rtol=1e-5)

  @parameterized.parameters(True, False)
  def test_an_operand_that_varies_is_not_summed(self, jit):
    # A guard.
    mesh = make_mesh(4)
    transposed = lambda w: jax.linear_transpose(
        lambda x: scaled(2., x), w)(w)[0]
    g = shard_map(transposed, mesh=mesh, in_specs=P('x'), out_specs=P('x'))
    self.assertAllClose(maybe_jit(jit)(g)(self.w), 2 * self.w)
