# SPDX-License-Identifier: Apache-2.0
"""Collectives that only some of their devices reach are refused."""
import re

from absl.testing import parameterized
import jax
from jax import lax
from jax._src import config
from jax._src import core
import jax.numpy as jnp
import jax.scipy.sparse.linalg
from jax.sharding import PartitionSpec as P
import numpy as np
from testing.oracle import MeshTestCase
from testing.red import red
from testing.sharding import shard_map
from varying.testing.common import cast
from varying.testing.common import make_mesh

config.parse_flags_with_absl()

# What pristine JAX says.
NOT_REFUSED = '^AssertionError: ValueError not raised'
GROUPS_UNKNOWN = '^TypeError: _psum_invariant_abstract_eval'
UNEQUAL_BRANCHES_BY_NAME = ('^TypeError: cond branches must have equal output '
                            r'types but they differ\.\s+true_fun is <lambda>')


def in_cond(x):
  return lax.cond(x[0] > 2, lambda: lax.psum(x, 'x'), lambda: x)


def in_switch(x):
  return lax.switch(x[0].astype(int), [
      lambda: x, lambda: lax.ppermute(x, 'x', [(0, 1), (1, 0)])])


def in_while_body(x):
  return lax.while_loop(lambda c: c[0] < x[0],
                        lambda c: c + lax.pmax(c, 'x'), x * 0.)


def in_while_predicate(x):
  # Whether to go on is asked of devices that have left the loop.
  go = lambda c: (c[0] < x[0]) & (lax.pmin(c[0], 'x') < 9.)
  return lax.while_loop(go, lambda c: c + 1., x * 0.)


def in_fori(x):
  return lax.fori_loop(0, x[0].astype(int),
                       lambda i, c: c + lax.all_gather(c, 'x').sum(0), x)


def by_counter(x):
  return lax.fori_loop(0, x[0].astype(int), lambda i, c: summed(c), x)


def by_counter_elsewhere(x):
  return lax.fori_loop(0, x[0].astype(int), lambda i, c: summed(c), x)


def by_residual(x):
  return jax.scipy.sparse.linalg.cg(lambda v: v * x[0] + summed(v), x, x)[0]


def by_jitted(x):
  return lax.while_loop(jax.jit(lambda c: c[0] < x[0]), summed, x)


def summed(c):
  return lax.psum(c, 'x') + c


def over_both_axes(x):
  y = x + lax.axis_index('y').astype(x.dtype)  # so that it varies over both
  return lax.cond(x[0] > 2, lambda: lax.psum(y, ('x', 'y')), lambda: x)


def deep_inside(x):
  f = jax.jit(jax.checkpoint(lambda c: lax.psum(c, 'x') + c))
  body = lambda c, _: (lax.cond(lax.axis_index('y') > 5, f, lambda c: c, c), 0)
  return lax.cond(x[0] > 2, lambda: lax.scan(body, x, None, 2)[0], lambda: x)


def after_promotion(x):
  # The branch's predicate was the same everywhere when it was traced.
  def body(c, a):
    return lax.cond(c > 1, lambda: c + lax.psum(a, 'x'), lambda: c + a), None
  return lax.scan(body, 0., x)[0][None]


# Functions that nobody knows the arguments of while they are traced.


def in_custom_vjp(x):
  f = jax.custom_vjp(in_cond)
  f.defvjp(lambda x: (f(x), None), lambda _, g: (g,))
  return f(x)


def in_custom_jvp(x):
  f = jax.custom_jvp(in_cond)
  f.defjvp(lambda x, t: (f(*x), t[0]))
  return f(x)


def in_nested_map(x):
  # 0.6.0 needs the mesh once more.
  mesh = {} if hasattr(jax, 'shard_map') else dict(mesh=make_mesh(2, 2))
  return shard_map(jax.jit(in_cond), in_specs=P(), out_specs=P(), **mesh)(x)


def in_derivative(x):
  w = jnp.float32(3.)
  w = lax.psum(x[0], 'x') * w
  f = lambda w: (w * x).sum()
  return lax.cond(x[0] > 2, lambda: jax.grad(f)(w), lambda: x[0])[None]


REFUSED = {f.__name__: f for f in [
    in_cond, in_switch, in_while_body, in_while_predicate, in_fori,
    over_both_axes, deep_inside, after_promotion, in_custom_vjp, in_custom_jvp,
    in_nested_map]}


def other_axis(x):
  return lax.cond(x[0] > 2, lambda: lax.psum(x, 'y'), lambda: 2. * x)


