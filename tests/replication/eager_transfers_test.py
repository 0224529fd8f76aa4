# SPDX-License-Identifier: Apache-2.0
"""Gradients of device_put in shard_map without jit, against one device."""
from absl.testing import parameterized
import jax
from jax._src import test_util as jtu
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
from testing.red import red
from testing.sharding import shard_map
from varying.testing.common import make_mesh
from varying.testing.common import maybe_jit

jax.config.parse_flags_with_absl()

X = np.random.RandomState(0).uniform(.5, 1.5, (4, 4)).astype(np.float32)
W = X[:1] + 1.


def put(x, w):
  return jnp.sin(x) * jax.device_put(w) + jax.device_put(x)


class EagerTransfersTest(jtu.JaxTestCase):

  def check_gradient(self, sizes, w, spec):
    mesh = make_mesh(*sizes)
    rows = P(mesh.axis_names)
    f = shard_map(put, mesh=mesh, in_specs=(rows, rows if spec else P()),
                  out_specs=rows)
    got = jax.grad(lambda x, w: jnp.sum(f(x, w) ** 2), (0, 1))(X, w)
    want = jax.grad(lambda x, w: jnp.sum(put(x, w) ** 2), (0, 1))(X, w)
    self.assertAllClose(got, want, rtol=1e-5)

  @red('^ValueError: device_put with explicit device not allowed')
  @parameterized.parameters([(4,)], [(2, 2)])
  def test_gradient_by_shared(self, sizes):
    self.check_gradient(sizes, W, False)

  @parameterized.parameters([(4,)], [(2, 2)])
  def test_gradient_by_own(self, sizes):
    self.check_gradient(sizes, X, True)

  @parameterized.parameters(True, False)
  def test_value(self, jit):
    f = shard_map(put, mesh=make_mesh(4), in_specs=(P('x'), P()),
                  out_specs=P('x'))
    self.assertAllClose(maybe_jit(jit)(f)(X, W), put(X, W), rtol=1e-6)

  def test_another_device_is_refused(self):
    f = shard_map(lambda x: jax.device_put(x, jax.devices()[1]),
                  mesh=make_mesh(4), in_specs=P('x'), out_specs=P('x'))
    with self.assertRaisesRegex(ValueError, 'explicit device not allowed'):
      f(X)
