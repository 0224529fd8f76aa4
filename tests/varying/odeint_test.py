# SPDX-License-Identifier: Apache-2.0
"""odeint inside shard_map: values and gradients."""
from absl.testing import parameterized
import jax
from jax._src import test_util as jtu
from jax.experimental.ode import odeint
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
from testing.oracle import OracleTestCase
from testing.oracle import Summed
from testing.oracle import outcome
from testing.red import red
from testing.sharding import shard_map
from varying.testing.common import MESHES
from varying.testing.common import make_mesh

jax.config.parse_flags_with_absl()

# What pristine JAX says.
OTHER_AVALS = r'^AssertionError: \(ShapedArray\(float32\['

X = np.random.RandomState(0).uniform(0.5, 2., (4, 6)).astype(np.float32)
W = np.random.RandomState(1).uniform(0.5, 2., 6).astype(np.float32)


def solve(y, k):
  t = jnp.linspace(0., 1., 3)
  return odeint(lambda y, t, k: -k[0] * y + jnp.sin(k[1] * t), y, t, k)


def loss(y, k):
  return jnp.sum(solve(y, k) ** 2)


class OdeintTest(OracleTestCase):

  def check(self, gradients, where):
    """Gradients by what varies, and by what is shared: these are summed."""
    kind, jit = where
    def parts(x, w):
      varying, shared = gradients(x, w)
      return varying, Summed(shared)
    self.assert_same(*outcome(parts, make_mesh(*MESHES[kind]), X, W, jit=jit),
                     2e-3, 1e-4)

  @red(OTHER_AVALS)
  @parameterized.parameters(('2d', True), ('1d', False))
  def test_gradient_of_varying_start_and_shared_argument(self, *where):
    self.check(jax.grad(loss, (0, 1)), where)

  @red(OTHER_AVALS)
  def test_gradient_of_shared_start_and_varying_argument(self):
    self.check(jax.grad(lambda x, w: loss(w, x), (0, 1)), ('1d', True))

  @red(OTHER_AVALS)
  def test_gradient_of_captured_value_is_summed(self):
    def loss(x, w):
      t = jnp.linspace(0., 1., 3)
      y = odeint(lambda y, t: -w[0] * y, x, t)
      return jnp.sum(y * jnp.arange(18.).reshape(3, 6))
    self.check(jax.grad(loss, (0, 1)), ('2d', True))

  @red(r'^ValueError: unexpected JAX type \(e\.g\. shape/dtype\) for '
       'argument to vjp function: got', bases='<0.6.1')
  @parameterized.parameters('state', 'parameter')
  def test_dynamics_that_differentiate(self, by):
    """Those of gradient flow: the state is one, and its gradient is summed."""
    t = np.linspace(0., 1., 3).astype(np.float32)
    def solve(x):
      if by == 'state':
        return odeint(lambda y, t: -jax.grad(
            lambda y: .5 * (y - x[0]) ** 2)(y), jnp.float32(0.), t)
      return odeint(lambda y, t, w: y * jax.grad(lambda w: x[0] * w ** 2)(w),
                    jnp.float32(1.), t, jnp.float32(.25))
    x = np.float32([.25, .5, .75, 1.])  # 2.5 in all
    f = shard_map(solve, mesh=jtu.create_mesh((4,), ('x',)), in_specs=P('x'),
                  out_specs=P())
    want = (2.5 / 4 * (1. - np.exp(-4. * t)) if by == 'state'
            else np.exp(.5 * 2.5 * t))
    for got in jax.jit(f)(x), f(x):
      self.assertAllClose(got, want.astype(np.float32), rtol=1e-4)
