# SPDX-License-Identifier: Apache-2.0
"""Derivatives inside loops and branches that devices leave apart.

A loop's carry that starts replicated and comes to vary is differentiated as
varying, so that each device has its own derivative: that of the program on its
row alone. A derivative with respect to a captured replicated value would have
to be summed over devices that don't all arrive, and is refused.
"""
import warnings

from absl.testing import parameterized
import jax
from jax import lax
from jax._src import test_util as jtu
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
from testing.red import red
from testing.sharding import shard_map
from varying.testing.common import equations
from varying.testing.common import run_rows

jax.config.parse_flags_with_absl()

# What pristine JAX says.
OTHER_COTANGENT = ('^AssertionError: "comes from differentiating" does not '
                   r'match "unexpected JAX type \(e\.g\. shape/dtype\)')
UNEQUAL_TYPES = '^TypeError: .*must have equal types'
OTHER_COTANGENT_TYPE = (r'^ValueError: unexpected JAX type \(e\.g\. '
                        r'shape/dtype\) for argument to vjp function: got')
UNEQUAL_BRANCHES_BY_NAME = ('^TypeError: cond branches must have equal output '
                            r'types but they differ\.\s+true_fun is step')
OTHER_SCALAR_COTANGENT = (r'^ValueError: unexpected JAX type \(e\.g\. '
                          r'shape/dtype\) for argument to vjp function: got '
                          r'float32\[\],')
SUM_IN_BRANCH = ('^AssertionError: a sum over devices is in a branch that not '
                 'all take')
OTHER_COTANGENT_BY_RELEASE = {
    '<0.6.1': OTHER_COTANGENT,
    '>=0.6.1': SUM_IN_BRANCH,
}

X = np.random.RandomState(0).uniform(.5, 1.5, (4, 3)).astype(np.float32)
W = np.float32([.7, 1.2, .9])
START = jnp.zeros(3)


def descend(y, a):
  return y - .1 * jax.grad(lambda y: jnp.sum((y - a) ** 2))(y)


def descend_if(more, y, a):
  return lax.cond(jnp.sum(a) > more, lambda: descend(y, a), lambda: y)


def in_while(a):
  body = lambda c: (descend_if(c[1] + 2, c[0], a), c[1] + 1)
  return lax.while_loop(lambda c: c[1] < 3, body, (START, 0))[0]


def in_scan(a):
  body = lambda y, i: (descend_if(i + 2, y, a), i)
  return lax.scan(body, START, jnp.arange(3.))[0]


def in_fori(a):
  return lax.fori_loop(0, 3, lambda i, y: descend_if(i + 2, y, a), START)


def in_jit(a):
  f = jax.jit(descend_if)
  return lax.fori_loop(0, 3, lambda i, y: f(i + 2, y, a), START)


def weak_type(a):
  body = lambda c: (descend_if(c[1] + 2, c[0], a[0]), c[1] + 1)
  return lax.while_loop(lambda c: c[1] < 3, body, (0., 0))[0]


def by_outer_carry(a):
  def body(i, y):
    go = lambda c: (c[1] < 2) & (jnp.sum(a) > c[1] + i + 1)
    step = lambda c: (descend(y, a) + c[0] * .1, c[1] + 1)
    return lax.while_loop(go, step, (y, 0))[0]
  return lax.fori_loop(0, 3, body, START)


def by_both_carries(a):
  def body(i, y):
    step = lambda j, z: lax.cond(
        jnp.sum(a) > j + 2, lambda: descend(y, a) + descend(z, a), lambda: z)
    return lax.fori_loop(0, 2, step, jnp.ones(3))
  return lax.fori_loop(0, 3, body, START)


def newton(a):
  f = lambda y: y ** 2 - a

  def step(y):
    return y - jnp.linalg.solve(jax.jacrev(f)(y), f(y))

  def body(c):
    y, i = c
    far = jnp.max(jnp.abs(f(y))) > 1e-3
    return lax.cond(far, step, lambda y: y, y), i + 1
  return lax.while_loop(lambda c: c[1] < 4, body, (jnp.ones(3), 0))[0]


def loop_in_loss(y, a):
  return lax.fori_loop(0, 2, lambda i, s: s * .5 + jnp.sum(y * a), 0.)


