# SPDX-License-Identifier: Apache-2.0
"""Branches in a shard_map: sound types, joined outputs, right gradients.

The oracle for values and gradients runs the same function on one device: each
device's part in turn, with the index of the device given as a number.
"""
import contextlib
import functools

from absl.testing import parameterized
import jax
from jax import lax
from jax._src import config
from jax._src import core
from jax._src import test_util as jtu
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
import numpy as np
from testing.oracle import MeshTestCase
from testing.red import red
from testing.sharding import eight_devices, shard_map

config.parse_flags_with_absl()
eight_devices()

# What pristine JAX says.
UNEQUAL_BRANCHES = '^TypeError: .*must have equal output types'
SUM_IN_BRANCH = ('^AssertionError: a sum over devices is inside of branches '
                 'that not all take')
NOT_REFUSED = '^AssertionError: ValueError not raised'


def make_mesh(name):
  shape, axes = {'1d': ((2,), ('x',)), '2d': ((2, 2), ('x', 'y'))}[name]
  return Mesh(np.array(jax.devices()[:np.prod(shape)]).reshape(shape), axes)


def varying(aval):
  return aval.mat.varying if hasattr(aval, 'mat') else aval.vma


def sums_in_branches(jaxpr, axes=frozenset()):
  """The number of reductions that only some of their devices reach."""
  found = 0
  for eqn in getattr(jaxpr, 'jaxpr', jaxpr).eqns:
    inner = axes
    if eqn.primitive.name == 'cond':
      inner = axes | varying(eqn.invars[0].aval)
    found += ('psum' in eqn.primitive.name
              and not axes.isdisjoint(eqn.params['axes']))
    for sub in core.jaxprs_in_params(eqn.params):
      found += sums_in_branches(sub, inner)
  return found


# Functions of a replicated parameter, a device's part of the input, and the
# device's index along the axis; each gives a number.


def ignores_parameter(w, x, i):
  return lax.cond(i == 0, lambda: (x * w * w).sum(), lambda: x.sum())


def returns_parameter(w, x, i):
  return lax.cond(i == 0, lambda w: w, lambda w: w * 3., w) + x[0]


def one_returns_parameter(w, x, i):
  return lax.cond(x[0] > 2, lambda: w, lambda: x[0])


def constants(w, x, i):
  return w * lax.cond(x[0] > 2, lambda: 1., lambda: 2.)


def different_axes(w, x, i):
  scale = lax.cond(w > 0, lambda: x[1], lambda: 2.)
  return scale * w


def switched(w, x, i):
  return lax.switch(i, [lambda: jnp.sin(w * x).sum(),
                        lambda: w ** 2, lambda: 0.])


def remat_and_jit(w, x, i):
  first = jax.checkpoint(lambda w: jnp.sin(w * x).sum())
  second = jax.jit(lambda w: w * x.sum())
  return lax.cond(i == 0, first, second, w)


def scan_in_branch(w, x, i):
  def body(c, a):
    c = lax.cond(c > 2., lambda: c * jnp.cos(w), lambda: c + a * w)
    return c, c * w
  def outer():
    c, ys = lax.scan(body, 1., x)
    return c + ys.sum()
  return lax.cond(x[1] < 3, outer, lambda: 1.)


def branch_in_scan(w, x, i):
  def body(c, a):
    c = lax.cond(x[0] * c > 5, lambda: c * w * w + a, lambda: c + jnp.sin(w))
    return c, c * w
  c, ys = lax.scan(body, .5, x)
  return c + ys.sum()


def branch_in_branch_in_loop(w, x, i):
  def body(k, c):
    return lax.cond(
        x[0] > k,
        lambda: lax.cond(c > 3., lambda: c * w, lambda: c + w), lambda: c + 1.)
  return lax.fori_loop(0, 4, body, 1.)


@jax.custom_vjp
def vjp_rule(w, x):
  return w * w * x.sum()


vjp_rule.defvjp(
    lambda w, x: (vjp_rule(w, x), (w, x)),
    lambda r, g: (g * 2 * r[0] * r[1].sum(), g * r[0] ** 2 * jnp.ones_like(
        r[1])))


@jax.custom_jvp
def jvp_rule(w, x):
  return w * w * x.sum()


jvp_rule.defjvp(lambda p, t: (
    jvp_rule(*p), 2 * p[0] * p[1].sum() * t[0] + p[0] ** 2 * t[1].sum()))