def permuted(x):
  swap = [(0, 1), (1, 0)]
  return lax.cond(x[0] > 2, lambda: lax.ppermute(2. * x, 'y', swap), lambda: x)


def same_predicate(x):
  return lax.cond(lax.pmax(x[0], 'x') > 2, lambda: lax.psum(x, 'x') + x,
                  lambda: x)


def cast_inside(x):
  return lax.cond(x[0] > 2, lambda: x * lax.axis_index('x').astype(x.dtype),
                  lambda: x)


def same_trip_count(x):
  body = lambda c: c * .5 + lax.pmean(c, 'x') * .1
  return lax.while_loop(lambda c: lax.pmax(c.max(), 'x') > 1., body, x)


def mapped_predicate(x):
  # All devices run both branches, and select.
  def f(a):
    scaled = lambda: a * lax.psum(a, 'x')
    return lax.cond(a > 2, scaled, lambda: a + lax.pmax(a, 'x'))
  return jax.vmap(f)(x) + jax.vmap(jax.vmap(f))(x[None] * 2.)[0]


def unmapped_predicate(x):
  def f(a):
    return lax.cond(x[0] > 2, lambda: lax.psum(a, 'x'), lambda: a)
  return jax.vmap(f)(x)


def inside_mapped_predicate(x):
  def f(a):
    inner = lambda: lax.cond(x[0] > 2, lambda: lax.psum(a, 'x'), lambda: a)
    return lax.cond(a > 2, inner, lambda: a)
  return jax.vmap(f)(x)


def converted(f, x):
  """``jax.closure_convert`` by hand: a function, and what ``f`` captures."""
  jaxpr = jax.make_jaxpr(f)(x)
  return (lambda x, *consts: core.eval_jaxpr(jaxpr.jaxpr, consts, x)[0],
          jaxpr.consts)


