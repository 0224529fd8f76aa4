# SPDX-License-Identifier: Apache-2.0
"""Constraints to the device on which an uncommitted array is already."""
from absl.testing import parameterized
import jax
from jax import lax
from jax._src import test_util as jtu
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from jax.sharding import SingleDeviceSharding
import numpy as np
from testing.red import red
from testing.sharding import eight_devices

jax.config.parse_flags_with_absl()
eight_devices()

# What pristine JAX says.
UNCOMMITTED = '^AssertionError: False is not true : stays uncommitted'

X = np.arange(4, dtype=np.float32)


def of_mesh(shape=(1,), spec=P()):
  devices = np.array(jax.devices()[:np.prod(shape)]).reshape(shape)
  return NamedSharding(Mesh(devices, ('x', 'y')[:len(shape)]), spec)


def of_device(i=0):
  return SingleDeviceSharding(jax.devices()[i])


ONE_DEVICE = (
    of_device, of_mesh, lambda: of_mesh(spec=P('x')),
    lambda: of_mesh((1, 1), P('x', 'y')))


class CommittedTest(jtu.JaxTestCase):

  def check(self, y, expected):
    self.assertTrue(y.committed, 'stays uncommitted')
    self.assertEqual(y.devices(), {jax.devices()[0]})
    self.assertArraysEqual(y, expected)

  @red(UNCOMMITTED)
  @parameterized.parameters(*ONE_DEVICE)
  def test_committed(self, sharding):
    x = jnp.ones((2, 2)) * 3
    y = lax.with_sharding_constraint(x, sharding())
    self.check(y, np.full((2, 2), 3, np.float32))
    self.assertFalse(x.committed)
    self.assertEqual(y.unsafe_buffer_pointer(), x.unsafe_buffer_pointer())

  @red(UNCOMMITTED)
  @parameterized.parameters(*ONE_DEVICE)
  def test_committed_as_by_jit(self, sharding):
    s = sharding()
    f = jax.jit(lambda x: lax.with_sharding_constraint(x, s))
    eager = lax.with_sharding_constraint(jnp.ones((2, 2)), s)
    self.check(eager, np.ones((2, 2), np.float32))
    self.assertArraysEqual(eager, f(jnp.ones((2, 2))))

  @red(UNCOMMITTED)
  def test_committed_in_a_tree(self):
    tree = {'a': jnp.asarray(X), 'b': [jnp.float32(2), jax.random.key(0)]}
    tree = lax.with_sharding_constraint(tree, of_device())
    for leaf in jax.tree.leaves(tree):
      self.assertTrue(leaf.committed, 'stays uncommitted')

  @red(UNCOMMITTED)
  def test_committed_under_transformations(self):
    constrain = lambda x: lax.with_sharding_constraint(x, of_device())
    self.check(jax.vmap(constrain)(jnp.asarray(X)), X)
    value, grad = jax.value_and_grad(lambda x: constrain(x)[1])(jnp.asarray(X))
    self.check(value, X[1])
    self.assertArraysEqual(grad, np.eye(4, dtype=np.float32)[1])

  @red('^AssertionError: ValueError not raised')
  def test_stays_where_it_is(self):
    x = lax.with_sharding_constraint(jnp.asarray(X), of_device())
    elsewhere = jax.device_put(X, jax.devices()[1])
    with self.assertRaisesRegex(ValueError, 'incompatible devices'):
      x + elsewhere  # pylint: disable=pointless-statement

  def test_moved(self):
    for sharding in (of_device(1), of_mesh((8,)), of_mesh((4, 2), P('x'))):
      y = lax.with_sharding_constraint(jnp.asarray(X), sharding)
      self.assertTrue(y.committed)
      self.assertEqual(y.sharding, sharding)
      self.assertArraysEqual(y, X)

  def test_already_committed(self):
    x = jax.device_put(X, of_mesh((4, 2), P('x')))
    y = lax.with_sharding_constraint(x, of_mesh((4, 2), P(('x',))))
    self.assertTrue(y.committed)
    self.assertArraysEqual(y, X)
    self.assertTrue(lax.with_sharding_constraint(X, of_device()).committed)

  def test_jaxpr(self):
    text = str(jax.make_jaxpr(
        lambda x: lax.with_sharding_constraint(x, of_device()))(X))
    self.assertEqual(text.count('sharding_constraint'), 1)
