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
"""Gradients of sums of trees and of updated slices in shard_map (issue 5).

Found by shard_map_fuzz_test. The oracle is the gradient of the same function
of all blocks, written without devices.
"""
from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax import lax
from jax._src import test_util as jtu
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec as P
import numpy as np

jax.config.parse_flags_with_absl()
if hasattr(jtu, 'request_cpu_devices'):
  jtu.request_cpu_devices(8)

try:
  from jax import shard_map
except ImportError:
  from jax.experimental.shard_map import shard_map

MESHES = {'1d': ((4,), ('x',)), '2d': ((2, 2), ('x', 'y'))}


def sharded(f, mesh, out_specs=P()):
  sizes, axes = MESHES[mesh]
  mesh = Mesh(np.array(jax.devices()[:4]).reshape(sizes), axes)
  return shard_map(lambda x, w: f(x, w, axes), mesh=mesh,
                   in_specs=(P(axes), P()), out_specs=out_specs)


@jtu.with_config(jax_numpy_rank_promotion='allow')
class ShardMapTransposesTest(jtu.JaxTestCase):

  def setUp(self):
    super().setUp()
    rng = np.random.RandomState(0)
    self.x = rng.uniform(-1, 1, (4, 3)).astype('f')
    self.w = rng.uniform(-1, 1, 3).astype('f')

  def check(self, got, want, jit):
    argnums = (0, 1)
    grad = jax.value_and_grad(got, argnums)
    got = (jax.jit(grad) if jit else grad)(self.x, self.w)
    want = jax.value_and_grad(want, argnums)(self.x, self.w)
    self.assertAllClose(got, want, rtol=1e-5, atol=1e-5)

  @parameterized.parameters(('1d', True), ('2d', False))
  def test_one_leaf_of_a_sum(self, mesh, jit):
    def f(x, w, axes):
      loss, _ = lax.psum((jnp.sum(jnp.sin(x) * w), jnp.sum(x * w * w)), axes)
      return loss
    self.check(sharded(f, mesh), lambda x, w: jnp.sum(jnp.sin(x) * w), jit)

  @parameterized.parameters(('1d', True), ('2d', False))
  def test_a_sum_with_a_constant(self, mesh, jit):
    # The number of devices, as a mean is often written.
    def f(x, w, axes):
      total, count = lax.psum((jnp.sum(x * w ** 2), 1.), axes)
      return total / count
    self.check(sharded(f, mesh), lambda x, w: jnp.sum(x * w ** 2) / 4, jit)

  @parameterized.parameters(('1d', True), ('2d', False))
  def test_one_leaf_of_a_sum_in_a_scan(self, mesh, jit):
    def f(x, w, axes):
      def step(c, _):
        y, _ = lax.psum((x[0] * c, c * c), axes)
        return jnp.tanh(y) * w, None
      return jnp.sum(lax.scan(step, w, None, length=3)[0])
    def oracle(x, w):
      c = w
      for _ in range(3):
        c = jnp.tanh(jnp.sum(x, 0) * c) * w
      return jnp.sum(c)
    self.check(sharded(f, mesh), oracle, jit)

  @parameterized.parameters(('1d', True), ('2d', False))
  def test_updated_slice(self, mesh, jit):
    def f(x, w, axes):
      y = lax.dynamic_update_slice(x[0], w[:1] * x[0, 1], (jnp.argmin(w),))
      z = lax.dynamic_update_slice(w, x[0, :1], (1,))
      return lax.psum(jnp.sum(y * w + z * x[0]), axes)
    def oracle(x, w):
      def one(x):
        y = x.at[jnp.argmin(w)].set(w[0] * x[1])
        z = w.at[1].set(x[0])
        return jnp.sum(y * w + z * x)
      return sum(map(one, x))
    self.check(sharded(f, mesh), oracle, jit)


if __name__ == '__main__':
  absltest.main(testLoader=jtu.JaxTestLoader())
