# Copyright 2026 The Mend Authors.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     https://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""Loops and branches nested in each other trace the innermost body once."""
from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax import lax
from jax._src import config
from jax._src import test_util as jtu
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
import numpy as np

try:
  from jax import shard_map
except ImportError:
  from jax.experimental.shard_map import shard_map

config.parse_flags_with_absl()
if hasattr(jtu, 'request_cpu_devices'):
  jtu.request_cpu_devices(8)


def nest(kinds, x, calls):
  """Loops and branches in each other, counting the innermost's traces."""
  def make(level):
    def inner(c):
      calls.append(level)
      return c + x[0]
    step = inner if level == len(kinds) - 1 else make(level + 1)
    if kinds[level] == 'w':
      return lambda c: lax.while_loop(
          lambda s: s[0] < 2, lambda s: (s[0] + 1, step(s[1])), (0, c))[1]
    if kinds[level] == 's':
      return lambda c: lax.scan(lambda d, _: (step(d), None), c, None,
                                length=2)[0]
    return lambda c: lax.cond(lax.psum(1., 'x') > 0., step, lambda d: d, c)
  return make(0)(0.)[None]


class ShardMapNestsTest(jtu.JaxTestCase):

  @parameterized.parameters('w', 's', 'ww', 'ss', 'wsws', 'wwwwwwww',
                            'ssssssss', 'wcs', 'scwcswcs', 'csww')
  def test_nest(self, kinds):
    if len(jax.devices()) < 2:
      self.skipTest('needs two devices')
    mesh = Mesh(np.array(jax.devices()[:2]), ('x',))
    x = jnp.array([1., 2., 3., 4.])
    calls = []
    f = shard_map(lambda x: nest(kinds, x, calls), mesh=mesh,
                  in_specs=P('x'), out_specs=P('x'))
    got = jax.jit(f)(x)
    self.assertLen(calls, 1)
    trips = 2. ** len(kinds.replace('c', ''))
    self.assertAllClose(got, trips * x[::2])


if __name__ == '__main__':
  absltest.main(testLoader=jtu.JaxTestLoader())
