# SPDX-License-Identifier: Apache-2.0
"""vmap(..., spmd_axis_name=) of a shard_map that captures, without its check.

With the check, which asks for casts: tests/varying/spmd_axis_test.py.
"""
from absl.testing import parameterized
import jax
from jax import lax
from jax._src import test_util as jtu
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
from testing.red import red
from testing.sharding import UNCHECKED, partly_manual, shard_map
from varying.testing.common import make_mesh
from varying.testing.common import maybe_jit

jax.config.parse_flags_with_absl()

# What pristine JAX says.
JAXPR_REFUSED = '^JaxprTypeError: .*while checking jaxpr'
NOT_BROADCAST = ('^TypeError: broadcast_in_dim operand dimension sizes must '
                 'either be 1, or be equal to their')

A = np.linspace(.5, 2., 24, dtype=np.float32).reshape(8, 3)
B = np.linspace(2., .5, 96, dtype=np.float32).reshape(8, 4, 3)

# Of one example: a vector that is captured, and a device's rows.
FUNCTIONS = {
    'product': lambda a, b: b * a,
    'scan': lambda a, b: lax.scan(
        lambda c, t: (c * a + t, None), b, jnp.arange(3.))[0],
    'psum': lambda a, b: b - lax.psum(a * b.sum(), 'y'),
}


def batched(f, mesh, **options):
  def example(a, b):
    return shard_map(lambda b: f(a, b), mesh=mesh, in_specs=P('y'),
                     out_specs=P('y'), **UNCHECKED, **options)(b)
  return jax.vmap(example, spmd_axis_name='x')


def expected(f, a, b):
  rows = jax.vmap(f, (None, 0), axis_name='y')
  return jax.vmap(lambda a, b: rows(a, b.reshape(2, 2, 3)).reshape(4, 3))(a, b)


@jtu.with_config(jax_numpy_rank_promotion='allow')
class BatchedTest(jtu.JaxTestCase):

  @red(NOT_BROADCAST, cases=['product'])
  @red(r'^TypeError: mul got incompatible shapes for broadcasting: \(',
       cases=['psum'])
  @red(JAXPR_REFUSED)
  @parameterized.product(name=list(FUNCTIONS))
  def test_value(self, name):
    g = batched(FUNCTIONS[name], make_mesh(2, 2))
    self.assertAllClose(jax.jit(g)(A, B), expected(FUNCTIONS[name], A, B),
                        rtol=1e-5)

  @red(JAXPR_REFUSED)
  def test_eager(self):
    g = batched(FUNCTIONS['scan'], make_mesh(2, 2))
    self.assertAllClose(g(A, B), expected(FUNCTIONS['scan'], A, B), rtol=1e-5)

  @red(JAXPR_REFUSED)
  @parameterized.product(jit=[True, False])
  def test_without_arguments(self, jit):  # jax#17874
    def f(x):
      return shard_map(lambda: 2 * x, mesh=make_mesh(4), in_specs=(),
                       out_specs=P(), **UNCHECKED)()
    g = maybe_jit(jit)(jax.vmap(f, spmd_axis_name='x'))
    self.assertAllClose(g(A[:, 0]), 2 * A[:, 0])

  @red(JAXPR_REFUSED)
  def test_partly_manual(self):
    g = batched(FUNCTIONS['scan'], make_mesh(2, 2, 2), **partly_manual('z'))
    self.assertAllClose(jax.jit(g)(A, B), expected(FUNCTIONS['scan'], A, B),
                        rtol=1e-5)

  @red(r'^TypeError: mul got incompatible shapes for broadcasting: \(8, 3\), '
       r'\([24], 1\)', cases={'shape': [(4,), (2, 2)], 'captured': True})
  @red(r'^AssertionError: \s*Not equal to tolerance rtol=1e-06, '
       r'atol=1e-06\s+Mismatched elements: 18 / 24', cases={'shape': (4,)})
  @red(r'^AssertionError: \s*Not equal to tolerance rtol=1e-06, '
       r'atol=1e-06\s+Mismatched elements: 12 / 24', cases={'shape': (2, 2)})
  @parameterized.product(jit=[True, False], shape=[(4,), (2, 2), (1, 2)],
                         captured=[True, False])
  def test_index(self, jit, shape, captured):
    # A device's part begins at the device's place in the mesh.
    def f(x):
      def inside(y):
        index = lax.axis_index('batch').astype(jnp.float32)
        return (x if captured else y) * index
      return shard_map(inside, mesh=make_mesh(*shape), in_specs=P(),
                       out_specs=P(), **UNCHECKED)(x)
    g = jax.vmap(f, axis_name='batch', spmd_axis_name='x')
    self.assertAllClose(maybe_jit(jit)(g)(A), A * jnp.arange(8.)[:, None])

  def test_guard_automatic_axis_of_one_device(self):
    # Each device has the whole batch, and the axis has no index inside.
    f = FUNCTIONS['scan']
    def example(a, b):
      return shard_map(lambda b: f(a, b), mesh=make_mesh(1, 2),
                       in_specs=P('y'), out_specs=P('y'), **UNCHECKED,
                       **partly_manual('x', of='xy'))(b)
    got = jax.jit(jax.vmap(example, spmd_axis_name='x'))(A, B)
    self.assertAllClose(got, expected(f, A, B), rtol=1e-5)

  @red({
      '<0.7': JAXPR_REFUSED,
      '>=0.7': NOT_BROADCAST,
  }, cases=[True])
  @red(NOT_BROADCAST)
  @parameterized.product(jit=[True, False])
  def test_gradient(self, jit):
    def loss(run):
      return lambda a, b: jnp.sum(jnp.sin(run(a, b)))
    g = loss(batched(FUNCTIONS['product'], make_mesh(2, 2)))
    got = maybe_jit(jit)(jax.grad(g, (0, 1)))(A, B)
    want = jax.grad(loss(lambda a, b: a[:, None] * b), (0, 1))(A, B)
    self.assertAllClose(got, want, rtol=1e-5)
