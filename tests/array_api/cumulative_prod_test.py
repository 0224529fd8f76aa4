# SPDX-License-Identifier: Apache-2.0
"""Products of small integers (jax#27606)."""
from absl.testing import parameterized
import jax
from jax._src import test_util as jtu
import jax.numpy as jnp
import numpy as np
from testing.red import red

jax.config.parse_flags_with_absl()


class ArrayApiCumulativeProdTest(jtu.JaxTestCase):

  @red(r"^AssertionError: dtype\('.*'\) != dtype\('.*int32'\) : Dtypes differ",
       cases=['int8', 'uint8', 'int16'])
  @parameterized.parameters('int8', 'uint8', 'int16', 'bool')
  def test_promotes_as_prod(self, dtype):
    x = jnp.ones(3, dtype)
    for f in (jnp.cumulative_prod, jax.jit(jnp.cumulative_prod)):
      self.assertEqual(f(x).dtype, jnp.prod(x).dtype, 'Dtypes differ')
      self.assertEqual(f(x).dtype, jnp.cumulative_sum(x).dtype, 'Dtypes differ')

  @red(r'^AssertionError: \s*Arrays are not equal')
  @parameterized.parameters('int8', 'uint8', 'int16')
  def test_small_integers_as_in_numpy(self, dtype):
    x = np.array([[100, 30, 70], [90, 99, 50]], dtype)
    for axis in (0, 1):
      for f in (lambda x: jnp.cumulative_prod(x, axis=axis),
                jax.jit(lambda x: jnp.cumulative_prod(x, axis=axis)),
                jax.vmap(jnp.cumulative_prod, 1 - axis, 1 - axis)):
        np.testing.assert_array_equal(f(x), np.cumprod(x, axis, int))

  def test_other_dtypes_stay(self):
    for dtype in (np.int32, np.uint32, np.float32, jnp.bfloat16, np.complex64):
      x = jnp.ones(3, dtype)
      self.assertEqual(jnp.cumulative_prod(x).dtype, dtype)
      self.assertEqual(jnp.cumulative_prod(x, dtype=np.float32).dtype,
                       np.float32)
    x = jnp.array([3, 5], np.int8)
    self.assertEqual(jnp.cumulative_prod(x, dtype=np.int8).dtype, np.int8)
    np.testing.assert_array_equal(
        jnp.cumulative_prod(x, include_initial=True), [1, 3, 15])
