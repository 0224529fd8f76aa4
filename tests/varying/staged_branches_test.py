# SPDX-License-Identifier: Apache-2.0
"""Conditionals that are staged as they are traced, and transposed later.

Their branches read a value that is the same on all devices, and cast it. The
oracle is NumPy: the sum of each device's slope.
"""
from absl.testing import parameterized
import jax
from jax import lax
from jax._src import config
from jax._src import core
from jax._src.interpreters import ad
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
from testing.oracle import MeshTestCase
from testing.red import red
from testing.sharding import eight_devices
from testing.sharding import shard_map
from varying.testing.common import axes_of
from varying.testing.common import cast
from varying.testing.common import equations
from varying.testing.common import make_mesh

config.parse_flags_with_absl()
eight_devices()

# What pristine JAX says.
SUM_IN_BRANCH = ('^AssertionError: a sum over devices is in a branch that not '
                 'all take')

W = np.float32(.7)
SIZES = {'line': (4,), 'square': (2, 2), 'alone': (1, 4)}


def by_hand(w, x, axes):
  return lax.cond(x[0] > 2., lambda w: cast(w, axes) * x.sum(),
                  lambda w: 3. * cast(w, axes), w)


def implied(w, x, axes):
  del axes
  return lax.cond(x[0] > 2., lambda w: w * x.sum(),
                  lambda w: w * x[1] * 3. / x[1], w)


def nested(w, x, axes):
  return lax.cond(x[0] > 2., lambda w: by_hand(w, x, axes),
                  lambda w: jax.jit(lambda w: by_hand(w, x, axes))(w), w)


PROGRAMS = {f.__name__: f for f in (by_hand, implied, nested)}


def by_rule(f):
  """A function whose derivative is ``f``, linear in its first argument."""
  @jax.custom_jvp
  def g(w, x):
    return jnp.sin(w) * x[0] * 0.
  g.defjvp(lambda p, t: (g(*p), f(t[0], p[1])))
  return g


def staged(f, w, x):
  """The transpose of a jaxpr, which nothing has differentiated."""
  jaxpr = jax.make_jaxpr(lambda w: f(w, x))(w)
  return ad.backward_pass(
      getattr(jaxpr, 'jaxpr', jaxpr), False, jaxpr.consts,
      [ad.UndefinedPrimal(w.aval)], [x[0] * 0. + 1.])[0]


# How a function of w and x, linear in w, comes to be transposed.
WAYS = {
    'backward_pass': staged,
    'backward_pass_of_jit': lambda f, w, x: staged(jax.jit(f), w, x),
    'linear_transpose': lambda f, w, x: jax.linear_transpose(
        lambda w: f(w, x), w)(x[0] * 0. + 1.)[0],
    'linear_transpose_of_jit': lambda f, w, x: jax.linear_transpose(
        jax.jit(lambda w: f(w, x)), w)(x[0] * 0. + 1.)[0],
    'gradient': lambda f, w, x: jax.grad(lambda w: lax.psum(
        f(w, x), tuple(axes_of(x))))(w),
    'gradient_of_jit': lambda f, w, x: jax.grad(jax.jit(lambda w: lax.psum(
        f(w, x), tuple(axes_of(x)))))(w),
    'rule': lambda f, w, x: jax.grad(lambda w: lax.psum(
        by_rule(f)(w, x), tuple(axes_of(x))))(w),
    'rule_in_jit': lambda f, w, x: jax.grad(jax.jit(lambda w: lax.psum(
        by_rule(f)(w, x), tuple(axes_of(x)))))(w),
    'rule_in_remat': lambda f, w, x: jax.grad(jax.checkpoint(
        lambda w: lax.psum(by_rule(f)(w, x), tuple(axes_of(x)))))(w),
    'rule_in_scan': lambda f, w, x: jax.grad(lambda w: lax.psum(lax.scan(
        lambda c, a: (c + a * by_rule(f)(w, x), None), x[0] * 0.,
        jnp.array([.25, .75]))[0], tuple(axes_of(x))))(w),
}
if jax.__version_info__ == (0, 7, 0):
  # That release alone asserts, mended or not, that what a branch of the rule
  # keeps has the type of the branch.
  del WAYS['rule_in_jit'], WAYS['rule_in_scan']
