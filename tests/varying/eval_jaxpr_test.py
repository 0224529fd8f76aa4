# SPDX-License-Identifier: Apache-2.0
"""Jaxprs evaluated inside shard_map on values that vary otherwise (issue 3).

As ``jax.extend.core.jaxpr_as_fun`` and libraries do that trace a function at
one point and apply it at others.
"""
from absl.testing import parameterized
import jax
from jax import lax
from jax._src import core
from jax._src import test_util as jtu
from jax.extend.core import jaxpr_as_fun
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
from testing.red import red
from testing.sharding import shard_map
from varying.testing.common import axes_of
from varying.testing.common import make_mesh
from varying.testing.common import run_rows

jax.config.parse_flags_with_absl()

# What pristine JAX says.
UNLIKE_AXES = '^ValueError: .*varying manual axes'

WHERE = [('1d', True), ('2d', True), ('1d', False)]
X = np.random.RandomState(0).uniform(0.5, 2., (4, 3)).astype(np.float32)
W = np.random.RandomState(1).uniform(0.5, 2., 3).astype(np.float32)


def product(x, w):
  return x * w


def loop(x, w):
  return lax.scan(lambda c, _: (jnp.sin(c) * w, None), x, None, length=3)[0]


def branch(x, w):
  return lax.cond(jnp.sum(x) > 3.5, lambda: x * w, lambda: w - x)


def put(x, w):
  x, w = jax.device_put((x, w))
  return x * w


# The internal checks refuse values of other types than the jaxpr's.
@jtu.with_config(jax_enable_checks=False)
class EvalJaxprTest(jtu.JaxTestCase):

  @red(UNLIKE_AXES)
  @parameterized.product(f=[product, loop, branch], where=WHERE)
  def test_traced_outside(self, f, where):
    jaxpr = jax.make_jaxpr(f)(W, W)
    got = run_rows(lambda x, w: jaxpr_as_fun(jaxpr)(x, w)[0], where, X,
                   shared=W)
    np.testing.assert_allclose(got, np.stack([f(x, W) for x in X]), rtol=1e-5)

  @red(UNLIKE_AXES)
  @parameterized.product(f=[product, loop, branch], where=WHERE)
  def test_traced_where_nothing_varies(self, f, where):
    def body(x, w):
      return jaxpr_as_fun(jax.make_jaxpr(f)(w, w))(x, w)[0]
    got = run_rows(body, where, X, shared=W)
    np.testing.assert_allclose(got, np.stack([f(x, W) for x in X]), rtol=1e-5)

  @red(UNLIKE_AXES)
  def test_two_meshes_have_a_jaxpr_each(self):
    jaxpr = jax.make_jaxpr(product)(W, W)
    for kind in ('1d', '2d', '1d'):
      got = run_rows(lambda x, w: jaxpr_as_fun(jaxpr)(x, w)[0], (kind, True), X,
                     shared=W)
      np.testing.assert_allclose(got, X * W, rtol=1e-6)

  @red(UNLIKE_AXES)
  @parameterized.product(where=WHERE)
  def test_captured_value_varies(self, where):
    jaxpr = jax.make_jaxpr(lambda w: jnp.sin(w) * jnp.asarray(W))(W)
    def body(x, w):
      return core.eval_jaxpr(getattr(jaxpr, 'jaxpr', jaxpr), [x], w)[0]
    self.assertLen(jaxpr.consts, 1)
    got = run_rows(body, where, X, shared=W)
    np.testing.assert_allclose(got, np.sin(W) * X, rtol=1e-5)

  @red(UNLIKE_AXES)
  @parameterized.product(where=WHERE)
  def test_argument_varies_less(self, where):
    # Traced with two values that vary, evaluated with one.
    def body(x, w):
      return jaxpr_as_fun(jax.make_jaxpr(product)(x, x))(w, x)[0]
    got = run_rows(body, where, X, shared=W)
    np.testing.assert_allclose(got, X * W, rtol=1e-6)

  @red(UNLIKE_AXES)
  @parameterized.product(where=WHERE, wider=[False, True])
  def test_each_result_by_its_operand(self, where, wider):
    def body(x, w):
      traced = (w, w) if wider else (x, x)
      return jaxpr_as_fun(jax.make_jaxpr(put)(*traced))(x, w)[0]

    def loss(x, w):
      return jnp.sum(jnp.sin(run_rows(body, where, x, shared=w)))

    got = run_rows(body, where, X, shared=W)
    np.testing.assert_allclose(got, X * W, rtol=1e-6)
    by_x, by_w = jax.grad(loss, (0, 1))(X, W)
    np.testing.assert_allclose(by_x, np.cos(X * W) * W, rtol=1e-4)
    np.testing.assert_allclose(by_w, np.sum(np.cos(X * W) * X, 0), rtol=1e-4)
    _, change = jax.jvp(loss, (X, W), (X, W))
    np.testing.assert_allclose(change, np.sum(np.cos(X * W) * 2 * X * W),
                               rtol=1e-4)

  @red({
      '<0.8.1':
          '^ValueError: Collective psum_invariant must be applied to a '
          'device-varying type',
      '>=0.8.1': '^ValueError: psum is a variant->invariant collective',
  })
  @parameterized.product(where=WHERE)
  def test_sum_of_what_varies_less(self, where):
    def both(x, w):
      x, w = lax.psum((x, w), 'x')
      return x * w

    def body(x, w):
      return jaxpr_as_fun(jax.make_jaxpr(both)(x, x))(x, w)[0]

    n = {'1d': 4, '2d': 2}[where[0]]
    got = run_rows(body, where, X, shared=W)
    each = [X.reshape(n, -1, 3).sum(0)[i % (4 // n)] * W * n for i in range(4)]
    np.testing.assert_allclose(got, each, rtol=1e-5)

  @red({
      '<0.8.1': '^ValueError: Collective pvary must be applied to a '
          'non-device-varying type',
      '>=0.8.1': '^ValueError: pvary is a invariant->variant collective',
  }, cases=['pmax', 'pmin'])
  @parameterized.named_parameters(
      ('_pmax', lambda xs: lax.pmax(xs, 'x'), [{'y'}, set()]),
      ('_pmin', lambda xs: lax.pmin(xs, 'x'), [{'y'}, set()]),
      ('_device_put', jax.device_put, [{'x', 'y'}, set()]))
  def test_each_of_several_goes_by_its_own_operand(self, f, axes):
    seen = []

    def body(x, w):
      both = jaxpr_as_fun(jax.make_jaxpr(lambda a, b: f((a, b)))(w, w))
      seen.extend(axes_of(y) for y in both(x[0], w))
      return ()

    jax.make_jaxpr(shard_map(
        body, mesh=make_mesh(2, 2), in_specs=(P(('x', 'y')), P()),
        out_specs=()))(X, W)
    self.assertEqual(seen, axes)

  def test_nothing_is_cast_that_can_be_evaluated(self):
    seen = []

    def body(x, w):
      x = x[0]
      both = jaxpr_as_fun(jax.make_jaxpr(lambda a, b: (jnp.sin(a), -b))(
          x, x))
      seen.extend(axes_of(y) for y in both(w, x))
      seen.extend(axes_of(y) for y in both(w, w))
      return ()

    jax.make_jaxpr(shard_map(body, mesh=make_mesh(4), in_specs=(P('x'), P()),
                             out_specs=()))(X, W)
    self.assertEqual(seen, [set(), {'x'}, set(), set()])
