# SPDX-License-Identifier: Apache-2.0
"""psum, pmin, pmax over groups and vmapped axes, with check_rep=True."""
import functools

from absl.testing import parameterized
import jax
from jax import lax
from jax._src import test_util as jtu
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
from testing.red import red
from testing.sharding import eight_devices
from testing.sharding import smap

jax.config.parse_flags_with_absl()
eight_devices()

on_four = functools.partial(smap, sizes=(4,))

GROUPS = [[0, 1], [2, 3]]
X = np.array([1., 2., 3., 5.], np.float32)


@red(r'^NotImplementedError: raised by shard_map\._psum_rewrite')
class GroupsTest(jtu.JaxTestCase):

  @parameterized.named_parameters(('_eager', lambda f: f), ('_jit', jax.jit))
  def test_psum(self, transform):
    f = on_four((P('i'), P()), P('i'))(
        lambda x, w: x * lax.psum(x * w, 'i', axis_index_groups=GROUPS))
    x, w = X, np.float32(2.)
    sums = np.array([3., 3., 8., 8.])
    self.assertAllClose(transform(f)(x, w), x * sums * 2, check_dtypes=False)
    dx, dw = transform(jax.grad(lambda x, w: f(x, w).sum(), (0, 1)))(x, w)
    self.assertAllClose(dx, sums * 4, check_dtypes=False)
    self.assertAllClose(dw, (x * sums).sum(), check_dtypes=False)

  def test_psum_of_a_replicated_value(self):
    f = on_four(P(), P('i'))(
        lambda w: lax.psum(w, 'i', axis_index_groups=GROUPS)[None])
    self.assertAllClose(jax.jit(f)(3.), np.full(4, 6.), check_dtypes=False)
    grad = jax.jit(jax.grad(lambda w: f(w).sum()))(3.)
    self.assertAllClose(grad, 8., check_dtypes=False)

  @red('^AssertionError: ValueError not raised', cases=['pmax', 'pmin'])
  @parameterized.named_parameters(('_psum', lax.psum), ('_pmax', lax.pmax),
                                  ('_pmin', lax.pmin))
  def test_result_varies(self, reduce):
    f = on_four(P('i'), P())(
        lambda x: reduce(x[0], 'i', axis_index_groups=GROUPS))
    with self.assertRaisesRegex(ValueError, 'out_specs'):
      jax.jit(f)(X)
    with self.assertRaisesRegex(ValueError, 'out_specs'):
      f(X)


class ReplicatedTest(jtu.JaxTestCase):

  @red(r'^TypeError: _reduction_collective_rewrite\(\) got multiple values '
       "for argument 'axes'")
  @parameterized.product(reduce=[lax.pmax, lax.pmin], jit=[False, True])
  def test_extremes_of_replicated_values(self, reduce, jit):
    f = on_four(P(), P())(lambda w: reduce((w, [-w]), 'i'))
    self.assertAllClose((jax.jit(f) if jit else f)(X), (X, [-X]))


RING = [(d, (d + 1) % 4) for d in range(4)]
# Collectives of four rows that are the same on all devices, and what the
# devices get. A literal has no replication type until it meets what has one.
EXCHANGES = {
    'ppermute': (lambda w: lax.ppermute(w, 'i', RING), lambda w: [w] * 4),
    'ppermute_from_one': (lambda w: lax.ppermute(w, 'i', [(0, 1)]),
                          lambda w: [0. * w, w, 0. * w, 0. * w]),
    'pshuffle': (lambda w: lax.pshuffle(w, 'i', [3, 2, 1, 0]),
                 lambda w: [w] * 4),
    'all_to_all': (lambda w: lax.all_to_all(w, 'i', 0, 0, tiled=True),
                   lambda w: [np.stack([row] * 4) for row in w]),
    'psum_scatter': (lambda w: lax.psum_scatter(w, 'i', tiled=True),
                     lambda w: [4. * row[None] for row in w]),
    'all_gather': (lambda w: lax.all_gather(w, 'i'),
                   lambda w: [np.stack([w] * 4)] * 4),
    'psum': (lambda w: lax.psum(w, 'i'), lambda w: [4. * w] * 4),
    'pmax': (lambda w: lax.pmax(w, 'i'), lambda w: [w] * 4),
    'pmin': (lambda w: lax.pmin(w, 'i'), lambda w: [w] * 4),
}
W = np.arange(1., 9., dtype=np.float32).reshape(4, 2)


