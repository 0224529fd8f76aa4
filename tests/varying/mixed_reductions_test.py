# SPDX-License-Identifier: Apache-2.0
"""Reductions over several axes of what varies over some of them."""
from absl.testing import parameterized
import jax
from jax import lax
from jax._src import config
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
import numpy as np
from testing.oracle import MeshTestCase
from testing.red import red
from testing.sharding import eight_devices, shard_map

config.parse_flags_with_absl()
eight_devices()

# What pristine JAX says.
UNNAMED_ARGUMENT = '^ValueError: .*corresponds to one of'


class ShardMapMixedReductionsTest(MeshTestCase):
  devices = 6

  def setUp(self):
    super().setUp()
    self.x = jnp.array([1., 2., 3., 4.])
    self.mesh = Mesh(np.array(jax.devices()[:6]).reshape(2, 3), ('x', 'y'))

  def check(self, f, how, want):
    run = shard_map(f, mesh=self.mesh, in_specs=P('x'), out_specs=P())
    got = (jax.jit(run) if how == 'jit' else run)(self.x)
    self.assertAllClose(got, want, check_dtypes=False)

  @red(UNNAMED_ARGUMENT)
  @parameterized.parameters('jit', 'eager')
  def test_psum(self, how):
    # Each of the three devices along y adds its own copy.
    want = 3. * self.x.reshape(2, 2).sum(0)
    self.check(lambda x: lax.psum(x, ('x', 'y')), how, want)

  @red(UNNAMED_ARGUMENT, bases='>=0.11.1')
  @parameterized.parameters('jit', 'eager')
  def test_pmax(self, how):
    want = self.x.reshape(2, 2).max(0)
    self.check(lambda x: lax.pmax(x, ('y', 'x')), how, want)

  @red(UNNAMED_ARGUMENT, bases='>=0.11.1')
  @parameterized.parameters('jit', 'eager')
  def test_pmin(self, how):
    want = self.x.reshape(2, 2).min(0)
    self.check(lambda x: lax.pmin(x, ('x', 'y')), how, want)

  @red(UNNAMED_ARGUMENT)
  def test_psum_of_a_tree(self):
    f = lambda x: lax.psum((x, {'z': x * 2.}), ('x', 'y'))[1]['z']
    self.check(f, 'jit', 6. * self.x.reshape(2, 2).sum(0))

  @red(UNNAMED_ARGUMENT)
  def test_psum_gradient(self):
    run = shard_map(lambda x: lax.psum(jnp.sin(x).sum(), ('x', 'y')),
                    mesh=self.mesh, in_specs=P('x'), out_specs=P())
    self.assertAllClose(jax.jit(jax.grad(run))(self.x), 3. * jnp.cos(self.x))

  @red(UNNAMED_ARGUMENT)
  @parameterized.parameters('jit', 'eager')
  def test_psum_scatter(self, how):
    x = jnp.arange(24.)
    run = shard_map(lambda x: lax.psum_scatter(x, ('x', 'y'), tiled=True),
                    mesh=self.mesh, in_specs=P('x'), out_specs=P(('x', 'y')))
    got = (jax.jit(run) if how == 'jit' else run)(x)
    self.assertAllClose(got, 3. * x.reshape(2, 12).sum(0))

  @red(UNNAMED_ARGUMENT)
  def test_psum_scatter_gradient(self):
    x, w = jnp.arange(24.), jnp.arange(12.) ** 2
    run = shard_map(lambda x: lax.psum_scatter(x, ('x', 'y'), tiled=True),
                    mesh=self.mesh, in_specs=P('x'), out_specs=P(('x', 'y')))
    got = jax.jit(jax.grad(lambda x: (run(x) * w).sum()))(x)
    self.assertAllClose(got, 3. * jnp.tile(w, 2))

  def test_guard_pmean(self):
    self.check(lambda x: lax.pmean(x, 'x'), 'jit',
               self.x.reshape(2, 2).mean(0))

  def test_guard_casts_stay_strict(self):
    # Only reductions join; a cast to varying from both states stays refused.
    if not hasattr(lax, 'pcast'):
      self.skipTest('no pcast')
    f = lambda x: lax.pcast(x, ('x', 'y'), to='varying')
    run = shard_map(f, mesh=self.mesh, in_specs=P('x'),
                    out_specs=P(('x', 'y')))
    with self.assertRaisesRegex(ValueError, 'corresponds to one of'):
      jax.jit(run)(self.x)

  @parameterized.parameters('jit', 'eager')
  def test_guard_without_casts_it_is_refused(self, how):
    if not hasattr(config, 'auto_pcast'):
      self.skipTest('this release always casts')
    f = lambda x: lax.psum(x, ('x', 'y'))
    with config.auto_pcast(False):
      with self.assertRaisesRegex(ValueError, 'corresponds to one of'):
        self.check(f, how, 0.)
      by_hand = lambda x: f(lax.pcast(x, 'y', to='varying'))
      self.check(by_hand, how, 3. * self.x.reshape(2, 2).sum(0))