def derivative_of_loop(a):
  # The sum over devices would be in the backward pass's loop.
  step = lambda y: y - .1 * jax.grad(loop_in_loss)(y, a)
  return lax.fori_loop(0, 3, lambda i, y: step(y) + .01 * a, START)


def derivative_of_loop_in_branch(a):
  step = lambda y: y - .1 * jax.grad(jax.checkpoint(loop_in_loss))(y, a)
  return lax.fori_loop(0, 3, lambda i, y: lax.cond(
      jnp.sum(a) > i + 2, step, lambda y: y, y), START)


PROGRAMS = [in_while, in_scan, in_fori, in_jit, weak_type, by_outer_carry,
            by_both_carries, newton, derivative_of_loop,
            derivative_of_loop_in_branch]


def scan_loss():
  return lambda w, a: jnp.sum(in_scan(a * w) ** 2)


def rule_loss():
  """A loss whose backward rule differentiates inside a loop."""
  add = lambda y, w, a: y + w * a
  going = lambda y, a: jnp.sum(y) < 2. * jnp.sum(a)

  def follow(w, a):
    return lax.while_loop(lambda y: going(y, a), lambda y: add(y, w, a), START)

  def bwd(res, ct):
    w, a = res
    def body(c):
      y, w_bar, a_bar = c
      y_new, pull = jax.vjp(add, y, w, a)
      _, dw, da = pull(ct)
      return y_new, w_bar + dw, a_bar + da
    return lax.while_loop(lambda c: going(c[0], a), body, (START,) * 3)[1:]

  f = jax.custom_vjp(follow)
  f.defvjp(lambda w, a: (follow(w, a), (w, a)), bwd)
  return lambda w, a: jnp.sum(f(w, a) ** 2)


@red({
    '<0.6.1': OTHER_SCALAR_COTANGENT,
    '>=0.6.1': '^AssertionError: .*: sums over devices',
})
class DivergentDerivativesTest(jtu.JaxTestCase):

  def rows(self, f, where, *args, sums=0, **kwargs):
    """`run_rows`, but traced first: a sum in a loop can deadlock."""
    run = lambda *args: run_rows(f, where, *args, **kwargs)
    traced = jax.jit(run).trace(*args)
    self.assertEqual(str(traced.jaxpr).count('psum'), sums, 'sums over devices')
    return traced.lower().compile()(*args) if where[1] else run(*args)

  def alone(self, f, *args):
    """``f`` of each row on one device; jax's own jaxprs aren't checked."""
    f = jax.jit(f)
    with jax.enable_checks(False):
      return np.stack([f(*args, a) for a in X])

  def check(self, f, where):
    want = self.alone(f)
    np.testing.assert_allclose(self.rows(f, where, X), want, rtol=1e-4)

  @red({
      '<0.7': OTHER_COTANGENT_TYPE,
      '>=0.7,<0.8.1': UNEQUAL_BRANCHES_BY_NAME,
      '>=0.8.1,<0.9':
          r'^TypeError: _psum_invariant_abstract_eval\(\) got an unexpected '
          'keyword',
      '>=0.9': UNEQUAL_BRANCHES_BY_NAME,
  }, cases=['newton'])
  @red(UNEQUAL_TYPES,
       cases=['derivative_of_loop', 'derivative_of_loop_in_branch'])
  @parameterized.product(f=PROGRAMS)
  def test_program(self, f):
    self.check(f, ('1d', True))

  @parameterized.parameters((by_both_carries, ('2d', True)),
                            (in_while, ('2d', False)))
  def test_two_axes(self, f, where):
    self.check(f, where)

  @red(UNEQUAL_TYPES, cases=['rule_loss'])
  @parameterized.parameters(
      (scan_loss, ('2d', True)), (rule_loss, ('1d', True)),
      (rule_loss, ('2d', False)))
  def test_parameter_gradient(self, make, where):
    loss = make()
    got = self.rows(lambda a, w: jax.grad(loss)(w, a), where, X, sums=1,
                    shared=W, out=P())
    want = self.alone(jax.grad(loss), W).sum(0)
    np.testing.assert_allclose(got, want, rtol=1e-4)

  @red(UNEQUAL_TYPES)
  def test_gradient_from_outside(self):
    loss = rule_loss()
    @jax.grad
    def gradient(w):
      return jnp.sum(run_rows(lambda a, w: loss(w, a), ('1d', True), X,
                              shared=w))
    traced = jax.jit(gradient).trace(W)
    self.assertLessEqual(str(traced.jaxpr).count('psum'), 1)
    want = self.alone(jax.grad(loss), W).sum(0)
    np.testing.assert_allclose(traced.lower().compile()(W), want, rtol=1e-4)

  @red({
      '<0.6.1': OTHER_COTANGENT,
      '>=0.6.1': '^AssertionError: ValueError not raised',
  })
  def test_captured_value_is_refused(self):
    # Each loop around it tries to promote its carry; not for every depth.
    traced = []
    def f(a, w):
      def step(y):
        traced.append(y)
        return descend(w, a) + y
      def nest(depth, y):
        if not depth:
          return lax.cond(jnp.sum(a) > 2., step, lambda y: y, y)
        return lax.fori_loop(0, 2, lambda i, y: nest(depth - 1, y), y)
      return nest(8, START)
    with self.assertRaisesRegex(ValueError, 'comes from differentiating'):
      jax.make_jaxpr(lambda w: run_rows(f, ('1d', True), X, shared=w))(W)
    self.assertLessEqual(len(traced), 8)


