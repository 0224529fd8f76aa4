# SPDX-License-Identifier: Apache-2.0
"""Collectives over an axis of vmap inside shard_map (issue 3)."""
from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax import lax
from jax._src import test_util as jtu
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
from testing.sharding import shard_map
from varying.testing.common import axes_of
from varying.testing.common import make_mesh
from varying.testing.common import maybe_jit
from varying.testing.common import run_rows

jax.config.parse_flags_with_absl()

WHERE = [('1d', True), ('2d', True), ('1d', False)]
X = np.random.RandomState(0).uniform(0.5, 2., (4, 3, 5)).astype(np.float32)
W = np.random.RandomState(1).uniform(0.5, 2., 5).astype(np.float32)

# Functions of a vector, one of three that vmap maps over the axis 'b'.
FUNCTIONS = {
    'psum': lambda v: lax.psum(v, 'b'),
    'psum_tree': lambda v: lax.psum({'a': v, 'n': 1}, 'b')['a'],
    'psum_bool': lambda v: lax.psum(v > 1., 'b'),
    'psum_same': lambda v: v * lax.psum(jnp.float32(2.), 'b'),
    'pmean': lambda v: v - lax.pmean(v, 'b'),
    'pmax': lambda v: lax.pmax(v, 'b'),
    'pmin': lambda v: lax.pmin(v, ('b',)),
    'all_gather': lambda v: lax.all_gather(v, 'b')[1],
    'ppermute': lambda v: lax.ppermute(v, 'b', [(0, 1), (1, 2), (2, 0)]),
    'all_to_all': lambda v: lax.all_to_all(v[:3], 'b', 0, 0),
    'psum_scatter': lambda v: lax.psum_scatter(v[:3], 'b'),
    'axis_index': lambda v: v * lax.axis_index('b').astype(v.dtype),
    'scan': lambda v: lax.scan(
        lambda c, _: (c + lax.psum(v * c, 'b'), None), v, None, length=2)[0],
    'cond': lambda v: lax.cond(
        lax.pmax(v[0], 'b') > 1., lambda: lax.psum(v, 'b'), lambda: v),
    'jit': jax.jit(lambda v: lax.psum(v, 'b')),
}


class MappedAxesTest(jtu.JaxTestCase):

  @parameterized.product(name=[n for n in FUNCTIONS if n != 'axis_index'])
  def test_values(self, name):
    f = jax.vmap(FUNCTIONS[name], axis_name='b')
    got = run_rows(f, ('2d', True), X)
    np.testing.assert_allclose(got, np.stack([f(x) for x in X]), rtol=1e-5)

  @parameterized.product(name=['psum', 'pmax', 'ppermute'],
                         where=[('1d', True), ('1d', False)])
  def test_values_eager_and_1d(self, name, where):
    f = jax.vmap(FUNCTIONS[name], axis_name='b')
    got = run_rows(f, where, X)
    np.testing.assert_allclose(got, np.stack([f(x) for x in X]), rtol=1e-5)

  @parameterized.product(where=WHERE)
  def test_what_was_right(self, where):
    f = jax.vmap(FUNCTIONS['axis_index'], axis_name='b')
    np.testing.assert_allclose(run_rows(f, where, X),
                               np.stack([f(x) for x in X]))

  @parameterized.product(jit=[True, False])
  def test_both_axes(self, jit):
    def f(x):
      v = x[0]
      return jax.vmap(lambda v: (lax.psum(v, ('x', 'b')), lax.pmax(v, 'b')),
                      axis_name='b', out_axes=None)(v)
    g = shard_map(f, mesh=make_mesh(4), in_specs=P('x'),
                  out_specs=(P(), P('x')))
    total, largest = maybe_jit(jit)(g)(X)
    np.testing.assert_allclose(total, X.sum((0, 1)), rtol=1e-5)
    np.testing.assert_allclose(largest, X.max(1).ravel(), rtol=1e-5)

  @parameterized.product(name=['psum', 'pmean', 'all_gather', 'scan'])
  def test_gradient(self, name):
    # By a mapped value and by one that all devices share, from outside.
    f = jax.vmap(lambda v, w: FUNCTIONS[name](v * w), (0, None), axis_name='b')
    def loss(x, w):
      return jnp.sum(jnp.sin(run_rows(f, ('2d', True), x, shared=w)))
    want = jax.grad(lambda x, w: sum(jnp.sum(jnp.sin(f(r, w))) for r in x),
                    (0, 1))(X, W)
    for a, b in zip(jax.jit(jax.grad(loss, (0, 1)))(X, W), want):
      np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)

  def test_types(self):
    seen = []

    def body(x, w):
      reduced = jax.vmap(lambda v: lax.psum(v, 'b'), axis_name='b')
      seen.extend([axes_of(reduced(x[0])), axes_of(reduced(w))])
      return ()

    jax.make_jaxpr(shard_map(body, mesh=make_mesh(4), in_specs=(P('x'), P()),
                             out_specs=()))(X, X[0])
    self.assertEqual(seen, [{'x'}, set()])

  def test_unbound_name(self):
    f = shard_map(lambda x: lax.psum(x, 'no_such'), mesh=make_mesh(4),
                  in_specs=P('x'), out_specs=P('x'))
    with self.assertRaises((NameError, ValueError, AssertionError, KeyError)):
      jax.jit(f)(X)


if __name__ == '__main__':
  absltest.main(testLoader=jtu.JaxTestLoader())
