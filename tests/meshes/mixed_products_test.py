# SPDX-License-Identifier: Apache-2.0
"""Products of an array over Explicit mesh axes and one that has no mesh."""
from absl.testing import parameterized
import jax
from jax import lax
from jax._src import config
from jax._src import test_util as jtu
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
import numpy as np
from testing.red import red
from testing.sharding import AxisType, UNCHECKED
from testing.sharding import partly_manual, shard_map, typed_mesh
from varying.testing import common

config.parse_flags_with_absl()

set_mesh = getattr(jax, 'set_mesh', None) or jax.sharding.use_mesh
W = np.linspace(.5, 1.5, 4, dtype=np.float32)
X = np.sin(np.arange(160, dtype=np.float32)).reshape(4, 5, 2, 4)


def of_constant(x):
  return jnp.sum(jnp.sin(x @ W))


def of_weights(w):
  return jnp.sum(jnp.sin(X @ w))


def transposed(w):
  return jnp.sum(jnp.sin(jnp.einsum('i,abci->bca', w, X)))


# Functions, arguments and where they are: None is on no mesh.
PROGRAMS = {
    'constant': (of_constant, X, P('x')),
    'gradient_of_constant': (jax.grad(of_constant), X, P('x')),
    'gradient_of_split': (jax.grad(of_constant), X, P(None, None, 'x')),
    'weights': (jax.grad(of_weights), W, None),
    'placed_weights': (jax.grad(of_weights), W, P()),
    'split_weights': (jax.grad(of_weights), W, P('x')),
    'transposed': (jax.grad(transposed), W, None),
    'hessian': (jax.hessian(of_weights), W, None),
    'batch': (jax.vmap(jax.grad(of_weights)), np.stack([W, 2 * W]), None)}
CASES = [(n, sizes, jit) for n in PROGRAMS
         for sizes in ((2,), (1,), (2, 2), (1, 2)) for jit in (False, True)]


@red({
    '<0.6': '^ValueError: Mesh of both lhs and rhs should match',
    '>=0.6': '^ShardingTypeError: Mesh of both lhs and rhs should match',
})
class MixedProductsTest(jtu.JaxTestCase):

  def check(self, got, want):
    self.assertAllClose(jax.tree.map(np.asarray, got), want, rtol=1e-4,
                        atol=1e-5)

  @parameterized.parameters(*CASES)
  def test_product(self, name, sizes, jit):
    f, x, spec = PROGRAMS[name]
    mesh = typed_mesh(sizes, ('x', 'y')[:len(sizes)],
                      (AxisType.Explicit,) * len(sizes))
    with set_mesh(mesh):
      arg = x if spec is None else jax.device_put(x, NamedSharding(mesh, spec))
      got = common.maybe_jit(jit)(f)(arg)
    self.check(got, f(x))

  @parameterized.parameters('value', 'grad', 'vmap')
  def test_captured_in_map(self, use):
    mesh = typed_mesh((2, 2), ('x', 'y'), (AxisType.Explicit,) * 2)
    def mapped(x):  # by each device, as in jax#31799
      return lax.map(lambda row: jnp.sum(jnp.sin(row @ W), axis=-1), x)
    f = shard_map(mapped, mesh=mesh, in_specs=P('x'), out_specs=P('x'),
                  **partly_manual('y', of='xy'), **UNCHECKED)
    uses = dict(value=lambda f: f, grad=lambda f: jax.grad(
        lambda x: jnp.sum(jnp.cos(f(x)))), vmap=lambda f: (
            lambda x: jax.vmap(f)(jnp.stack([x, x]))))
    with set_mesh(mesh):
      x = jax.device_put(X, NamedSharding(mesh, P('x')))
      got = jax.jit(uses[use](f))(x)
    self.check(got, jax.jit(uses[use](mapped))(X))


class KeptTest(jtu.JaxTestCase):

  def test_two_meshes_are_refused(self):
    explicit = (AxisType.Explicit,)
    with set_mesh(typed_mesh((2,), ('x',), explicit)):
      other = typed_mesh((2,), ('y',), explicit)
      a = jax.device_put(W, NamedSharding(other, P('y')))
      b = jax.device_put(W, NamedSharding(typed_mesh((2,), ('x',), explicit),
                                          P('x')))
      with self.assertRaisesRegex(ValueError, '(?i)mesh'):
        jax.jit(lambda a, b: lax.dot(a, b))(a, b)

  def test_split_contraction_is_refused(self):
    mesh = typed_mesh((2,), ('x',), (AxisType.Explicit,))
    with set_mesh(mesh):
      x = jax.device_put(W, NamedSharding(mesh, P('x')))
      with self.assertRaisesRegex(Exception, 'ambiguous'):
        jax.jit(lambda x: lax.dot(x, x))(x)
