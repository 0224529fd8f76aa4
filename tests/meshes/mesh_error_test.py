# SPDX-License-Identifier: Apache-2.0
"""Arrays over Explicit axes of another mesh than the context's."""
from absl.testing import parameterized
import jax
from jax._src import config
from jax._src import test_util as jtu
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
import numpy as np
from testing.red import red
from testing.sharding import AxisType, eight_devices, typed_mesh

config.parse_flags_with_absl()
eight_devices()

set_mesh = getattr(jax, 'set_mesh', None) or jax.sharding.use_mesh


def make_mesh(names, *sizes):
  return typed_mesh(sizes, names, (AxisType.Explicit,) * len(sizes))


class MeshErrorTest(jtu.JaxTestCase):

  def setUp(self):
    super().setUp()
    self.square = make_mesh(('p', 'q'), 2, 2)
    self.x = jax.device_put(np.arange(8.), NamedSharding(self.square, P('p')))

  @red('^AssertionError: .*device_put.* does not match .For primitive ')
  @parameterized.parameters(True, False)
  def test_says_what_to_write(self, jit):
    f = lambda x: x * 2
    with set_mesh(make_mesh(('x',), 4)):
      with self.assertRaisesRegex(
          ValueError, r"axes \('x',\); got .*\('p', 'q'\)(.|\n)*device_put"):
        (jax.jit(f) if jit else f)(self.x)

  def test_what_it_says_is_right(self):
    if (0, 7, 2) <= jax.__version_info__ < (0, 8, 2):
      self.skipTest('device_put keeps the spec of the other mesh there')
    flat = make_mesh(('x',), 4)
    with set_mesh(flat):
      x = jax.device_put(self.x, NamedSharding(flat, P('x')))
      got = np.asarray(jax.jit(jnp.sin)(x))
    self.assertAllClose(got, np.sin(np.arange(8.)), check_dtypes=False)
