# SPDX-License-Identifier: Apache-2.0
"""device_put to a device of what that device holds in host memory."""
from absl.testing import parameterized
import jax
from jax._src import config
from jax._src import test_util as jtu
from jax.sharding import SingleDeviceSharding
import numpy as np
from testing.red import red
from testing.sharding import eight_devices

config.parse_flags_with_absl()
eight_devices()

# What pristine JAX says.
MEMORY_MISMATCH = '^ValueError: Memory kind mismatch with xla::PjRtBuffers'

X = np.arange(4, dtype=np.float32)


class SameDeviceTest(jtu.JaxTestCase):

  def setUp(self):
    super().setUp()
    self.device = jax.devices()[1]
    kinds = {m.kind for m in self.device.addressable_memories()}
    if not {'device', 'pinned_host'} <= kinds:
      self.skipTest('one memory a device')
    self.host = SingleDeviceSharding(self.device, memory_kind='pinned_host')

  def check(self, x, kind, want=X):
    self.assertEqual(x.sharding.memory_kind, kind)
    self.assertEqual(x.devices(), {self.device})
    np.testing.assert_array_equal(x, want)

  @red(MEMORY_MISMATCH)
  def test_from_host_memory(self):
    x = jax.device_put(jax.device_put(X, self.host), self.device)
    self.check(x, 'device')
    np.testing.assert_array_equal(x + 1, X + 1)

  @red(MEMORY_MISMATCH, bases='>=0.10.2')
  def test_computed_there(self):
    if jax.__version_info__ < (0, 10, 2):
      self.skipTest('nothing is computed to host memory on CPU')
    x = jax.jit(lambda x: x * 2, out_shardings=self.host)(X)
    self.check(jax.device_put(x, self.device), 'device', 2 * X)

  @parameterized.parameters('device', 'pinned_host')
  def test_guard_by_sharding(self, kind):
    x = jax.device_put(X, self.host)
    to = SingleDeviceSharding(self.device, memory_kind=kind)
    self.check(jax.device_put(x, to), kind)

  def test_guard_within_one_memory_nothing_is_copied(self):
    x = jax.device_put(X, self.device)
    y = jax.device_put(x, self.device)
    self.check(y, 'device')
    self.assertEqual(x.unsafe_buffer_pointer(), y.unsafe_buffer_pointer())