elif jax.__version_info__ == (0, 8, 0):
  del WAYS['rule_in_scan']  # right, but pristine asserts without a word


def sums_in_branches(jaxpr):
  """The reductions over devices that are in a branch."""
  return [e for eqn in equations(jaxpr) if eqn.primitive.name == 'cond'
          for sub in core.jaxprs_in_params(eqn.params)
          for e in equations(sub) if 'psum' in e.primitive.name]


class StagedBranchesTest(MeshTestCase):

  def gradient(self, way, name, sizes):
    """The gradient, and the program that gives it, by w in a shard_map."""
    mesh = make_mesh(*SIZES[sizes])
    axes = mesh.axis_names if sizes == 'square' else ('x',)
    f = lambda w, x: PROGRAMS[name](w, x, axes)
    x = np.arange(1., 9., dtype=np.float32)
    run = jax.jit(shard_map(lambda w, x: WAYS[way](f, w, x), mesh=mesh,
                            in_specs=(P(), P(axes)), out_specs=P()))
    parts = x.reshape(np.prod([mesh.shape[a] for a in axes]), -1)
    want = sum(p.sum() if p[0] > 2. else 3. for p in parts)
    return run, x, np.float32(want)

  def check(self, way, name, sizes):
    run, x, want = self.gradient(way, name, sizes)
    traced = run.trace(W, x)  # a sum in a branch can wait for ever
    if sums_in_branches(traced.jaxpr) and sizes != 'alone':
      self.fail('a sum over devices is in a branch that not all take')
    self.assertAllClose(traced.lower().compile()(W, x), want)

  @red(SUM_IN_BRANCH)
  @parameterized.product(way=sorted(WAYS), name=sorted(PROGRAMS))
  def test_line(self, way, name):
    self.check(way, name, 'line')

  @red(SUM_IN_BRANCH)
  @parameterized.product(way=sorted(WAYS), name=['by_hand', 'implied'])
  def test_square(self, way, name):
    self.check(way, name, 'square')

  @parameterized.parameters(*sorted(WAYS))
  def test_guard_alone(self, way):
    self.check(way, 'by_hand', 'alone')

  @red(SUM_IN_BRANCH)
  @parameterized.parameters('line', 'square')
  def test_transposed_from_outside(self, sizes):
    mesh = make_mesh(*SIZES[sizes])
    axes = mesh.axis_names
    run = jax.jit(shard_map(lambda w, x: by_hand(w, x, axes)[None], mesh=mesh,
                            in_specs=(P(), P(axes)), out_specs=P(axes)))
    x = np.arange(1., 9., dtype=np.float32)
    back = jax.jit(lambda ct: jax.linear_transpose(
        lambda w: run(w, x), W)(ct)[0])
    traced = back.trace(np.arange(4., dtype=np.float32))
    if sums_in_branches(traced.jaxpr):
      self.fail('a sum over devices is in a branch that not all take')
    want = sum(n * (p.sum() if p[0] > 2. else 3.)
               for n, p in enumerate(x.reshape(4, 2)))
    got = traced.lower().compile()(np.arange(4., dtype=np.float32))
    self.assertAllClose(got, np.float32(want))

  @parameterized.parameters(*sorted(PROGRAMS))
  def test_guard_value_and_types_as_traced(self, name):
    mesh = make_mesh(2, 2)
    run = jax.jit(shard_map(
        lambda w, x: PROGRAMS[name](w, x, ('x',))[None], mesh=mesh,
        in_specs=(P(), P('x')), out_specs=P('x')))
    x = np.arange(1., 5., dtype=np.float32)
    traced = run.trace(W, x)
    conds = [e for e in equations(traced.jaxpr) if e.primitive.name == 'cond']
    self.assertNotEmpty(conds)
    for eqn in conds:  # nothing was cast outside of it
      self.assertIn(frozenset(), [axes_of(v.aval) for v in eqn.invars])
    self.assertAllClose(run(W, x), W * np.float32([3., 7.]))
