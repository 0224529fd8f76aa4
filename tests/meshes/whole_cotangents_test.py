# SPDX-License-Identifier: Apache-2.0
"""Gradients by weights over no mesh, of a batch over an Explicit axis.

The oracle is the same gradient of the whole batch, over no mesh.
"""
from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax import lax
from jax._src import test_util as jtu
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P
import numpy as np
from testing.oracle import OracleTestCase
from testing.oracle import explicit_mesh
from testing.red import red
from testing.sharding import eight_devices

jax.config.parse_flags_with_absl()
eight_devices()

# What pristine JAX says.
AMBIGUOUS = '^ShardingTypeError: .*ambiguous how the output should be sharded'
UNSPECIFIED = '^ShardingTypeError: Please specify the output sharding'
NO_PLACE = '^ValueError: Length of device assignment 1 is not equal'

RNG = np.random.RandomState(0)
ROWS = RNG.randn(4, 6).astype(np.float32)
IMAGES = RNG.randn(4, 4, 8, 8).astype(np.float32)
MATRIX = RNG.randn(6, 6).astype(np.float32)
KERNEL = RNG.randn(4, 4, 3, 3).astype(np.float32)


def conv(x, k, **params):
  return lax.conv_general_dilated(x, k, (1, 1), 'SAME', **params)


# Functions of a batch and weights; their batch and weights.
PRODUCTS = {
    'matmul': (lambda x, w: x @ w, ROWS, MATRIX),
    'outer': (lambda x, w: jnp.einsum('bi,ij->jb', x, w), ROWS, MATRIX),
    'layers': (lambda x, w: jnp.tanh(jnp.tanh(x @ w) @ w), ROWS, MATRIX),
    'scan': (lambda x, w: lax.scan(
        lambda c, _: (jnp.tanh(c @ w), None), x, length=3)[0], ROWS, MATRIX),
    'jit': (lambda x, w: jax.jit(lambda a, b: a @ b)(x, w), ROWS, MATRIX),
    'checkpoint': (jax.checkpoint(lambda x, w: x @ w), ROWS, MATRIX),
    'conv': (conv, IMAGES, KERNEL),
    'strides': (lambda x, k: lax.conv(x, k, (2, 1), 'VALID'), IMAGES, KERNEL),
    'layers_of_conv': (lambda x, k: conv(jnp.tanh(conv(x, k)), k), IMAGES,
                       KERNEL),
}


def gradient(f):
  return jax.grad(lambda x, w: jnp.sum(jnp.sin(f(x, w))), (0, 1))


class WholeCotangentsTest(OracleTestCase):

  def check(self, f, x, w, sizes=(2, 2), jit=True, context=False):
    return self.same(f, (x, w), (P('x'), None), sizes, jit=jit,
                     context=context, rtol=1e-4, atol=1e-4)

  @red(NO_PLACE, cases={'jit': False})
  @red(UNSPECIFIED, cases={'name': ['conv', 'strides', 'layers_of_conv']})
  @red(AMBIGUOUS)
  @parameterized.product(name=list(PRODUCTS), jit=[True, False],
                         sizes=[(2, 2), (4, 1), (1, 2)])
  def test_gradient(self, name, jit, sizes):
    f, x, w = PRODUCTS[name]
    self.check(gradient(f), x, w, sizes, jit)

  @red(UNSPECIFIED)
  @parameterized.parameters('conv', 'strides', 'layers_of_conv')
  def test_context(self, name):
    f, x, w = PRODUCTS[name]
    self.check(gradient(f), x, w, context=True)

  @red(UNSPECIFIED, cases=['conv'])
  @red(AMBIGUOUS)
  @parameterized.parameters('matmul', 'layers', 'conv')
  def test_of_elements(self, name):
    f, x, w = PRODUCTS[name]
    self.check(gradient(jax.vmap(f, (0, None))), x[:, None], w)

  @red(UNSPECIFIED, cases=['conv'])
  @red(AMBIGUOUS)
  @parameterized.parameters('matmul', 'conv')
  def test_second_derivative(self, name):
    f, x, w = PRODUCTS[name]
    self.check(lambda x, w: jax.grad(lambda w: jnp.sum(
        gradient(f)(x, w)[1] ** 2))(w), x, w)

  @red(AMBIGUOUS)
  def test_whole(self):
    f, x, w = PRODUCTS['matmul']
    by_x, by_w = self.check(gradient(f), x, w)
    self.assertEqual(by_x.sharding.spec[0], 'x')
    self.assertTrue(by_w.sharding.is_fully_replicated)


class WholeCotangentsUnchangedTest(jtu.JaxTestCase):

  @parameterized.product(name=[n for n in PRODUCTS if n != 'scan'],
                         sizes=[(2, 2), (1, 2)])
  def test_placed_weights(self, name, sizes):
    f, x, w = PRODUCTS[name]
    mesh = explicit_mesh(*sizes)
    args = (jax.device_put(x, NamedSharding(mesh, P('x'))),
            jax.device_put(w, NamedSharding(mesh, P())))
    for g, v in zip(jax.jit(gradient(f))(*args), gradient(f)(x, w)):
      self.assertAllClose(np.asarray(g), np.asarray(v), rtol=1e-4, atol=1e-4)

  def test_spread_contraction_of_two_arguments(self):
    mesh = explicit_mesh(2, 2)
    x = jax.device_put(ROWS, NamedSharding(mesh, P('x')))
    with self.assertRaisesRegex(Exception, 'ambiguous'):
      jax.jit(lambda x: x.T @ x)(x)

  @parameterized.parameters(
      ({'feature_group_count': 2}, P('x')), ({'batch_group_count': 2}, P('x')),
      ({}, P(None, None, 'x')), ({}, P('y', None, 'x')))
  def test_convolution_that_xla_sums_twice(self, params, spec):
    mesh = explicit_mesh(2, 2)
    x = jax.device_put(IMAGES, NamedSharding(mesh, spec))
    groups = params.get('feature_group_count', 1)
    f = gradient(lambda x, k: conv(x, k, **params))
    with self.assertRaisesRegex(Exception, 'specify the output sharding'):
      jax.jit(f)(x, jnp.asarray(KERNEL[:, :4 // groups]))

  @parameterized.parameters('matmul', 'outer', 'jit', 'checkpoint')
  def test_spread_features(self, name):
    # The cotangent has the spec that the product has, as on pristine JAX.
    f, x, w = PRODUCTS[name]
    mesh = explicit_mesh(2, 2)
    x = jax.device_put(x, NamedSharding(mesh, P(None, 'y')))
    got = jax.jit(gradient(f))(x, jnp.asarray(w))[1]
    self.assertAllClose(np.asarray(got), np.asarray(gradient(f)(
        np.asarray(x), w)[1]), rtol=1e-4, atol=1e-4)


if __name__ == '__main__':
  absltest.main(testLoader=jtu.JaxTestLoader())
