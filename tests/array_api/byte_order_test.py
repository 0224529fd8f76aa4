# SPDX-License-Identifier: Apache-2.0
"""NumPy arrays in another byte order than the machine's."""

from absl.testing import parameterized
import jax
from jax import sharding as js
from jax._src import test_util as jtu
import jax.numpy as jnp
import numpy as np
from testing.red import red
from testing.sharding import eight_devices

jax.config.parse_flags_with_absl()
eight_devices()

NUMBERS = np.arange(1, 9)


def swapped(dtype):
  return NUMBERS.astype(np.dtype(dtype).newbyteorder('S'))


def placements():
  devices = np.array(jax.devices()[:8])
  return [js.SingleDeviceSharding(jax.devices()[3]),
          js.NamedSharding(js.Mesh(devices, ('x',)), js.PartitionSpec('x')),
          js.NamedSharding(js.Mesh(devices, ('x',)), js.PartitionSpec()),
          js.NamedSharding(js.Mesh(devices[:1], ('x',)), js.PartitionSpec('x')),
          js.NamedSharding(js.Mesh(devices.reshape(2, 4), ('x', 'y')),
                           js.PartitionSpec(('y', 'x')))]


class ByteOrderTest(jtu.JaxTestCase):

  def of_callback(self, x, sharding):
    return jax.make_array_from_callback((8,), sharding, lambda i: x[i])

  @red('^AssertionError: TypeError not raised')
  @parameterized.parameters('f4', 'i4', 'i2', 'f2', 'c8')
  def test_refused_from_a_callback(self, dtype):
    for sharding in placements():
      with self.assertRaisesRegex(
          TypeError, 'make_array_from_callback.* byte order .* got one with '
          f'dtype {swapped(dtype).dtype.str}.*newbyteorder'):
        self.of_callback(swapped(dtype), sharding)

  @parameterized.parameters('f4', 'i4', 'i1', 'bool', 'bfloat16')
  def test_native_from_a_callback(self, dtype):
    x = NUMBERS.astype(jnp.dtype(dtype))
    for sharding in placements():
      out = self.of_callback(x, sharding)
      self.assertEqual(out.sharding, sharding)
      self.assertArraysEqual(out, x)

  def test_converted_from_a_callback(self):
    x = swapped('f4')
    x = x.astype(x.dtype.newbyteorder('='))
    for sharding in placements():
      self.assertArraysEqual(self.of_callback(x, sharding), np.float32(NUMBERS))

  def test_scalars_from_a_callback(self):
    sharding = js.SingleDeviceSharding(jax.devices()[1])
    for x in 3, 3., True, swapped('f4')[2], jnp.float32(3):
      out = jax.make_array_from_callback((), sharding, lambda i, x=x: x)
      self.assertEqual(out, x)

  def test_refused_by_others(self):
    x = swapped('f4')
    d = jax.devices()[1]
    for f in (jax.device_put, lambda x: jax.device_put(x, d), jnp.asarray,
              jax.jit(lambda x: x + 1), jax.vmap(lambda x: x + 1),
              jax.jit(lambda x: x).lower):
      with self.assertRaises(TypeError):
        f(x)
    compiled = jax.jit(lambda x: x + 1).lower(np.float32(NUMBERS)).compile()
    with self.assertRaises(TypeError):
      compiled(x)
