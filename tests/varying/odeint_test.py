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
"""odeint inside shard_map: values and gradients."""
from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax._src import test_util as jtu
from jax.experimental.ode import odeint
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
from varying.testing.common import run_rows

jax.config.parse_flags_with_absl()

WHERE = [('1d', True), ('2d', True), ('1d', False)]
X = np.random.RandomState(0).uniform(0.5, 2., (4, 6)).astype(np.float32)
W = np.random.RandomState(1).uniform(0.5, 2., 6).astype(np.float32)


def solve(y, k):
  t = jnp.linspace(0., 1., 3)
  return odeint(lambda y, t, k: -k[0] * y + jnp.sin(k[1] * t), y, t, k)


class OdeintTest(jtu.JaxTestCase):

  def check(self, f, where, summed):
    got = run_rows(f, where, X, shared=W, out=P() if summed else None)
    want = [jax.jit(f)(x, W) for x in X]
    want = sum(want) if summed else np.stack(want)
    np.testing.assert_allclose(got, want, rtol=2e-3, atol=1e-4)

  @parameterized.product(where=WHERE[:2])
  def test_gradient_of_shared_argument_is_summed(self, where):
    self.check(jax.grad(lambda x, w: jnp.sum(solve(x, w) ** 2), 1), where, True)

  @parameterized.product(where=WHERE[:2])
  def test_gradient_of_shared_start_is_summed(self, where):
    self.check(jax.grad(lambda x, w: jnp.sum(solve(w, x) ** 2), 1), where, True)

  @parameterized.product(where=WHERE)
  def test_gradient_of_varying_start(self, where):
    self.check(jax.grad(lambda x, w: jnp.sum(solve(x, w) ** 2)), where, False)

  def test_gradient_of_captured_value_is_summed(self):
    def loss(x, w):
      t = jnp.linspace(0., 1., 3)
      y = odeint(lambda y, t: -w[0] * y, x, t)
      return jnp.sum(y * jnp.arange(18.).reshape(3, 6))
    self.check(jax.grad(loss, 1), ('2d', True), True)


if __name__ == '__main__':
  absltest.main(testLoader=jtu.JaxTestLoader())
