# SPDX-License-Identifier: Apache-2.0
"""jnp.empty_like can be traced, wherever its like is (jax#27606)."""

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

# What pristine JAX says.
ABSTRACT_TRACER = ('^ConcretizationTypeError: Abstract tracer value '
                   'encountered where concrete value is expected: traced array')


def placements():
  devices = np.array(jax.devices()[:8])
  return [jax.devices()[0], jax.devices()[3],
          js.NamedSharding(js.Mesh(devices, ('x',)), js.PartitionSpec('x')),
          js.NamedSharding(js.Mesh(devices.reshape(2, 4), ('x', 'y')),
                           js.PartitionSpec('y'))]


class ArrayApiEmptyLikeTest(jtu.JaxTestCase):

  def check(self, x, shape, dtype, weak_type=False):
    self.assertEqual((x.shape, x.dtype, x.weak_type),
                     (shape, np.dtype(dtype), weak_type))

  @red(ABSTRACT_TRACER)
  def test_device_under_jit(self):
    for d in placements():
      self.check(jax.jit(lambda x, d=d: jnp.empty_like(x, device=d))(
          jnp.ones(8)), (8,), 'float32')
      self.check(jax.jit(lambda d=d: jnp.empty_like(
          np.ones(8), dtype='int8', shape=(8, 4), device=d))(),
                 (8, 4), 'int8')

  @red(ABSTRACT_TRACER)
  def test_committed_array_under_jit(self):
    for d in placements():
      x = jax.device_put(np.ones(8, 'float32'), d)
      self.check(jax.jit(lambda x=x: jnp.empty_like(x))(), (8,), 'float32')

  @red(ABSTRACT_TRACER)
  def test_weak_type_under_jit(self):
    x = jnp.asarray(1.)
    self.assertTrue(x.weak_type)
    y = jax.jit(lambda: jnp.empty_like(x, device=jax.devices()[1]))()
    self.check(y, (), 'float32', weak_type=True)

  @red(ABSTRACT_TRACER)
  def test_result_joins_arrays_of_the_jit(self):
    # Where the enclosing jit runs elsewhere, device= does not stop it.
    x = jax.device_put(np.ones(8, 'float32'), jax.devices()[5])
    y = jax.jit(lambda x: jnp.where(x > 0, x, jnp.empty_like(
        x, device=jax.devices()[2])))(x)
    self.assertIs(y.device, jax.devices()[5])
    np.testing.assert_array_equal(y, np.ones(8))

  @parameterized.parameters(False, True)
  def test_eager_results_are_placed(self, committed):
    for d in placements():
      x = jax.device_put(np.ones(8, 'float32'), d) if committed else np.ones(8)
      y = jnp.empty_like(x, device=None if committed else d)
      self.assertTrue(y.committed)
      self.assertEqual(y.sharding.device_set,
                       {d} if isinstance(d, jax.Device) else d.device_set)
      self.check(y, (8,), 'float32')