def step(p, x):
  return p - .1 * jax.grad(lambda p: p * x)(p)


def beside_a_branch(x, p):
  """Two carries; by the other a derivative is taken where devices diverge."""
  def body(c, _):
    p, s = c
    ds = lax.cond(x > 1, jax.grad(lambda s: s * x), lambda s: 0. * s, s)
    return (step(p, x), s - .1 * ds), None
  return lax.scan(body, (p, jnp.float32(0)), None, length=2)[0][0]


def by_a_state(x, p):
  """The loss reads a state, which comes to vary."""
  def body(c, _):
    p, s = c
    return (p - .1 * jax.grad(lambda p: p * s * x)(p), s + x), None
  return lax.scan(body, (p, jnp.float32(0)), None, length=2)[0][0]


def beside_numbers(x, p):
  """A carry that is a number, and one that is handed on."""
  def body(c, _):
    p, s, k = c
    return (step(p, x), s + p * x, k), None
  return lax.scan(body, (p, 0., jnp.float32(3.)), None, length=2)[0][0]


def of_numbers(x, p):
  del p
  body = lambda c, _: ((step(c[0], x), c[1] + c[0] * x), None)
  return lax.scan(body, (.5, 0.), None, length=2)[0][0]


def of_numpy_in_while(x, p):
  def body(c):
    q, s, i = c
    return step(q, x), s + q * p * x, i + 1
  start = np.float32(.5), np.float32(0), 0
  return lax.while_loop(lambda c: c[2] < 2, body, start)[0]


def of_one_value(x, p):
  body = lambda c, _: ((step(c[0], x), c[1] + c[0] * x * c[2], c[2]), None)
  return lax.scan(body, (p, p, p), None, length=2)[0][0]