def custom_vjp(w, x, i):
  return lax.cond(i == 0, lambda: vjp_rule(w, x) * w, lambda: w)


def custom_jvp(w, x, i):
  return lax.cond(i == 0, lambda: jvp_rule(w, x) * w, lambda: w)


def where_batched(w, x, i):
  return jax.vmap(lambda a: lax.cond(a > 2., lambda: a * w, lambda: w))(
      x).sum()


def platform(w, x, i):
  return lax.platform_dependent(
      x, cpu=lambda x: x.sum() * w, default=lambda x: 0. * w)


def piecewise(w, x, i):
  return jnp.piecewise(x, [x < 2., x > 3.], [lambda a: a * w, 1., 0.]).sum()


def chooses_by_its_own(w, x, i):
  """A branch whose inner index is a constant, and is kept for a gradient."""
  def choose(w):
    n = jnp.sum(jnp.full(3, .5)).astype(int)
    return lax.switch(n, [lambda: w, lambda: w * w * x.sum(), lambda: 0.])
  return lax.cond(i == 0, choose, lambda w: 2. * w, w)


PROGRAMS = {f.__name__: f for f in [
    ignores_parameter, returns_parameter, one_returns_parameter, constants,
    different_axes, switched, remat_and_jit, scan_in_branch, branch_in_scan,
    branch_in_branch_in_loop, custom_vjp, custom_jvp, where_batched, platform]}


# Upstream accepted these; some of their types and gradients were wrong.
RIGHT_BEFORE = {'branch_in_branch_in_loop', 'constants', 'ignores_parameter',
                'remat_and_jit', 'returns_parameter'}
REFUSED_BEFORE = set(PROGRAMS) - RIGHT_BEFORE


X = np.arange(1., 5., dtype=np.float32)
W = np.float32(.7)


def derivatives(run, name):
  """The value at w and x, its derivative in one direction, its gradient."""
  def all_of(w, x):
    value, pull = jax.vjp(run, w, x)
    tangent = value
    if name != 'custom_vjp':  # has no forward mode
      tangent = jax.jvp(run, (w, x), (jnp.ones_like(w), jnp.cos(x)))[1]
    return value, tangent, pull(jnp.ones_like(value))
  return all_of


@functools.cache
def alone(name):
  """The value and derivatives of a program, on one device."""
  def both(w, x):
    parts = enumerate(x.reshape(2, -1))
    return jnp.stack([PROGRAMS[name](w, p, jnp.int32(i)) for i, p in parts])
  with jax.enable_checks(False):
    return jax.jit(derivatives(both, name))(W, X)


