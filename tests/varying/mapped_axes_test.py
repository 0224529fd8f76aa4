# SPDX-License-Identifier: Apache-2.0
"""Collectives over an axis of vmap inside shard_map (issue 3)."""
from absl.testing import parameterized
import jax
from jax import lax
from jax._src import test_util as jtu
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
from testing.red import red
from testing.sharding import shard_map
from varying.testing.common import axes_of
from varying.testing.common import make_mesh
from varying.testing.common import maybe_jit
from varying.testing.common import run_rows

jax.config.parse_flags_with_absl()

# What pristine JAX says.
UNKNOWN_KEYWORD = (r'^TypeError: _psum_invariant_abstract_eval\(\) got an '
                   "unexpected keyword argument 'axis_index_groups'")
UNBOUND_AXIS = r"^KeyError: 'b', raised by shard_map\."
NOT_VARYING = ('^ValueError: Collective p.* must be applied to a '
               'device-varying type')
UNBOUND_AXIS_OF_TYPE = r"^KeyError: 'b', raised by core\.get_vma"
PVARY_FAILED = r'^AssertionError: raised by core\.pvary'
PSUM_OF_UNVARYING = (r'^ValueError: psum is a variant->invariant collective\. '
                     r'.* Got axes=\(0,\) and')

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

  # 0.6.1 and later name the collective that refuses.
  @red('^Exception: Unrecognized reducer: psum_invariant',
       bases='>=0.6.1,<0.8.2', cases=['psum_same'])
  @red(UNBOUND_AXIS_OF_TYPE, bases='>=0.6.1,<0.6.2',
       cases=['psum_scatter', 'all_gather', 'ppermute', 'all_to_all'])
  @red(UNKNOWN_KEYWORD, bases='==0.8.1',
       cases=['psum', 'psum_tree', 'scan', 'jit', 'psum_bool', 'pmean'])
  @red(PSUM_OF_UNVARYING, bases='==0.8.1', cases=['cond', 'pmax', 'pmin'])
  @red(UNBOUND_AXIS_OF_TYPE, bases='==0.8.1', cases=['all_gather', 'ppermute'])
  @red(NOT_VARYING, bases='>=0.6.1,<0.8.1',
       cases=['psum', 'psum_tree', 'scan', 'cond', 'jit', 'psum_bool', 'pmean',
              'pmax', 'pmin'])
  @red(UNBOUND_AXIS_OF_TYPE, bases='<0.6.1')
  @red(PVARY_FAILED, bases='>=0.8.2')
  @parameterized.product(name=[n for n in FUNCTIONS if n != 'axis_index'])
  def test_values(self, name):
    f = jax.vmap(FUNCTIONS[name], axis_name='b')
    got = run_rows(f, ('2d', True), X)
    np.testing.assert_allclose(got, np.stack([f(x) for x in X]), rtol=1e-5)

  @red(UNBOUND_AXIS_OF_TYPE, bases='>=0.6.1,<0.6.2',
       cases={'name': 'ppermute', 'where': ('1d', True)})
  @red(UNKNOWN_KEYWORD, bases='==0.8.1',
       cases={'name': 'psum', 'where': ('1d', True)})
  @red(PSUM_OF_UNVARYING, bases='==0.8.1',
       cases={'name': 'pmax', 'where': ('1d', True)})
  @red(UNBOUND_AXIS_OF_TYPE, bases='==0.8.1', cases={'where': ('1d', True)})
  # The check of types that tests turn on.
  @red(r'^JaxprTypeError: Call primitive pjit passes operand .*\{V:x\} to '
       r'jaxpr expecting type float32\[3,5\]\{V:\(.,.\)\}',
       bases='>=0.6.1,<0.7', cases={'name': 'ppermute', 'where': ('1d', False)})
  @red(UNBOUND_AXIS, bases='>=0.7,<0.8.2', cases={'where': ('1d', False)})
  @red(NOT_VARYING, bases='>=0.6.1,<0.8.1', cases=['psum', 'pmax'])
  @red(UNBOUND_AXIS_OF_TYPE, bases='<0.6.1')
  @red(PVARY_FAILED, bases='>=0.8.2')
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

  # 0.8.1's psum is without groups, its rule for vmap is not.
  @red(UNKNOWN_KEYWORD, bases='==0.8.1', cases=[True])
  @red(UNBOUND_AXIS, bases='>=0.7,<0.8.2', cases=[False])
  @red(NOT_VARYING, bases='>=0.6.1,<0.8.1')
  @red(r'^ValueError: jax\.lax\.psum can only accept axis_name which '
       'corresponds to one of varying,', bases='>=0.8.2')
  @red(UNBOUND_AXIS_OF_TYPE, bases='<0.6.1')
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

  @red(UNBOUND_AXIS_OF_TYPE, bases='>=0.6.1,<0.6.2', cases=['all_gather'])
  @red('^NameError: .*unbound axis name: b', bases='>=0.6.2,<0.8.1',
       cases=['all_gather'])
  @red(UNKNOWN_KEYWORD, bases='==0.8.1', cases=['psum', 'pmean', 'scan'])
  @red(UNBOUND_AXIS_OF_TYPE, bases='==0.8.1')
  @red(NOT_VARYING, bases='>=0.6.1,<0.8.1')
  @red(UNBOUND_AXIS_OF_TYPE, bases='<0.6.1')
  @red(PVARY_FAILED, bases='>=0.8.2')
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

  @red(UNKNOWN_KEYWORD, bases='==0.8.1')
  @red(NOT_VARYING, bases='>=0.6.1,<0.8.1')
  @red(UNBOUND_AXIS_OF_TYPE, bases='<0.6.1')
  @red(PVARY_FAILED, bases='>=0.8.2')
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