@red(OTHER_SCALAR_COTANGENT, bases='<0.6.1')
class OtherCarriesTest(jtu.JaxTestCase):
  """Only a carry that comes to vary has a derivative of its own on each device.

  Another's is summed, as that of the program with a cast of the first by hand,
  so that it stays replicated.
  """

  def check(self, f, mesh, jit, want):
    names = ('x', 'y')[-len(mesh):]
    x = np.float32([.25, .75, 1.25, 1.75])
    g = shard_map(lambda x, p: f(x[0], p), mesh=jtu.create_mesh(mesh, names),
                  in_specs=(P(names), P()), out_specs=P())
    got = (jax.jit(g) if jit else g)(x, np.float32(.5))
    self.assertAllClose(got, np.float32(want))

  @red({
      '<0.6.1': OTHER_SCALAR_COTANGENT,
      '>=0.6.1': UNEQUAL_TYPES,
  })
  @parameterized.product(
      f=[by_a_state, beside_numbers, of_numbers, of_numpy_in_while,
         of_one_value],
      mesh=[(4,), (2, 2), (1, 4)], jit=[True, False])
  def test_is_summed(self, f, mesh, jit):
    # The sum of x is 4, and that of x ** 2 is 5.25.
    self.check(f, mesh, jit, .5 - (.1 * 5.25 if f is by_a_state else .2 * 4.))

  @parameterized.parameters((4,), (2, 2), (1, 4))
  def test_is_summed_beside_a_branch(self, *mesh):
    # Without jit a sum is left on pristine in the branch: devices diverge.
    self.check(beside_a_branch, mesh, True, .5 - .2 * 4.)

  def descend_where(self, flag):
    """A carry that nothing but the predicate makes vary, on four devices."""
    def body(x, p):
      where = flag(x[0])
      return lax.scan(lambda p, _: (lax.cond(
          where, lambda p: step(p, x[0]), lambda p: p, p), None),
                      p, None, length=2)[0][None]
    f = shard_map(body, mesh=jtu.create_mesh((4,), ('x',)),
                  in_specs=(P('x'), P()), out_specs=P('x'))
    return jax.jit(f)(np.float32([.25, .75, 1.25, 1.75]), np.float32(.5))

  @red({
      '<0.6.1': OTHER_SCALAR_COTANGENT,
      '>=0.6.1': '^AssertionError: False is not true : nothing is said',
  })
  def test_a_predicate_that_may_agree_is_told(self):
    # JAX takes it to, and sums: -.3 on each device here.
    with warnings.catch_warnings(record=True) as caught:
      warnings.simplefilter('always')
      # A scatter could add in another order on each device.
      got = self.descend_where(lambda x: jnp.zeros(1).at[
          jnp.zeros(4, int)].add(lax.all_gather(x, 'x'))[0] > 1.)
    self.assertTrue(any('say so, for example with jax.lax.pmax(predicate'
                        in str(w.message)
                        and w.category is jax.errors.DivergentLoopWarning
                        for w in caught), 'nothing is said')
    self.assertAllClose(got, np.float32([.45, .35, .25, .15]), rtol=1e-5)

  @parameterized.parameters(lambda p: lax.pmax(p, 'x'), lambda p: p)
  def test_a_predicate_that_agrees(self, told):
    got = self.descend_where(
        lambda x: told(lax.all_gather(x, 'x').sum() > 1.))
    self.assertAllClose(got, np.full(4, -.3, np.float32), rtol=1e-5)


def where_some(w, x):
  """The derivative of `w * x`, on devices with `x` of more than 1 only."""
  return lax.cond(x[0] > 1., lambda: jax.grad(lambda v: v * x[0])(w),
                  lambda: 0.)


