# SPDX-License-Identifier: Apache-2.0
"""psum and pmean within axis_index_groups, in shard_map with the check on."""
import jax
from jax import lax
from jax._src import config
from jax._src import test_util as jtu
import jax.numpy as jnp
import numpy as np
from testing.red import red
from testing.sharding import shard_map
from varying.testing import common
from varying.testing.common import P

config.parse_flags_with_absl()

EVEN = [[0, 2], [1, 3]]
UNEVEN = [[0, 2, 3], [1]]
X = np.arange(1., 9., dtype=np.float32).reshape(4, 2)


def within(groups, x):
  """The oracle: each device's row, summed within its group."""
  return np.stack([sum(x[j] for group in groups if i in group for j in group)
                   for i in range(len(x))])


def run(f, jit, x=X, out_specs=P('x')):
  g = shard_map(f, mesh=common.make_mesh(4), in_specs=P('x'),
                out_specs=out_specs)
  return common.maybe_jit(jit)(g)(x)


@red(r'^NotImplementedError: raised by parallel\.bind_psum_invariant')
class GroupedSumsTest(jtu.JaxTestCase):

  @jtu.sample_product(groups=[EVEN, UNEVEN], jit=[False, True])
  def test_value(self, groups, jit):
    out = run(lambda x: lax.psum(x, 'x', axis_index_groups=groups), jit)
    self.assertAllClose(np.asarray(out), within(groups, X))

  @jtu.sample_product(groups=[EVEN, UNEVEN], jit=[False, True])
  def test_mean(self, groups, jit):
    out = run(lambda x: lax.pmean(x, 'x', axis_index_groups=groups), jit)
    self.assertAllClose(np.asarray(out),
                        within(groups, X) / within(groups, np.ones((4, 1))),
                        check_dtypes=False)

  @jtu.sample_product(groups=[EVEN, UNEVEN], jit=[False, True])
  def test_tree(self, groups, jit):
    def f(x):
      a, b = lax.psum((x, x[:, 0] > 2), 'x', axis_index_groups=groups)
      return a + b[:, None].astype(a.dtype)
    want = within(groups, X) + within(groups, X[:, :1] > 2)
    self.assertAllClose(np.asarray(run(f, jit)), want, check_dtypes=False)

  @jtu.sample_product(groups=[EVEN, UNEVEN], jit=[False, True])
  def test_gradient(self, groups, jit):
    # Of a value per device, and of a factor that all share.
    def loss(x, w):
      f = lambda x: lax.psum(jnp.sin(w * x), 'x', axis_index_groups=groups)
      return jnp.sum(jnp.arange(8.).reshape(4, 2) * run(f, jit, x))

    def oracle(x, w):
      rows = jnp.stack([sum(jnp.sin(w * x[j]) for group in groups if i in group
                            for j in group) for i in range(4)])
      return jnp.sum(jnp.arange(8.).reshape(4, 2) * rows)

    w = np.float32(.7)
    self.assertAllClose(jax.grad(loss, (0, 1))(X, w),
                        jax.grad(oracle, (0, 1))(X, w), rtol=1e-5)

  @jtu.sample_product(groups=[EVEN, UNEVEN])
  def test_gradient_inside(self, groups):
    # A cotangent that doesn't vary is summed within the groups as well.
    def f(x):
      g = lambda x: jnp.sum(lax.psum(x, 'x', axis_index_groups=groups))
      return jax.grad(g)(x)
    sizes = within(groups, np.ones((4, 2)))
    self.assertAllClose(np.asarray(run(f, True)), sizes, check_dtypes=False)

  def test_varies(self):
    def f(x):
      out = lax.psum(x, 'x', axis_index_groups=EVEN)
      self.assertEqual(common.axes_of(out), {'x'})
      return out
    run(f, True)

  def test_claim_of_replication(self):
    with self.assertRaisesRegex(ValueError, 'require replication'):
      run(lambda x: lax.psum(x, 'x', axis_index_groups=EVEN), True,
          out_specs=P())

  @jtu.sample_product(jit=[False, True])
  def test_two_axes(self, jit):
    x = np.arange(16., dtype=np.float32).reshape(2, 4, 2)
    g = shard_map(lambda x: lax.psum(x, 'y', axis_index_groups=EVEN),
                  mesh=common.make_mesh(2, 4), in_specs=P('x', 'y'),
                  out_specs=P('x', 'y'))
    out = common.maybe_jit(jit)(g)(x)
    self.assertAllClose(np.asarray(out),
                        np.stack([within(EVEN, a) for a in x]))

  def test_vmap(self):
    f = jax.vmap(lambda x: lax.psum(x, 'x', axis_index_groups=EVEN),
                 in_axes=1, out_axes=1)
    self.assertAllClose(np.asarray(run(f, True)), within(EVEN, X))
