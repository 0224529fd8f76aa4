# SPDX-License-Identifier: Apache-2.0
"""Gradients of checkpointed functions, without jit.

The oracle is the plain function on each device's block.
"""
from absl.testing import parameterized
import jax
from jax import lax
from jax._src import test_util as jtu
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
from testing.red import red
from testing.sharding import shard_map
from varying.testing.common import blockwise
from varying.testing.common import make_mesh
from varying.testing.common import MESHES

jax.config.parse_flags_with_absl()

X = np.random.RandomState(0).uniform(.5, 1.5, (4, 4)).astype(np.float32)


def loop(x):
  return lax.fori_loop(0, 3, lambda i, y: jnp.sin(y * x), x)


def scanned_branches(x):
  def body(y, i):
    return lax.cond(i < 1, jnp.sin, lambda y: y * x, y), None
  return lax.scan(body, x, jnp.arange(3))[0]


@red('^NotImplementedError: Eager evaluation of `closed_call`')
class EagerCallsTest(jtu.JaxTestCase):

  @parameterized.product(f=[loop, scanned_branches], kind=['1d', '2d'],
                         inside=[True, False])
  def test_checkpoint(self, f, kind, inside):
    mesh = make_mesh(*MESHES[kind])
    spec = P(*mesh.axis_names)
    shard = lambda f: shard_map(f, mesh=mesh, in_specs=spec, out_specs=spec)
    g = (shard(jax.checkpoint(f)) if inside else jax.checkpoint(shard(f)))
    got = jax.grad(lambda x: jnp.sum(g(x) ** 2))(X)
    want = blockwise(jax.grad(lambda x: jnp.sum(f(x) ** 2)), MESHES[kind], X)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)

  def test_result_is_not_that_of_one_device(self):
    f = lambda x: lax.fori_loop(0, 2, lambda i, y: y + lax.psum(x, 'x'), x)
    g = shard_map(jax.checkpoint(f), mesh=make_mesh(4), in_specs=P('x'),
                  out_specs=P('x'))
    got = jax.grad(lambda x: jnp.sum(g(x) * X))(X)
    want = X + 2 * np.sum(X, 0, keepdims=True)
    np.testing.assert_allclose(got, np.broadcast_to(want, X.shape), rtol=1e-5)
