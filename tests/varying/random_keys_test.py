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
"""Random samples inside shard_map by a key that all devices share."""
from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax import random
from jax._src import test_util as jtu
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
from varying.testing.common import run_rows

jax.config.parse_flags_with_absl()

WHERE = [('1d', True), ('2d', True), ('1d', False)]
X = np.random.RandomState(0).uniform(0.5, 2., (4, 6)).astype(np.float32)
W = np.random.RandomState(1).uniform(0.5, 2., 6).astype(np.float32)


SAMPLERS = {
    'gamma': lambda k, a: random.gamma(k, a),
    'loggamma': lambda k, a: random.loggamma(k, a),
    'beta': lambda k, a: random.beta(k, a, 2.),
    'beta_of_two': lambda k, a: random.beta(k, 1.5, a[:3]),
    'dirichlet': lambda k, a: random.dirichlet(k, a),
    't': lambda k, a: random.t(k, a),
    'chisquare': lambda k, a: random.chisquare(k, a),
    'f': lambda k, a: random.f(k, a, 3.),
    'generalized_normal': lambda k, a: random.generalized_normal(k, a[0], (3,)),
}
# They have always taken a shared key.
OTHERS = {
    'poisson': lambda k, a: random.poisson(k, a),
    'uniform': lambda k, a: random.uniform(k, a.shape, minval=a, maxval=3.),
    'categorical': lambda k, a: random.categorical(k, a),
    'bernoulli': lambda k, a: random.bernoulli(k, a / 3.),
    'exponential': lambda k, a: random.exponential(k, a.shape) * a,
}


class RandomKeysTest(jtu.JaxTestCase):

  def check(self, sample, where, shared):
    """Shared by all devices, or a key for each."""
    data = random.key_data(random.split(random.key(3, impl='threefry2x32'), 4))
    draw = lambda k, a: sample(
        random.wrap_key_data(k, impl='threefry2x32'), a)
    if shared:
      got = run_rows(lambda a, k: draw(k, a), where, X, shared=data[0])
      want = [jax.jit(draw)(data[0], a) for a in X]
    else:
      got = run_rows(draw, where, data, X)
      want = [jax.jit(draw)(k, a) for k, a in zip(data, X)]
    np.testing.assert_allclose(got, np.stack(want), rtol=1e-5)

  @parameterized.product(name=['beta', 't'])  # of logarithms and not
  def test_shared_key(self, name):
    self.check(SAMPLERS[name], ('2d', True), True)

  @parameterized.product(name=list(SAMPLERS))
  def test_shared_key_is_taken(self, name):
    # Compiling a rejection sampler takes seconds, so some are only traced.
    draw = lambda a, k: SAMPLERS[name](
        random.wrap_key_data(k, impl='threefry2x32'), a)
    f = lambda x, k: run_rows(draw, ('2d', False), x, shared=k)
    out = jax.eval_shape(f, X, np.zeros(2, np.uint32))
    want = jax.eval_shape(jax.vmap(draw, (0, None)), X, np.zeros(2, np.uint32))
    self.assertEqual((out.shape, out.dtype), (want.shape, want.dtype))

  @parameterized.product(where=[('1d', True), ('1d', False)])
  def test_shared_key_eager_and_1d(self, where):
    self.check(SAMPLERS['gamma'], where, True)

  @parameterized.product(name=list(OTHERS))
  def test_others_take_a_shared_key(self, name):
    self.check(OTHERS[name], ('2d', True), True)

  def test_own_key(self):
    self.check(SAMPLERS['gamma'], ('2d', True), False)

  def test_shared_key_and_gradient(self):
    key = random.key_data(random.key(3, impl='threefry2x32'))
    def slope(a, k):
      k = random.wrap_key_data(k, impl='threefry2x32')
      return jax.grad(lambda a: jnp.sum(random.gamma(k, a) * W))(a)
    got = run_rows(slope, ('2d', True), X, shared=key)
    want = np.stack([jax.jit(slope)(a, key) for a in X])
    np.testing.assert_allclose(got, want, rtol=1e-4)

  def test_shared_parameters_stay_the_same(self):
    key = random.key_data(random.key(3, impl='threefry2x32'))
    def f(a, k):
      return random.gamma(random.wrap_key_data(k, impl='threefry2x32'), W)
    got = run_rows(f, ('2d', True), X, shared=key, out=P())
    want = random.gamma(random.wrap_key_data(key, impl='threefry2x32'), W)
    np.testing.assert_allclose(got, want, rtol=1e-5)


if __name__ == '__main__':
  absltest.main(testLoader=jtu.JaxTestLoader())
