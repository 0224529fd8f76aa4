# SPDX-License-Identifier: Apache-2.0
"""take_along_axis without an axis (jax#27606)."""
import inspect

from absl.testing import parameterized
import jax
from jax._src import test_util as jtu
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
import numpy as np
from testing.red import red
from testing.sharding import eight_devices

jax.config.parse_flags_with_absl()
eight_devices()

# What pristine JAX says.
NO_DEFAULT_AXIS = (r'^TypeError: take_along_axis\(\) missing 1 required '
                   "positional argument: 'axis'")

X = np.arange(24, dtype=np.float32).reshape(2, 4, 3) ** 2
I = np.array([[[2, 0]], [[1, 1]]])


class ArrayApiTakeAlongAxisTest(jtu.JaxTestCase):

  @red(NO_DEFAULT_AXIS)
  @parameterized.parameters(
      (X, I), (X[0, 0], I[0, 0]), (X[..., :1], 0 * I), (X, -1 - I),
      (X.astype(np.int8), I), (X > 9, I))
  def test_last_axis(self, x, indices):
    expected = np.take_along_axis(
        x, np.broadcast_to(indices, (*x.shape[:-1], 2)), axis=-1)
    for f in (jnp.take_along_axis, jax.jit(jnp.take_along_axis)):
      self.assertArraysEqual(f(x, indices), expected)
      self.assertArraysEqual(f(indices=indices, arr=x), expected)
    self.assertArraysEqual(
        jnp.take_along_axis(x, indices, mode='clip'), expected)

  @red(NO_DEFAULT_AXIS)
  def test_last_axis_transformed(self):
    got = jax.vmap(jnp.take_along_axis)(X, I)
    self.assertArraysEqual(got, jnp.take_along_axis(X, I, axis=-1))
    grad = jax.grad(lambda x: jnp.take_along_axis(x, I).sum())(X)
    expected = np.zeros_like(X)
    for row, columns in enumerate(I[:, 0]):
      for column in columns:
        expected[row, :, column] += 1
    self.assertArraysEqual(grad, expected)

  @red(NO_DEFAULT_AXIS)
  @parameterized.parameters(((8,), 'x'), ((4, 2), ('x', 'y')), ((1,), 'x'))
  def test_last_axis_of_a_sharded_array(self, shape, axes):
    devices = np.array(jax.devices()[:np.prod(shape)]).reshape(shape)
    sharding = NamedSharding(Mesh(devices, ('x', 'y')[:len(shape)]), P(axes))
    x = np.arange(24, dtype=np.float32).reshape(8, 3)
    indices = np.arange(8)[:, None] % 3
    x, where = (jax.device_put(a, sharding) for a in (x, indices))
    for f in (jnp.take_along_axis, jax.jit(jnp.take_along_axis)):
      self.assertArraysEqual(f(x, where), np.take_along_axis(
          np.asarray(x), indices, axis=-1))

  @red(NO_DEFAULT_AXIS)
  def test_last_axis_in_the_signature(self):
    got = jnp.take_along_axis(X, I)
    self.assertArraysEqual(got, jnp.take_along_axis(X, I, axis=-1))
    parameters = inspect.signature(jnp.take_along_axis).parameters
    self.assertEqual([p.default for p in parameters.values()][2:5],
                     [-1, None, None])

  def test_a_given_axis(self):
    first = np.array([[[1, 0, 0]]])
    expected = np.take_along_axis(X, np.broadcast_to(first, (1, 4, 3)), axis=0)
    for f in (jnp.take_along_axis,
              jax.jit(jnp.take_along_axis, static_argnums=2)):
      self.assertArraysEqual(f(X, first, 0), expected)
      self.assertArraysEqual(f(X, first, -3), expected)
    flat = np.array([5, 0, 23])
    self.assertArraysEqual(
        jnp.take_along_axis(X, flat, axis=None), X.ravel()[flat])
    out = jnp.take_along_axis(X[0, 0], np.array([7]), 0, 'fill', 5.)
    self.assertArraysEqual(out, np.array([5], np.float32))
