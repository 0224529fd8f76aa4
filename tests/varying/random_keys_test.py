# SPDX-License-Identifier: Apache-2.0
"""Random samples inside shard_map by a key that all devices share."""
from absl.testing import parameterized
import jax
from jax import random
from jax._src import test_util as jtu
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
from testing.red import red
from varying.testing.common import make_mesh
from varying.testing.common import MESHES
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
    't': lambda k, a: random.t(k, a, a.shape),
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


LOOPS = {
    'scan': lambda f: jax.lax.scan(
        lambda c, i: (f(i, c), None), jnp.ones(6), jnp.arange(2))[0],
    'fori': lambda f: jax.lax.fori_loop(0, 2, f, jnp.ones(6)),
    'while': lambda f: jax.lax.while_loop(
        lambda c: c[0] < 2, lambda c: (c[0] + 1, f(*c)), (0, jnp.ones(6)))[1],
    'nested': lambda f: jax.lax.fori_loop(
        0, 2, lambda i, c: jax.lax.fori_loop(0, 2, f, c) * c, jnp.ones(6)),
    'jit': lambda f: jax.lax.fori_loop(0, 2, jax.jit(f), jnp.ones(6)),
    'remat': lambda f: jax.lax.fori_loop(
        0, 2, lambda i, c: jax.checkpoint(lambda c: f(i, c))(c), jnp.ones(6)),
}


def _key(data):
  return random.wrap_key_data(data, impl='threefry2x32')


class RandomKeysTest(jtu.JaxTestCase):

  def check(self, sample, where, shared):
    """Shared by all devices, or a key for each."""
    data = random.key_data(random.split(random.key(3, impl='threefry2x32'), 4))
    draw = lambda k, a: sample(_key(k), a)
    if shared:
      got = run_rows(lambda a, k: draw(k, a), where, X, shared=data[0])
      want = [jax.jit(draw)(data[0], a) for a in X]
    else:
      got = run_rows(draw, where, data, X)
      want = [jax.jit(draw)(k, a) for k, a in zip(data, X)]
    np.testing.assert_allclose(got, np.stack(want), rtol=1e-5)

  def refused(self, f, *args, says=''):
    with self.assertRaisesRegex(
        TypeError, '(?s)requires all arguments to have matching type.*' + says):
      jax.eval_shape(f, *args)

  @parameterized.product(name=list(SAMPLERS), where=[('1d', True),
                                                     ('2d', False)])
  def test_shared_key_is_refused(self, name, where):
    # As upstream does, to guard against draws that are correlated.
    self.refused(lambda x, k: run_rows(
        lambda a, k: SAMPLERS[name](_key(k), a), where, x, shared=k),
                 X, np.zeros(2, np.uint32))

  @red('^AssertionError: ".*fold_in.*" does not match ".*requires all '
       'arguments to have matching type')
  @parameterized.product(where=WHERE, name=['gamma', 'beta', 'dirichlet'])
  def test_refusal_says_what_to_write(self, name, where):
    f = lambda x, k: run_rows(
        lambda a, k: SAMPLERS[name](_key(k), a), where, x, shared=k)
    self.refused(f, X, np.zeros(2, np.uint32),
                 says='fold_in.*axis_index.*pcast')

  @parameterized.product(where=WHERE)
  def test_what_to_write(self, where):
    axes = make_mesh(*MESHES[where[0]]).axis_names
    data = random.key_data(random.key(3, impl='threefry2x32'))
    gamma = SAMPLERS['gamma']
    got = run_rows(lambda a, k: gamma(
        jax.lax.pcast(_key(k), axes, to='varying'), a), where, X, shared=data)
    want = np.stack([gamma(_key(data), a) for a in X])
    np.testing.assert_allclose(got, want, rtol=1e-5)
    got = run_rows(lambda a, k: gamma(
        random.fold_in(_key(k), jax.lax.axis_index(axes)), a),
                   where, X, shared=data)
    want = np.stack([gamma(random.fold_in(_key(data), i), a)
                     for i, a in enumerate(X)])
    np.testing.assert_allclose(got, want, rtol=1e-5)

  @red('^AssertionError: ".*fold_in.*" does not match ".*carry input and '
       'carry output must have equal types')
  @parameterized.product(where=WHERE, loop=list(LOOPS))
  def test_carry_that_comes_to_vary(self, where, loop):
    f = lambda x, k: run_rows(
        lambda a, k: LOOPS[loop](lambda i, c: random.gamma(_key(k), c) + a),
        where, x, shared=k)
    self.refused(f, X, np.zeros(2, np.uint32), says='fold_in.*pcast')

  @red('^TypeError: scan body function carry input and carry output must '
       'have equal types')
  @parameterized.product(where=WHERE)
  def test_carry_that_comes_to_vary_and_its_own_key(self, where):
    axes = make_mesh(*MESHES[where[0]]).axis_names
    data = random.key_data(random.key(3, impl='threefry2x32'))
    step = lambda i, a, k: LOOPS['scan'](lambda _, c: random.gamma(
        random.fold_in(_key(k), i), c) + a)
    got = run_rows(lambda a, k: step(jax.lax.axis_index(axes), a, k), where, X,
                   shared=data)
    want = np.stack([step(i, a, data) for i, a in enumerate(X)])
    np.testing.assert_allclose(got, want, rtol=1e-4)

  @parameterized.product(name=list(OTHERS))
  def test_others_take_a_shared_key(self, name):
    self.check(OTHERS[name], ('2d', True), True)

  def test_own_key(self):
    self.check(SAMPLERS['gamma'], ('2d', True), False)

  def test_shared_parameters_stay_the_same(self):
    key = random.key_data(random.key(3, impl='threefry2x32'))
    def f(a, k):
      return random.gamma(random.wrap_key_data(k, impl='threefry2x32'), W)
    got = run_rows(f, ('2d', True), X, shared=key, out=P())
    want = random.gamma(random.wrap_key_data(key, impl='threefry2x32'), W)
    np.testing.assert_allclose(got, want, rtol=1e-5)