class ShardMapBranchesTest(MeshTestCase):

  def setUp(self):
    super().setUp()
    self.x, self.w = jnp.array(X), jnp.float32(W)

  def per_device(self, f, mesh, how='jit'):
    def run(w, x):
      return f(w, x, lax.axis_index('x'))[None]
    g = shard_map(run, mesh=make_mesh(mesh), in_specs=(P(), P('x')),
                  out_specs=P('x'))
    return jax.jit(g) if how == 'jit' else g

  def run_safely(self, f, *args):
    """f(*args), but traced first: a sum inside of branches can deadlock."""
    traced = jax.jit(f).trace(*args)
    if sums_in_branches(traced.jaxpr):
      self.fail('a sum over devices is inside of branches that not all take')
    return traced.lower().compile()(*args)

  def oracle(self, f, w, x):
    @jax.jit
    def of_both(w, x):
      parts = x.reshape(2, -1)
      return jnp.stack([f(w, parts[i], jnp.int32(i)) for i in range(2)])
    return of_both(w, x)

  @red(NOT_REFUSED)
  @parameterized.parameters('jit', 'eager')
  def test_unsound_cond(self, how):
    f = shard_map(lambda x: lax.cond(x[0] > 2, lambda: 1., lambda: 2.),
                  mesh=make_mesh('2d'), in_specs=P('x'), out_specs=P())
    with self.assertRaisesRegex(ValueError, 'require replication'):
      (jax.jit(f) if how == 'jit' else f)(self.x)

  @red(NOT_REFUSED)
  def test_unsound_switch(self):
    f = lambda x: lax.switch(x[0].astype(int),
                             [lambda i=i: i for i in range(3)])
    f = shard_map(f, mesh=make_mesh('1d'), in_specs=P('x'), out_specs=P())
    with self.assertRaisesRegex(ValueError, 'require replication'):
      jax.jit(f)(self.x)

  @red(UNEQUAL_BRANCHES)
  @parameterized.parameters('switched', 'scan_in_branch',
                            'one_returns_parameter')
  def test_value_eager(self, name):
    self.check_value(name, 'eager')

  @parameterized.parameters(*((n, 'jit') for n in sorted(RIGHT_BEFORE)),
                            ('returns_parameter', 'eager'))
  def test_guard_value(self, name, how):
    self.check_value(name, how)

  def check_value(self, name, how):
    got = self.per_device(PROGRAMS[name], '1d', how)(self.w, self.x)
    self.assertAllClose(got, alone(name)[0])

  @red(r'^AssertionError: \s+Not equal to tolerance rtol=1e-06, '
       r'atol=1e-06\s+Mismatched elements: 1 / 1',
       cases=['branch_in_branch_in_loop', 'returns_parameter', 'constants'])
  @red(SUM_IN_BRANCH, cases=['ignores_parameter', 'remat_and_jit'])
  @red(UNEQUAL_BRANCHES)
  @parameterized.parameters(*sorted(PROGRAMS))
  def test_gradient(self, name):
    run = self.per_device(PROGRAMS[name], '2d')
    got = self.run_safely(derivatives(run, name), self.w, self.x)
    for have, want in zip(got, alone(name)):
      self.assertAllClose(have, want)

  @red({
      '<0.8.1': SUM_IN_BRANCH,
      '>=0.8.1,<0.9':
          r'^TypeError: _psum_invariant_abstract_eval\(\) got an unexpected '
          'keyword',
      '>=0.9': SUM_IN_BRANCH,
  }, cases=['ignores_parameter'])
  @red(UNEQUAL_BRANCHES)
  @parameterized.parameters(('scan_in_branch', 'jit'),
                            ('ignores_parameter', 'eager'))
  def test_hessian(self, name, how):
    f, run = PROGRAMS[name], self.per_device(PROGRAMS[name], '1d')
    hessian = jax.hessian(lambda w: run(w, self.x).sum())
    got = self.run_safely(hessian, self.w)
    got = got if how == 'jit' else hessian(self.w)
    want = jax.jit(jax.hessian(lambda w: self.oracle(f, w, self.x).sum()))
    self.assertAllClose(got, want(self.w))

  @red(SUM_IN_BRANCH, cases=['ignores_parameter'])
  @red(UNEQUAL_BRANCHES)
  @parameterized.parameters('ignores_parameter', 'branch_in_scan',
                            'custom_vjp', 'switched')
  def test_gradient_inside(self, name):
    f = PROGRAMS[name]
    def run(w, x):
      return jax.grad(lambda w: lax.psum(f(w, x, lax.axis_index('x')), 'x'))(w)
    run = shard_map(run, mesh=make_mesh('2d'), in_specs=(P(), P('x')),
                    out_specs=P())
    got = self.run_safely(run, self.w, self.x)
    self.assertAllClose(got, alone(name)[2][0])

  @red(SUM_IN_BRANCH, cases=['ignores_parameter'])
  @red(UNEQUAL_BRANCHES)
  @parameterized.parameters('ignores_parameter', 'scan_in_branch', 'custom_vjp')
  def test_gradient_remat(self, name):
    run = self.per_device(PROGRAMS[name], '2d')
    got = self.run_safely(jax.grad(jax.checkpoint(
        lambda w: run(w, self.x).sum())), self.w)
    self.assertAllClose(got, alone(name)[2][0])

  @red(UNEQUAL_BRANCHES)
  @parameterized.parameters('plain', 'remat', 'jit')
  def test_what_a_branch_keeps(self, how):
    # Where another branch is taken, something else is in its place.
    run = self.per_device(chooses_by_its_own, '1d')
    run = {'plain': run, 'jit': jax.jit(run), 'remat': jax.checkpoint(
        run, policy=jax.checkpoint_policies.everything_saveable)}[how]
    value, pull = jax.vjp(lambda w: run(w, self.x), self.w)
    kept = [x for x in jax.tree.leaves(pull) if isinstance(x, jax.Array)]
    self.assertNotEmpty(kept)
    for x in kept:
      if x.sharding.is_fully_replicated:
        for shard in x.addressable_shards:
          np.testing.assert_array_equal(shard.data, x)
    oracle = lambda w: self.oracle(chooses_by_its_own, w, self.x).sum()
    self.assertAllClose(pull(jnp.ones_like(value))[0], jax.grad(oracle)(self.w))

  @red(r'^AssertionError: \(ShapedArray\(float32\[2\]\{x\}\), '
       r'ShapedArray\(float32\[2\]\)\)', bases='==0.7.0')
  def test_guard_what_a_branch_of_a_rule_keeps(self):
    @jax.custom_jvp
    def square(w, x):
      return w * w * x.sum()
    def rule(primals, tangents):
      (w, x), (dw, dx) = primals, tangents
      def choose(dw):
        n = jnp.sum(jnp.full(3, .5)).astype(int)
        return lax.switch(n, [lambda: dw, lambda: 2. * dw * w, lambda: 0.])
      slope = lax.cond(x[0] > 2., choose, lambda dw: dw * w * 2., dw)
      return square(w, x), slope * x.sum() + w * w * dx.sum()
    square.defjvp(rule)
    f = lambda w, x, i: square(w, x)
    run = self.per_device(f, '1d')
    got = self.run_safely(jax.grad(lambda w: run(w, self.x).sum()), self.w)
    self.assertAllClose(
        got, jax.grad(lambda w: self.oracle(f, w, self.x).sum())(self.w))

  @red(UNEQUAL_BRANCHES)
  def test_backward_rule_is_typed_twice(self):
    # By the branch that it is in, and by the one that this is in.
    def f(w, x, i, j):
      inner = lambda w: lax.cond(j == 0, lambda w: vjp_rule(w, x), jnp.sin, w)
      return lax.cond(i == j, inner, lambda w: 2. * w, w)
    def run(w, x):
      i, j = lax.axis_index('x'), lax.axis_index('y')
      return f(w, x[0], i, j)[None]
    x = jnp.arange(8.).reshape(4, 2)
    run = shard_map(run, mesh=make_mesh('2d'), in_specs=(P(), P(('x', 'y'))),
                    out_specs=P(('x', 'y')))
    got = self.run_safely(jax.grad(lambda w, x: run(w, x).sum(), (0, 1)),
                          self.w, x)
    want = jax.grad(lambda w, x: sum(
        f(w, x[2 * i + j], i, j) for i in range(2) for j in range(2)), (0, 1))
    self.assertAllClose(got, want(self.w, x))

  @red(UNEQUAL_BRANCHES)
  def test_gradient_in_a_branch_outside(self):
    # The program's jaxpr is evaluated anew there.
    run = self.per_device(chooses_by_its_own, '1d')
    def loss(w):
      return lax.cond(w > 0., lambda w: run(w, self.x).sum(), lambda w: w, w)
    oracle = lambda w: self.oracle(chooses_by_its_own, w, self.x).sum()
    self.assertAllClose(jax.jit(jax.grad(loss))(self.w),
                        jax.grad(oracle)(self.w))

  @red(UNEQUAL_BRANCHES, bases='>=0.6.1')
  def test_piecewise(self):
    if jax.__version_info__ < (0, 6, 1):
      self.skipTest("0.6.0's reductions don't take it")
    run = self.per_device(piecewise, '2d')
    self.assertAllClose(run(self.w, self.x),
                        self.oracle(piecewise, self.w, self.x))

  @red(SUM_IN_BRANCH)
  def test_report(self):
    # jax#40823: the gradient is 5, and was 4.
    def f(w, x):
      out = lax.cond(lax.axis_index('x') == 0, lambda: w * x[0],
                     lambda: w * x[0])
      return lax.psum(out, 'x')
    run = shard_map(f, mesh=make_mesh('1d'), in_specs=(P(), P('x')),
                    out_specs=P())
    x = jnp.array([2., 3.])
    got = self.run_safely(jax.grad(run), self.w, x)
    self.assertAllClose(got, np.float32(5.))

  @red(UNEQUAL_BRANCHES)
  def test_same_operand_keeps_its_type(self):
    def f(w, x):
      return lax.cond(x[0] > 2, lambda: (w, x[0]), lambda: (w, 2.))[0]
    got = jax.jit(shard_map(f, mesh=make_mesh('2d'), in_specs=(P(), P('x')),
                            out_specs=P()))(self.w, self.x)
    self.assertAllClose(got, self.w)

  @parameterized.parameters('cond', 'switch')
  def test_guard_same_value_passed_twice(self, how):
    def f(w, x):
      branches = (lambda a, b: (b, w * 2.), lambda a, b: (a, w))
      if how == 'cond':
        return lax.cond(x[0] > 2, *branches, w, w)[0]
      return lax.switch((x[0] > 2).astype(int), branches, w, w)[0]
    got = jax.jit(shard_map(f, mesh=make_mesh('2d'), in_specs=(P(), P('x')),
                            out_specs=P()))(self.w, self.x)
    self.assertAllClose(got, self.w)

  def test_same_number_keeps_its_type(self):
    def f(w, x):
      return w * lax.cond(x[0] > 2, lambda: (1., w), lambda: (1., 2.))[0]
    run = lambda f: jax.jit(shard_map(
        f, mesh=make_mesh('2d'), in_specs=(P(), P('x')), out_specs=P()))
    self.assertAllClose(run(f)(self.w, self.x), self.w)

  @red('^ValueError: Primitive mul requires varying manual axes to match')
  @parameterized.parameters('jit', 'eager')
  def test_batch_of_same_numbers(self, how):
    # What reads the number was typed before a batch chose it by an index.
    def f(w, x, i):
      def step(c, _):
        n, y = lax.cond(x[0] > 2, lambda: (2., x[0]), lambda: (2., x[1]))
        return c + w * y + (jnp.full(3, .5) * n).sum(), None
      return lax.scan(step, x[1], length=2)[0]
    run = self.per_device(f, '2d', how)
    ws, xs = jnp.stack([self.w, self.w * 2]), jnp.stack([self.x, -self.x])
    with jax.enable_checks(False):  # pristine refuses it with and without
      got = jax.vmap(run)(ws, xs)
    self.assertAllClose(got, jnp.stack(
        [self.oracle(f, w, x) for w, x in zip(ws, xs)]))

  @red(NOT_REFUSED)
  def test_unsound_numbers(self):
    def f(w, x):
      return w * lax.cond(x[0] > 2, lambda: (1., w), lambda: (2., w))[0]
    with self.assertRaisesRegex(ValueError, 'replicat'):
      shard_map(f, mesh=make_mesh('2d'), in_specs=(P(), P('x')),
                out_specs=P())(self.w, self.x)

  @red(NOT_REFUSED)
  def test_unsound_arrays(self):
    # Printed, they are the same: an ellipsis stands for what differs.
    zeros, one = np.zeros(3000, np.float32), np.eye(1, 3000, 1500)[0]
    one = one.astype(np.float32)
    self.assertEqual(str(zeros), str(one))
    def f(w, x):
      return lax.cond(x[0] > 2, lambda: jnp.asarray(zeros),
                      lambda: jnp.asarray(one))
    as_literals = getattr(config, 'use_simplified_jaxpr_constants',
                          lambda _: contextlib.nullcontext())  # from 0.7 on
    with as_literals(True), self.assertRaisesRegex(ValueError, 'replicat'):
      shard_map(f, mesh=make_mesh('2d'), in_specs=(P(), P('x')),
                out_specs=P())(self.w, self.x)

  def test_replicated_index_stays_replicated(self):
    def f(w, x):
      return lax.cond(lax.pmax(x[0], 'x') > 2, lambda: w * 2, lambda: w)
    got = jax.jit(shard_map(f, mesh=make_mesh('2d'), in_specs=(P(), P('x')),
                            out_specs=P()))(self.w, self.x)
    self.assertAllClose(got, self.w * 2)

  def test_unaffected_program_is_unchanged(self):
    # No cast is added where nothing needs one.
    def f(w, x):
      return lax.cond(w > 0, lambda: x * w, lambda: x)
    jaxpr = str(jax.make_jaxpr(shard_map(
        f, mesh=make_mesh('2d'), in_specs=(P(), P('x')), out_specs=P('x')))(
            self.w, self.x))
    self.assertEqual(jaxpr.count('pvary'), 1)  # upstream's own, at the product

  def test_other_axis(self):
    # The index varies over y only; what it selects already varies over x.
    def f(x):
      return lax.cond(lax.axis_index('y') == 0, lambda: x, lambda: 2. * x)
    run = shard_map(f, mesh=make_mesh('2d'), in_specs=P('x'),
                    out_specs=P(('x', 'y')))
    got = jax.jit(run)(self.x)
    a, b = self.x[:2], self.x[2:]
    self.assertAllClose(got, jnp.concatenate([a, 2 * a, b, 2 * b]))

  def test_debug_print_on_a_partly_manual_mesh(self):
    # 0.6.0 prints from one device along the other axes: in a branch within a
    # shard_map of its own, which captures what is printed.
    f = lambda x: jax.debug.print('part {}', x)
    partly = (dict(axis_names={'x'}) if hasattr(jax, 'shard_map')
              else dict(auto=frozenset({'y'}), check_rep=False))
    run = shard_map(f, mesh=make_mesh('2d'), in_specs=P('x'), out_specs=None,
                    **partly)
    with jtu.capture_stdout() as output:
      jax.jit(run)(self.x)
      jax.effects_barrier()
    for part in (self.x[:2], self.x[2:]):
      self.assertIn(f'part {part}', output())

  def test_real_mismatch_is_refused(self):
    f = lambda x: lax.cond(x[0] > 2, lambda: x, lambda: 1.)
    f = shard_map(f, mesh=make_mesh('1d'), in_specs=P('x'), out_specs=P('x'))
    with self.assertRaisesRegex(TypeError, 'the shapes do not match'):
      f(self.x)

  def test_option_restores_the_refusal(self):
    f = lambda x: lax.cond(lax.psum(x[0], 'x') > 2, lambda: x[:1],
                           lambda: jnp.ones(1))
    f = shard_map(f, mesh=make_mesh('1d'), in_specs=P('x'), out_specs=P('x'))
    if hasattr(jax.config, 'jax_shard_map_promote_carries'):
      self.assertAllClose(jax.jit(f)(self.x), self.x[::2])
      jax.config.update('jax_shard_map_promote_carries', False)
      self.addCleanup(jax.config.update, 'jax_shard_map_promote_carries', True)
    with self.assertRaisesRegex(TypeError, 'must have equal output types'):
      jax.jit(f)(self.x)


