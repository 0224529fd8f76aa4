# SPDX-License-Identifier: Apache-2.0
"""Gradients by some arguments of a shard_map, against one device."""
from absl.testing import parameterized
import jax
from jax._src import test_util as jtu
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
from testing.red import red
from testing.sharding import shard_map, UNCHECKED
from varying.testing.common import make_mesh
from varying.testing.common import maybe_jit

jax.config.parse_flags_with_absl()

X = np.linspace(0., 1., 8, dtype=np.float32)
W = np.float32(1.5)


@jax.custom_vjp
def wave(x, w):
  return jnp.sin(x) * w


wave.defvjp(lambda x, w: (wave(x, w), (x, w)),
            lambda r, ct: (ct * jnp.cos(r[0]) * r[1],
                           jnp.sum(ct * jnp.sin(r[0]))))


def remade(x, w):
  return jax.checkpoint(lambda x, w: wave(x, w) * jnp.cos(x * w))(x, w)


class CotangentsTest(jtu.JaxTestCase):

  def check(self, f, sizes, options, by, jit):
    mesh = make_mesh(*sizes)
    rows = P(mesh.axis_names)
    g = maybe_jit(jit)(shard_map(f, mesh=mesh, in_specs=(rows, P()),
                                 out_specs=rows, **options))
    loss = lambda f: lambda x, w: jnp.sum(f(x, w) ** 2)
    self.assertAllClose(jax.grad(loss(g), by)(X, W),
                        jax.grad(loss(f), by)(X, W), rtol=1e-5)

  @red('^_SpecError: .*ShapedArray.float32')
  @parameterized.product(sizes=[(4,), (2, 2), (1,), (4, 1)],
                         options=[{}, UNCHECKED])
  def test_by_one_argument(self, sizes, options):
    self.check(wave, sizes, options, 0, False)

  @parameterized.product(f=[wave, remade], sizes=[(4,), (2, 2), (1,)],
                         by=[(0, 1), (1, 0), 1], jit=[False, True])
  def test_by_others(self, f, sizes, by, jit):
    self.check(f, sizes, {}, by, jit)

  @parameterized.parameters(wave, remade)
  def test_of_jit(self, f):
    self.check(f, (4,), {}, 0, True)
