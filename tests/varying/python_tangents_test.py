# SPDX-License-Identifier: Apache-2.0
"""jvp of a shard_map within jit, with numbers that are not JAX's."""

from absl.testing import parameterized
import jax
from jax import lax
from jax._src import config
from jax._src import test_util as jtu
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec as P
import numpy as np
from testing.red import red
from testing.sharding import eight_devices, shard_map

config.parse_flags_with_absl()
eight_devices()

# What pristine JAX says.
NOT_CANONICAL = '^AssertionError: non-canonical constant of type'

X = np.arange(8, dtype=np.float32)


def on_devices(two):
  """sin(x) * w ** 2 on a mesh of one or of two axes."""
  devices = np.array(jax.devices()[:4])
  mesh = Mesh(devices.reshape(2, 2) if two else devices,
              ('x', 'y') if two else ('x',))
  spec = P(('x', 'y')) if two else P('x')
  return shard_map(
      lambda w, x: jnp.sin(x).astype(jnp.result_type(w)) * w * w, mesh=mesh,
      in_specs=(P(), spec), out_specs=spec)


@parameterized.named_parameters(('_1d', False), ('_2d', True))
class ShardMapPythonTangentsTest(jtu.JaxTestCase):

  def check(self, f, *args, expected):
    self.assertAllClose(jax.jit(f)(*args), expected, rtol=1e-4, atol=1e-4,
                        check_dtypes=False)

  @red(NOT_CANONICAL)
  def test_tangent(self, two):
    f = on_devices(two)
    self.check(lambda w: jax.jvp(lambda w: f(w, X), (w,), (3.,))[1], 2.,
               expected=12 * np.sin(X))

  @red(NOT_CANONICAL)
  def test_primal(self, two):
    f = on_devices(two)
    self.check(lambda t: jax.jvp(lambda w: f(w, X), (2.,), (t,))[1], 3.,
               expected=12 * np.sin(X))

  @red(NOT_CANONICAL)
  def test_complex(self, two):
    f = on_devices(two)
    self.check(lambda w: jax.jvp(lambda w: f(w, X), (w,), (1j,))[1], 2j,
               expected=-4 * np.sin(X))

  @red(NOT_CANONICAL)
  def test_numpy(self, two):
    f = on_devices(two)
    self.check(lambda w: jax.jvp(lambda x: f(w, x), (X,), (X + 1,))[1], 2.,
               expected=4 * np.cos(X) * (X + 1))

  @red(NOT_CANONICAL)
  def test_linearize(self, two):
    f = on_devices(two)
    def pushed(t):
      _, push = jax.linearize(lambda w: f(w, X), 2.)
      return jax.jvp(push, (3.,), (t,))
    self.check(pushed, 5., expected=(12 * np.sin(X), 20 * np.sin(X)))

  def test_jacfwd(self, two):
    f = on_devices(two)
    def second(w):
      return jax.jacfwd(lambda v: jax.jvp(
          lambda w: f(w, X), (2.,), (3.,))[1].sum() * v)(w)
    self.check(second, 2., expected=12 * np.sin(X).sum())

  @red(NOT_CANONICAL)
  def test_vmap(self, two):
    f = on_devices(two)
    def one(scale):
      return scale * jax.jvp(lambda w: f(w, X), (2.,), (3.,))[1]
    scales = np.array([1., 2.], np.float32)
    def both(w):
      return jax.vmap(one)(scales) + jax.jvp(
          lambda w: f(w, X), (w,), (3.,))[1][None]
    self.check(both, 2., expected=(scales[:, None] + 1) * 12 * np.sin(X))

  @red(NOT_CANONICAL)
  def test_grad_and_loop(self, two):
    f = on_devices(two)
    def rate(w):
      return jax.jvp(lambda w: f(w, X), (w,), (3.,))[1].sum()
    def loop(w):
      return lax.scan(lambda c, _: (c + jax.grad(rate)(c), None), w, None,
                      length=2)[0]
    step = 6 * np.sin(X).sum()
    self.check(loop, 2., expected=2 + 2 * step)