class SameOperandTest(jtu.JaxTestCase):

  @parameterized.product(name=sorted(EXCHANGES), jit=[False, True],
                         literal=[True, False])
  def test_value(self, name, jit, literal):
    move, results = EXCHANGES[name]
    f = on_four((P(),), P('i'))(
        lambda w: move(jnp.asarray(W) if literal else w)[None])
    self.assertAllClose((jax.jit(f) if jit else f)(W), np.stack(results(W)))

  @parameterized.parameters(*sorted(set(EXCHANGES) - {'pmax', 'pmin'}))
  def test_gradient_beside_a_literal(self, name):
    move, results = EXCHANGES[name]
    f = on_four(P(), P('i'))(
        lambda c: (move(c * W) * move(jnp.asarray(W)))[None])
    slope = jax.jit(jax.grad(lambda c: f(c).sum()))(np.float32(3.))
    self.assertAllClose(slope, np.square(results(W)).sum(), check_dtypes=False)


class VmappedAxisTest(jtu.JaxTestCase):

  @red(r'^ValueError: reduction axes \(0,\) contains out-of-bounds indices')
  def test_psum_over_a_vmapped_and_a_mesh_axis(self):
    f = on_four((P('i'), P()), P('i'))(lambda x, w: jax.vmap(
        lambda r: r * lax.psum(r * w, ('v', 'i')), axis_name='v')(x))
    x, w = np.arange(8., dtype=np.float32), np.float32(2.)
    self.assertAllClose(jax.jit(f)(x, w), x * 56, check_dtypes=False)
    dx, dw = jax.jit(jax.grad(lambda x, w: f(x, w).sum(), (0, 1)))(x, w)
    self.assertAllClose(dx, np.full(8, 112.), check_dtypes=False)
    self.assertAllClose(dw, 28. * 28, check_dtypes=False)


@red('^TypeError: .*Zero.*is not a valid JAX type')
class ZeroCotangentTest(jtu.JaxTestCase):

  def test_cast_with_a_zero_cotangent(self):
    # What lstsq casts has a result without a cotangent.
    spd = lambda r: r @ r.T + 3 * jnp.eye(4)
    f = on_four((P('i'), P()), P('i'))(
        lambda x, r: jnp.linalg.lstsq(spd(r), x)[0])
    rng = np.random.RandomState(0)
    x, r = rng.randn(16, 4), rng.randn(4, 4)
    x, r = x.astype(np.float32), r.astype(np.float32)
    solve = lambda x, r: jnp.concatenate(
        [jnp.linalg.solve(spd(r), b) for b in jnp.split(x, 4)])
    grad = lambda f: jax.jit(jax.grad(
        lambda x, r: jnp.sum(jnp.sin(f(x, r))), (0, 1)))(x, r)
    self.assertAllClose(grad(f), grad(solve), rtol=1e-3, atol=1e-4)

  @red('^TypeError: expand_dims requires ndarray or scalar arguments, got '
       "<class 'jax._src.ad_util.Zero'>", cases=[False])
  @parameterized.parameters(False, True)
  def test_sum_with_a_zero_cotangent(self, jit):
    # One of two values that are summed together is not used.
    f = on_four((P('i'), P('i')), P())(
        lambda x, y: jnp.sin(lax.psum((x, y), 'i')[0]))
    grad = jax.grad(lambda x, y: f(x, y)[0], (0, 1))
    got = (jax.jit(grad) if jit else grad)(X, X)
    self.assertAllClose(got, (np.full_like(X, np.cos(X.sum())),
                              np.zeros_like(X)), rtol=1e-5)


class GuardTest(jtu.JaxTestCase):

  def test_pmax_with_groups(self):
    f = on_four(P('i'), P('i'))(
        lambda x: lax.pmax(x, 'i', axis_index_groups=GROUPS))
    self.assertAllClose(jax.jit(f)(X), np.array([2., 2., 5., 5.]),
                        check_dtypes=False)

  @parameterized.named_parameters(
      ('_psum', lax.psum, 11.), ('_pmax', lax.pmax, 5.),
      ('_pmin', lax.pmin, 1.))
  def test_without_groups_the_result_is_replicated(self, reduce, want):
    f = on_four(P('i'), P())(lambda x: reduce(x[0], 'i'))
    self.assertAllClose(jax.jit(f)(X), want, check_dtypes=False)
    text = str(jax.make_jaxpr(f)(X))
    self.assertNotIn('pbroadcast', text)

  def test_pmax_over_a_vmapped_and_a_mesh_axis(self):
    f = on_four(P('i'), P())(lambda x: jax.vmap(
        lambda r: lax.pmax(r, ('v', 'i')), axis_name='v', out_axes=None)(x))
    self.assertAllClose(jax.jit(f)(np.arange(8.)), 7., check_dtypes=False)
