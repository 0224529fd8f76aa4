# SPDX-License-Identifier: Apache-2.0
"""Rules of custom_vjp3 and custom_jvp3 in branches and loops (jax#28193).

Compared with the plain function of each device's block; gradients with respect
to the parameter that devices share, with the sum of theirs.
"""
from absl.testing import parameterized
import jax
from jax import lax
from jax._src import config as jax_config
from jax._src import core
from jax._src import test_util as jtu
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
from testing.red import red
from testing.sharding import shard_map
from varying.testing.common import equations
from varying.testing.common import make_mesh
from varying.testing.common import run_rows

jax.config.parse_flags_with_absl()

X = np.array([[.3, .4, .6], [.9, .1, .5], [.7, .2, .4], [.2, .8, .3]],
             np.float32)
W = np.float32(0.7)


def plain(x, w):
  return jnp.sum(jnp.sin(x)) * w


def with_vjp(**options):
  f = jax.custom_vjp(plain)
  value = lambda x: getattr(x, 'value', x)  # with symbolic zeros
  f.defvjp(lambda x, w: (f(value(x), value(w)), (value(x), value(w))),
           lambda r, g: (g * r[1] * jnp.cos(r[0]),
                         g * jnp.sum(jnp.sin(r[0]))), **options)
  return f


def with_constant_argument(n, x, w):
  f = jax.custom_vjp(lambda n, x, w: n * plain(x, w), nondiff_argnums=(0,))
  f.defvjp(lambda n, x, w: (f(n, x, w), (x, w)),
           lambda n, r, g: (n * g * r[1] * jnp.cos(r[0]),
                            n * g * jnp.sum(jnp.sin(r[0]))))
  return f(n, x, w) / n


def with_jvp():
  f = jax.custom_jvp(plain)
  f.defjvp(lambda p, t: (f(*p), jnp.sum(jnp.cos(p[0]) * p[1] * t[0])
                         + jnp.sum(jnp.sin(p[0])) * t[1]))
  return f


FUNCTIONS = {
    'vjp': with_vjp,
    'vjp_symbolic_zeros': lambda: with_vjp(symbolic_zeros=True),
    'vjp_constant': lambda: lambda x, w: with_constant_argument(2., x, w),
    'jvp': with_jvp,
}
WITHIN = {
    'branch': lambda f, x, w: lax.cond(
        x[0] > .5, lambda: f(x, w), lambda: jnp.sum(x)),
    'switch': lambda f, x, w: lax.switch(
        (x[0] * 3).astype(int), [lambda x, w: w, f, lambda x, w: jnp.sum(x)],
        x, w),
    'scan_in_branch': lambda f, x, w: lax.cond(
        x[0] > .5, lambda: lax.scan(
            lambda c, a: (c + f(a * x, w), None), 0., x)[0],
        lambda: jnp.sum(x)),
    'remat_of_branch': lambda f, x, w: jax.checkpoint(
        lambda x, w: lax.cond(x[0] > .5, lambda: f(x, w), lambda: w))(x, w),
}


def communicates_in_branch(jaxpr, inside=False):
  """True if a branch has a sum over devices, which can wait forever."""
  for eqn in jaxpr.eqns:
    if inside and eqn.primitive.name.startswith('psum'):
      return True
    for sub in core.jaxprs_in_params(eqn.params):
      if communicates_in_branch(getattr(sub, 'jaxpr', sub),
                                inside or eqn.primitive.name == 'cond'):
        return True
  return False


def operations_in(jaxpr):
  return [eqn.params['_prim'] for eqn in equations(jaxpr)
          if eqn.primitive.name == 'call_hi_primitive']


def types_in(rule):
  """The types that a rule was made for."""
  for cell in rule.__closure__:
    held = getattr(cell.cell_contents, 'out_avals', cell.cell_contents)
    yield from (x for x in jax.tree.leaves(held)
                if isinstance(x, core.ShapedArray))


@red('^TypeError: .*must have equal ')
class HijaxRulesTest(jtu.JaxTestCase):

  def check(self, gradients, want, jit):
    """Gradients by what varies, and by what is shared: these are summed."""
    def stacked(x, w):
      gx, gw = gradients(x, w)
      return gx[None], gw
    def run(x, w):
      return run_rows(stacked, ('2d', jit), x, shared=w,
                      out=(P(('x', 'y')), P()))
    jaxpr = jax.make_jaxpr(run)(X, W).jaxpr
    self.assertFalse(communicates_in_branch(jaxpr), 'a sum is in a branch')
    gx, gw = run(X, W)
    np.testing.assert_allclose(gx, [g for g, _ in want], rtol=1e-5)
    np.testing.assert_allclose(gw, sum(g for _, g in want), rtol=1e-5)

  @red('^AssertionError: True is not false : a sum is in a branch',
       cases=['jvp_branch'])
  @red("^ValueError: .*doesn't match expected type", cases={'within': 'branch'})
  @parameterized.named_parameters(
      dict(testcase_name=f'_{name}_{within}', name=name, within=within)
      for name in FUNCTIONS for within in WITHIN)
  def test_gradients(self, name, within):
    def gradients(make):
      return jax.grad(lambda x, w: WITHIN[within](make(), x, w), (0, 1))
    alone = jax.jit(gradients(lambda: plain))
    want = [alone(x, W) for x in X]
    with jax_config.custom_vjp3(True), jax_config.custom_jvp3(True):
      for jit in (True, False) if within == 'branch' else (True,):
        self.check(gradients(FUNCTIONS[name]), want, jit)

  @parameterized.parameters(
      ('vjp', ['fwd', 'bwd']), ('jvp', ['jvp_rule']))
  def test_loop_is_traced_once_and_rules_made_for_its_types(self, name, rules):
    f, calls = FUNCTIONS[name](), []
    def mapped(x):
      def body(c, _):
        calls.append(1)
        return f(c, c[0]) + x, None
      return lax.scan(body, jnp.ones(3), None, length=2)[0]
    with jax_config.custom_vjp3(True), jax_config.custom_jvp3(True):
      jaxpr = jax.make_jaxpr(shard_map(
          mapped, mesh=make_mesh(4), in_specs=P('x'), out_specs=P('x')))(
              jnp.ones(12))
    self.assertLen(calls, 1)
    operation, = operations_in(jaxpr.jaxpr)
    for rule in rules:
      held = [a.str_short() for a in types_in(getattr(operation, rule))]
      self.assertNotEmpty(held)
      self.assertEmpty([a for a in held if not a.endswith('{V:x}')])