def nest(kinds, x, calls):
  """Loops and branches in each other, counting the innermost's traces."""
  def make(level):
    def inner(c):
      calls.append(level)
      return c + x[0]
    step = inner if level == len(kinds) - 1 else make(level + 1)
    if kinds[level] == 'w':
      return lambda c: lax.while_loop(
          lambda s: s[0] < 2, lambda s: (s[0] + 1, step(s[1])), (0, c))[1]
    if kinds[level] == 's':
      return lambda c: lax.scan(lambda d, _: (step(d), None), c, None,
                                length=2)[0]
    return lambda c: lax.cond(lax.psum(1., 'x') > 0., step, lambda d: d, c)
  return make(0)(0.)[None]


class AxisOfOneDeviceTest(jtu.JaxTestCase):
  """An index that varies along such an axis, in a batch: a choice by value."""

  # Without jit each operation compiles by itself.
  @red(r'^AssertionError: \(ShapedArray\(float32\[3,3\]\), '
       r'ShapedArray\(float32\[3,3\]\{')
  @parameterized.parameters((False, True, (1, 4)), (True, True, (1, 4)),
                            (True, True, (1, 1)), (False, False, (1, 1)))
  def test_batched(self, nested, jit, sizes):
    count = np.prod(sizes)
    if len(jax.devices()) < count:
      self.skipTest('needs as many devices')
    mesh = Mesh(np.array(jax.devices()[:count]).reshape(sizes), ('x', 'y'))

    def chosen(t, w):
      index = jnp.int32(jnp.sum(t) > 1.)
      return lax.switch(index, [lambda: w, lambda: w * .5, lambda: w])

    def nest(t, w):
      return lax.cond(jnp.sum(t) < 2., lambda: chosen(t, w) * .5, lambda: w)

    fun = nest if nested else chosen
    batch = lambda t, w: jax.vmap(lambda s: fun(t * s, w))(
        jnp.arange(1., 4.))
    f = shard_map(lambda t, w: batch(t[0], w)[None], mesh=mesh,
                  in_specs=(P(('x', 'y')), P()), out_specs=P('y'))
    t = np.linspace(.05, .9, 3 * count, dtype=np.float32).reshape(count, 3)
    w = np.array([.3, .5, .7], np.float32)
    maybe = jax.jit if jit else lambda f: f
    alone = jax.vmap(batch, (0, None))
    self.assertAllClose(maybe(f)(t, w), alone(t, w), rtol=1e-6)
    grad = lambda f: jax.grad(lambda w: jnp.sum(jnp.sin(f(t, w))))
    self.assertAllClose(maybe(grad(f))(w), grad(alone)(w), rtol=1e-5)