class ShardMapDivergenceTest(MeshTestCase):

  def setUp(self):
    super().setUp()
    self.x = jnp.array([1., 2., 3., 4.])
    self.mesh = make_mesh(2, 2)

  def traced(self, f):
    # Traced only: upstream would deadlock.
    return jax.make_jaxpr(shard_map(
        f, mesh=self.mesh, in_specs=P('x'), out_specs=P(('x', 'y'))))(self.x)

  @red(UNEQUAL_BRANCHES_BY_NAME,
       cases=['after_promotion', 'in_cond', 'over_both_axes',
              'in_custom_vjp', 'in_custom_jvp'])
  @red(UNEQUAL_BRANCHES_BY_NAME, bases='>=0.6.1', cases=['in_nested_map'])
  @red(NOT_REFUSED)
  @parameterized.parameters(*sorted(REFUSED))
  def test_refuses(self, name):
    message = ("(?s)over mesh axis 'x' at .*predicate, at .*varies over 'x'"
               '.*Make the predicate the same.*jax_allow_divergent_collectives')
    with self.assertRaisesRegex(ValueError, message):
      self.traced(REFUSED[name])

  @red(UNEQUAL_BRANCHES_BY_NAME)
  @parameterized.parameters(unmapped_predicate, inside_mapped_predicate)
  def test_refuses_under_vmap(self, f):
    with self.assertRaisesRegex(ValueError, "psum over mesh axis 'x'"):
      self.traced(f)

  @red(NOT_REFUSED)
  def test_refuses_permutation(self):
    message = ("(?s)ppermute over mesh axis 'y' at .*predicate, at .*varies "
               "over 'y'")
    with self.assertRaisesRegex(ValueError, message):
      jax.make_jaxpr(shard_map(
          permuted, mesh=self.mesh, in_specs=P(('x', 'y')),
          out_specs=P(('x', 'y'))))(self.x)

  @red(UNEQUAL_BRANCHES_BY_NAME, bases='>=0.7')
  def test_refuses_derivative(self):
    if jax.__version_info__ < (0, 7):
      self.skipTest('0.6.0 refuses the gradient itself')
    with self.assertRaisesRegex(ValueError, 'comes from differentiating'):
      self.traced(in_derivative)

  @red(UNEQUAL_BRANCHES_BY_NAME)
  def test_refuses_backward_rule(self):
    @jax.custom_vjp
    def f(x):
      return x.sum()
    f.defvjp(lambda x: (f(x), x), lambda x, g: (lax.psum(x, 'x') * 0. + g,))
    run = shard_map(
        lambda x: lax.cond(x[0] > 2, lambda: f(x), lambda: 0.)[None],
        mesh=self.mesh, in_specs=P('x'), out_specs=P('x'))
    with self.assertRaisesRegex(ValueError, "psum over mesh axis 'x'"):
      jax.make_jaxpr(jax.grad(lambda x: run(x).sum()))(self.x)

  def test_names_the_lines(self):
    try:
      self.traced(in_while_body)
    except ValueError as e:
      self.assertEqual(str(e).count('divergent_collectives_test.py'), 2)
      self.assertIn('lax.while_loop', str(e))

  @red(NOT_REFUSED)
  @parameterized.parameters(
      'by_counter', 'by_counter_elsewhere', 'by_residual', 'by_jitted')
  def test_names_the_line_of_a_predicate_of_jax(self, name):
    f = globals()[name]
    with self.assertRaises(ValueError) as e:
      self.traced(f)
    where, = re.findall(r'whose predicate, at (.*?), varies', str(e.exception))
    line = f.__code__.co_firstlineno + 1
    self.assertRegex(where, rf'divergent_collectives_test\.py:{line}\b')

  @red(GROUPS_UNKNOWN, bases='>=0.8.1,<0.9', cases=['mapped_predicate'])
  @parameterized.parameters('other_axis', 'same_predicate', 'cast_inside',
                            'same_trip_count', 'mapped_predicate')
  def test_admits(self, name):
    f = globals()[name]
    got = jax.jit(shard_map(f, mesh=self.mesh, in_specs=P('x'),
                            out_specs=P('x')))(self.x)
    both = jax.vmap(jax.vmap(f, axis_name='x'), axis_name='y')
    want = both(jnp.stack([self.x.reshape(2, 2)] * 2))[0].reshape(-1)
    self.assertAllClose(got, want)

  @red(GROUPS_UNKNOWN, bases='>=0.8.1,<0.9')
  def test_guard_admits_mapped_predicate(self):
    f = shard_map(mapped_predicate, mesh=self.mesh, in_specs=P('x'),
                  out_specs=P('x'))
    x = np.array([[1., 2.], [3., 4.]], np.float32)
    g = lambda x: np.where(x > 2, x * x.sum(0), x + x.max(0))
    want = (g(x) + g(2. * x)).reshape(-1)
    self.assertAllClose(jax.jit(f)(self.x), want)
    self.assertAllClose(f(self.x), want)

  @red(NOT_REFUSED)
  @parameterized.parameters(jax.closure_convert, converted)
  def test_refuses_another_value_for_a_captured_one(self, convert):
    def f(other, x):
      total = cast(lax.psum(x[0], 'x'), ['x'])
      one = jnp.float32(1.)
      g, consts = convert(
          lambda v: lax.cond(total > 4, lambda: v, lambda: 2 * v), one)
      return g(one, *[x[0] for _ in consts] if other else consts)
    run = lambda other: jax.jit(shard_map(
        lambda x: f(other, x), mesh=make_mesh(2, 2), in_specs=P('x'),
        out_specs=P()))
    self.assertAllClose(run(False)(self.x), jnp.float32(2.))
    with self.assertRaisesRegex(ValueError, 'traced for later use'):
      run(True)(self.x)

  @red(UNEQUAL_BRANCHES_BY_NAME)
  def test_admits_functions_that_a_solve_does_not_apply(self):
    def on(c, b):  # nobody knows c while this is traced
      half = lambda v: lax.cond(
          c[0] > 2, lambda: lax.psum(v, 'x') / 4, lambda: v / 2)
      return lax.custom_linear_solve(
          lambda v: 2. * half(v) + v, b, lambda matvec, b: b / 2,
          transpose_solve=lambda vecmat, b: half(b))
    f = shard_map(lambda x: jax.jit(on)(x, 2. * x), mesh=self.mesh,
                  in_specs=P('x'), out_specs=P('x'))
    self.assertAllClose(jax.jit(f)(self.x), self.x)
    with self.assertRaisesRegex(ValueError, "psum over mesh axis 'x'"):
      jax.make_jaxpr(jax.grad(lambda x: f(x).sum()))(self.x)

  @red('^TypeError: .*jax_allow_divergent_collectives', api_missing=True)
  def test_option_admits(self):
    option = 'jax_allow_divergent_collectives'
    self.addCleanup(jax.config.update, option, False)
    with self.assertRaisesRegex(ValueError, 'over mesh axis'):
      self.traced(in_cond)
    jax.config.update(option, True)
    self.assertIn('psum', str(self.traced(in_cond)))
