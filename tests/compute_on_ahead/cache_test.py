# SPDX-License-Identifier: Apache-2.0
"""A lowered rule is not shared across compute types (jax#27825)."""

import re

from absl.testing import parameterized
import jax
from jax import lax
from jax._src import config
from jax._src import test_util as jtu
from jax.experimental.compute_on import compute_on
import jax.numpy as jnp
import numpy as np
from testing.red import red

config.parse_flags_with_absl()

# Each is lowered out of line and kept for the next use in the same program.
FUNCTIONS = {
    'argmax': (lambda x: lax.argmax(x, 0, np.int32), 'reduce'),
    'argmin': (lambda x: lax.argmin(x, 0, np.int32), 'reduce'),
    'cumsum': (lambda x: lax.cumsum(x), 'reduce_window'),
    'cumlogsumexp': (lambda x: lax.cumlogsumexp(x), 'exponential'),
}


class ComputeOnCacheTest(jtu.JaxTestCase):

  def setUp(self):
    super().setUp()
    self.x = np.arange(4, dtype=np.float32)

  def bodies(self, text, operation):
    """For each function that has the operation, whether it is marked there."""
    found = []
    for body in text.split('func.func')[1:]:
      if f'stablehlo.{operation}' in body:
        found.append('_xla_compute_type = "host"' in body)
    return found

  @red('^AssertionError: .*one body for both places')
  @parameterized.named_parameters((f'_{name}', name) for name in FUNCTIONS)
  def test_within_and_outside(self, name):
    f, operation = FUNCTIONS[name]
    host = compute_on('device_host')(f)
    for both in (lambda x: (host(x), f(x)), lambda x: (f(x), host(x))):
      text = jax.jit(both).lower(self.x).as_text()
      self.assertCountEqual(self.bodies(text, operation), [True, False],
                            'one body for both places')

  @parameterized.named_parameters((f'_{name}', name) for name in FUNCTIONS)
  def test_shared_where_the_type_is_the_same(self, name):
    f, operation = FUNCTIONS[name]
    host = compute_on('device_host')(f)
    for fun, marked in ((f, False), (host, True)):
      text = jax.jit(lambda x: (fun(x), fun(x))).lower(self.x).as_text()
      self.assertEqual(self.bodies(text, operation), [marked])

  @red('^AssertionError: .*one body for both types')
  def test_two_types(self):
    f, _ = FUNCTIONS['argmax']
    both = lambda x: (compute_on('device_host')(f)(x),
                      compute_on('device')(f)(x))
    text = jax.jit(both).lower(self.x).as_text()
    reduces = re.findall(
        r'stablehlo\.reduce\(.*_xla_compute_type = "(\w+)"', text)
    self.assertCountEqual(reduces, ['host', 'dense'], 'one body for both types')

  def test_values_stay(self):
    x = jnp.asarray(self.x)
    for f, _ in FUNCTIONS.values():
      host = compute_on('device_host')(f)
      self.assertArraysEqual(jax.jit(lambda x: host(x))(x), f(x))