class ShardMapNestsTest(jtu.JaxTestCase):

  @red('^TypeError: .*must have equal types')
  @parameterized.parameters('w', 's', 'ww', 'ss', 'wsws', 'wwwwwwww',
                            'ssssssss', 'wcs', 'scwcswcs', 'csww')
  def test_nest(self, kinds):
    if len(jax.devices()) < 2:
      self.skipTest('needs two devices')
    mesh = Mesh(np.array(jax.devices()[:2]), ('x',))
    x = jnp.array([1., 2., 3., 4.])
    calls = []
    f = shard_map(lambda x: nest(kinds, x, calls), mesh=mesh,
                  in_specs=P('x'), out_specs=P('x'))
    got = jax.jit(f)(x)
    self.assertLen(calls, 1)
    trips = 2. ** len(kinds.replace('c', ''))
    self.assertAllClose(got, trips * x[::2])


class ArrayOfTheMeshTest(jtu.JaxTestCase):
  """A branch hands on an array that stands on the mesh already.

  Its type is of the mesh outside of the shard_map, which has no Manual axes.
  """

  def captured(self, mesh, spec):
    """Two blocks' branches, of which one returns the array as it is."""
    sizes, names = mesh
    mesh = Mesh(np.array(jax.devices()[:np.prod(sizes)]).reshape(sizes),
                tuple(names))
    put = lambda a, spec: jax.device_put(a, jax.sharding.NamedSharding(
        mesh, spec))
    a, w = np.float32([0, .25, .75, 1]), np.float32([1, 2, 3, 4])
    f = lambda a, w, branches: shard_map(
        lambda a: lax.cond(a[0] > .5, *branches(w)), mesh=mesh,
        in_specs=P('x'), out_specs=P('x'))(a)
    return f, put(a, P('x')), put(w, spec), w

  @parameterized.product(
      mesh=[((2,), 'x'), ((2, 2), 'xy')], spec=[P(), P('x')],
      jit=[True, False])
  def test_handed_on(self, mesh, spec, jit):
    f, a, w, numbers = self.captured(mesh, spec)
    g = lambda a: f(a, w, lambda w: (lambda: w, lambda: w * 2))
    got = (jax.jit(g) if jit else g)(a)
    self.assertAllClose(got, np.concatenate([numbers * 2, numbers]))

  @red(r'^AssertionError: \s+Not equal to tolerance rtol=1e-06, '
       r'atol=1e-06\s+Mismatched elements: 4 / 4')
  @parameterized.product(mesh=[((2,), 'x'), ((2, 2), 'xy')],
                         spec=[P(), P('x')])
  def test_gradient_of_what_is_captured(self, mesh, spec):
    f, a, w, _ = self.captured(mesh, spec)
    branches = lambda w: (lambda: w * 3, lambda: w * 2)
    by_w = jax.jit(jax.grad(lambda w: jnp.sum(f(a, w, branches))))(w)
    self.assertAllClose(by_w, np.full(4, 5, np.float32))


class PlacedValueTest(jtu.JaxTestCase):
  """An eager branch puts what it captures onto devices, as ``cg`` does.

  Where that value lies, its cotangent doesn't go: it varies.
  """

  @red(UNEQUAL_BRANCHES)
  @parameterized.product(
      mesh=[((2,), 'x'), ((2, 2), 'xy'), ((1, 2), 'yx')], jit=[True, False])
  def test_gradient(self, mesh, jit):
    sizes, names = mesh
    mesh = Mesh(np.array(jax.devices()[:np.prod(sizes)]).reshape(sizes),
                tuple(names))
    f = shard_map(lambda v, a: lax.cond(
        a[0] > .5, lambda: jax.device_put(v) ** 2, lambda: v + 0. * a),
                  mesh=mesh, in_specs=(P(), P('x')), out_specs=P('x'))
    v, a = np.float32([1., 2.]), np.float32([0., 0., 1., 1.])
    derive = jax.grad(lambda v: jnp.sum(f(v, a)))
    self.assertAllClose((jax.jit(derive) if jit else derive)(jnp.array(v)),
                        1. + 2. * v)