@red({
    '<0.6.1': OTHER_COTANGENT_TYPE,
    '>=0.6.1': SUM_IN_BRANCH,
})
class RetriedRulesTest(jtu.JaxTestCase):
  """Of a rule's inputs, those alone vary by which a branch differentiates.

  What the rule makes of the others is complete on every device.
  """

  x = np.float32([.5, 1., 2., 3.])

  def gradient(self, value, bwd, *parameters):
    f = jax.custom_vjp(value)
    f.defvjp(lambda *args: (f(*args), args), bwd)
    return self.gradient_of(f, *parameters)

  def gradient_of(self, f, *parameters):
    places = tuple(range(len(parameters)))
    g = shard_map(lambda x: jax.grad(f, places)(*parameters, x),
                  mesh=jtu.create_mesh((4,), ('x',)), in_specs=P('x'),
                  out_specs=P())
    return self.values(g)

  def values(self, g):
    traced = jax.jit(g).trace(self.x)
    for eqn in equations(traced.jaxpr.jaxpr):
      if eqn.primitive.name == 'cond' and 'psum' in str(eqn):
        self.fail('a sum over devices is in a branch that not all take')
    return traced.lower().compile()(self.x)

  def test_a_sum_in_the_rule(self):
    def bwd(res, ct):
      w, x = res
      total = lax.psum(x[0] + 0. * where_some(w, x), 'x')
      return ct * total, jnp.zeros_like(x)
    got, = self.gradient(lambda w, x: w * lax.psum(x[0], 'x'), bwd, 2.)
    self.assertAllClose(got, 6.5, check_dtypes=False)

  def test_a_sum_after_a_predicate(self):
    # Which agrees until w is cast; what says so moves no sum.
    def bwd(res, ct):
      w, x = res
      one = lax.cond(lax.all_gather(x[0], 'x')[0] < w, lambda: np.float32(1),
                     lambda: np.float32(0))
      total = lax.psum(one * x[0] + 0. * where_some(w, x), 'x')
      return ct * total, jnp.zeros_like(x)
    got, = self.gradient(lambda w, x: w * lax.psum(x[0], 'x'), bwd,
                         np.float32(2))
    self.assertAllClose(got, 6.5, check_dtypes=False)

  def test_another_parameter(self):
    def bwd(res, ct):
      w, v, x = res
      return ct * where_some(w, x), ct * 2. * v, jnp.zeros_like(x)
    got = self.gradient(lambda w, v, x: w + v ** 2, bwd, 2., 3.)
    self.assertAllClose(got, (5., 6.), check_dtypes=False)

  def test_rules_in_rules(self):
    # Each is traced again for itself, and with each that it is called in.
    traced = []

    def nest(depth):
      def value(w, x):
        traced.append(depth)
        return w * x
      if not depth:
        return value
      inner = nest(depth - 1)

      def bwd(res, ct):
        w, x = res
        slope = lax.cond(x > 1., lambda: jax.grad(
            lambda w: inner(3., w * x))(w), lambda: 0.)
        return jnp.zeros_like(w), ct * (w + slope)
      f = jax.custom_vjp(value)
      f.defvjp(lambda w, x: (w * x, (w, x)), bwd)
      return f

    def slope(depth, w, x):
      return w + (x * slope(depth - 1, 3., w * x) if depth and x > 1. else 0.)
    f = nest(3)
    g = shard_map(lambda x: jax.grad(lambda x: f(2., x))(x[0])[None],
                  mesh=jtu.create_mesh((4,), ('x',)), in_specs=P('x'),
                  out_specs=P('x'))
    self.assertAllClose(self.values(g), np.float32(
        [slope(3, 2., x) for x in self.x]))
    self.assertLess(len(traced), 32)

  def test_a_result_that_varies_by_a_predicate_alone(self):
    # Its mean is returned: as predicates agree, it doesn't vary.
    def bwd(res, ct):
      w, v, x = res
      chosen = lax.cond(x[0] > 1., lambda: 2. * v, lambda: 3. * v)
      return ct * where_some(w, x), ct * chosen, jnp.zeros_like(x)
    got = self.gradient(lambda w, v, x: w + v, bwd, 2., 4.)
    self.assertAllClose(got, (5., 10.), check_dtypes=False)

  def test_returns_the_cotangent_of_what_is_not_used(self):
    # A SymbolicZero, as what equinox's checkpointed loop gives; the rule's
    # results aren't all arrays then.
    f = jax.custom_vjp(lambda w, v, x: (w, v))

    def fwd(w, v, x):
      return f(w.value, v.value, x.value), (w.value, x.value)

    def bwd(res, cts):
      w, x = res
      ct, unused = cts
      return ct * where_some(w, x), unused, jnp.zeros_like(x)
    f.defvjp(fwd, bwd, symbolic_zeros=True)
    got = self.gradient_of(lambda *args: f(*args)[0], 2., 3.)
    self.assertAllClose(got, (5., 0.), check_dtypes=False)

  @red(OTHER_COTANGENT_BY_RELEASE)
  def test_refuses_a_sum_beside(self):
    def bwd(res, ct):
      w, x = res
      complete = jax.grad(lambda w: jnp.sum(w * x))(w)
      return ct * complete ** 2 + where_some(w, x), jnp.zeros_like(x)
    with self.assertRaisesRegex(ValueError, 'comes from differentiating'):
      self.gradient(lambda w, x: w, bwd, 2.)

  @red(OTHER_COTANGENT_BY_RELEASE)
  def test_refuses_one_sum_for_another(self):
    # Cast, w's own is gone; u's comes, though it is complete on each device.
    def bwd(res, ct):
      w, u, x = res
      complete = jax.grad(lambda w: w ** 2 * x[0])(w)
      slope = jax.grad(lambda u: u * w)(u)
      return (ct * (where_some(w, x) + 0. * complete), ct * slope,
              jnp.zeros_like(x))
    with self.assertRaisesRegex(ValueError, 'comes from differentiating'):
      self.gradient(lambda w, u, x: w * u, bwd, 2., 5.)
