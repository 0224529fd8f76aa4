# SPDX-License-Identifier: Apache-2.0
"""jax.experimental.jet inside shard_map.

The oracle is jet of the plain function on each device's block, on one device,
or, for collectives, jet of what they come to on the whole array.
"""
import functools

from absl.testing import parameterized
import jax
from jax import lax
from jax._src import config
from jax._src import core
from jax._src import test_util as jtu
from jax.experimental import jet
import jax.numpy as jnp
import numpy as np
from testing.red import red
from testing.sharding import UNCHECKED, shard_map
import varying.testing.common as smt
from varying.testing.common import P

config.parse_flags_with_absl()

# What pristine JAX says.
NO_JET_RULE = r'^KeyError: .*, raised by jet\.process_primitive'

X = np.arange(1., 9., dtype=np.float32)
W = np.float32(2.)


def trigonometric(x, w):
  return jnp.sin(x * w) + jnp.cos(w) + jnp.arctan2(x, w)


def powers(x, w):
  return x ** w + x ** 3 + lax.rsqrt(x * w) + jnp.exp(w) * jnp.log(x)


def divided(x, w):
  return x / w - w / x + lax.erf(x / 9) + lax.erf_inv(w / 4)


def selected(x, w):
  # 0.6.0's rules for these take operands of the same shape only.
  y = jnp.broadcast_to(w, x.shape)
  return jnp.maximum(x, y) + jnp.where(x > 3, x, y) + jnp.minimum(y, x)


def reduced(x, w):
  return jnp.max(x * w) + jnp.sum(x) * jnp.max(jnp.stack([w, 2 * w])) + x


def products(x, w):
  return jnp.tanh(jnp.outer(x, x) * w) @ x + jnp.dot(x, jnp.stack([w, w]))


def indexed(x, w):
  if jax.__version_info__ != (0, 7, 0):  # whose jet has no rule for it
    x = x.at[0].add(w)
  return x[jnp.array([1, 0])] * w + lax.dynamic_slice(x, (jnp.int32(w) - 2,),
                                                     (2,))


def jitted(x, w):
  return jax.jit(lambda x, w: jax.nn.sigmoid(x * w))(x, w) + jax.jit(jnp.sin)(w)


def vmapped(x, w):
  return jax.vmap(lambda v: jnp.sqrt(v * w))(x)


def constant(x, w):
  return 0. * x + 3. + w * 0.


FUNCTIONS = [trigonometric, powers, divided, selected, reduced, products,
             indexed, jitted, vmapped, constant]

F32 = jnp.float32
RING = [(n, (n + 1) % 4) for n in range(4)]
# Of a device's block, and what it comes to on the whole array.
COLLECTIVES = {
    'psum': (lambda x, w: lax.psum(x * x * w, 'x'),
             lambda x, w: jnp.sum((x * x * w).reshape(4, 2), 0)),
    'psum_of_a_shared_value': (lambda x, w: lax.psum(w * w, 'x') + 0 * x,
                               lambda x, w: 4 * w * w + 0 * x),
    'pmean': (lambda x, w: lax.pmean(jnp.sin(x) * w, 'x'),
              lambda x, w: jnp.mean((jnp.sin(x) * w).reshape(4, 2), 0)),
    'ppermute': (lambda x, w: lax.ppermute(jnp.sin(x * w), 'x', RING),
                 lambda x, w: jnp.concatenate([jnp.sin(x * w)[6:],
                                               jnp.sin(x * w)[:6]])),
    'all_gather': (
        lambda x, w: jnp.sum(lax.all_gather(x * x, 'x', tiled=True)) * w,
        lambda x, w: jnp.sum(x * x) * w),
    'all_to_all': (
        lambda x, w: jnp.sum(lax.all_to_all(
            jnp.broadcast_to(x * x * w, (4, 2)), 'x', 0, 0)),
        lambda x, w: jnp.sum(x * x * w)),
    'psum_scatter': (
        lambda x, w: lax.psum_scatter(jnp.concatenate([x * x * w] * 4), 'x',
                                      tiled=True),
        lambda x, w: jnp.sum((x * x * w).reshape(4, 2), 0)),
    'axis_index': (lambda x, w: x * x * (w + F32(lax.axis_index('x'))),
                   lambda x, w: x * x * (w + jnp.repeat(jnp.arange(4.), 2))),
}
if jax.__version_info__ >= (0, 10):  # 0.8 and 0.9 have `to`, but not this one
  COLLECTIVES['all_gather_replicated'] = (
      lambda x, w: jnp.sum(lax.all_gather(
          x * x, 'x', tiled=True, to='invarying')) * w,
      lambda x, w: jnp.sum(x * x) * w)


def series_of(f, *args):
  """The value of ``f`` and the terms that follow, for some direction."""
  series = tuple([0 * a + 1., 0 * a + .5] for a in args)
  return jax.tree.leaves(jet.jet(f, args, series))


def alone(f, *args):
  """``f`` on one device; jax's own jaxprs aren't checked."""
  with jax.enable_checks(False):
    return jax.jit(f)(*args)


class JetTest(jtu.JaxTestCase):

  def compare(self, got, want, tol=1e-4):
    self.assertLen(got, len(want))
    for a, b in zip(got, want):
      np.testing.assert_allclose(a, np.resize(b, np.shape(a)), rtol=tol,
                                 atol=tol)

  @red(NO_JET_RULE)
  @parameterized.parameters(*FUNCTIONS)
  def test_values(self, f):
    self.check_values(f, '2d', True)

  @red(NO_JET_RULE)
  def test_values_eager(self):
    self.check_values(jitted, '1d', False)

  def check_values(self, f, mesh, jit):
    spec = P(('x', 'y')[:len(smt.MESHES[mesh])])
    run = functools.partial(series_of, f)
    g = shard_map(run, out_specs=spec, in_specs=(spec, P()),
                  mesh=smt.make_mesh(*smt.MESHES[mesh]))
    got = smt.maybe_jit(jit)(g)(X, W)
    want = alone(jax.vmap(run, (0, None)), X.reshape(4, 2), W)
    self.compare(got, [np.concatenate(y) for y in want])

  @red(NO_JET_RULE)
  @parameterized.parameters(*COLLECTIVES)
  def test_collectives(self, kind):
    f, whole = COLLECTIVES[kind]
    g = shard_map(lambda x, w: [y + 0 * x for y in series_of(f, x, w)],
                  mesh=smt.make_mesh(4), in_specs=(P('x'), P()),
                  out_specs=P('x'))
    self.compare(jax.jit(g)(X, W),
                 alone(functools.partial(series_of, whole), X, W))

  @red(NO_JET_RULE)
  @parameterized.parameters('psum', 'pmean', 'all_gather')
  def test_collectives_without_the_check(self, kind):
    f, whole = COLLECTIVES[kind]
    g = shard_map(functools.partial(series_of, f), mesh=smt.make_mesh(4),
                  in_specs=(P('x'), P()), out_specs=P(), **UNCHECKED)
    self.compare(jax.jit(g)(X, W),
                 alone(functools.partial(series_of, whole), X, W))

  def test_a_jitted_function_is_called_once(self):
    def terms(w, x):
      return jet.jet(jax.jit(jnp.sin), (w,), ([x],))[1]
    jaxpr = jax.make_jaxpr(shard_map(
        terms, mesh=smt.make_mesh(4), in_specs=(P(), P('x')),
        out_specs=[P('x')]))(X[:2], X)
    inside, = core.jaxprs_in_params(jaxpr.eqns[0].params)
    self.assertLen([eqn for eqn in inside.eqns
                    if list(core.jaxprs_in_params(eqn.params))], 1)

  def test_what_is_replicated_stays_so(self):
    f = functools.partial(series_of, lambda w: jnp.sin(w) * w + w ** 3)
    g = shard_map(f, mesh=smt.make_mesh(4), in_specs=P(), out_specs=P())
    self.compare(jax.jit(g)(W), alone(f, W))

  @red('^ValueError: Primitive mul requires varying manual axes to match, '
       r'but got \[frozenset\(\),')
  def test_terms_that_vary_more_than_the_primal(self):
    # The primal may be claimed to be replicated, the terms may not.
    def f(w):
      return jnp.sin(w) * w
    def both(w, x):
      return jet.jet(f, (w,), ([x[0], 0. * w],))
    def run(out_specs):
      return jax.jit(shard_map(
          lambda w, x: jax.tree.map(jnp.atleast_1d, both(w, x)),
          mesh=smt.make_mesh(4), in_specs=(P(), P('x')),
          out_specs=out_specs))(W, X[:4])
    got, terms = run((P(), P('x')))
    value, want = alone(jax.vmap(both, (None, 0)), W, X[:4, None])
    self.compare([got], [value[0]])
    self.compare(terms, want)
    with self.assertRaisesRegex(ValueError, 'require replication'):
      run(P())

  @red(NO_JET_RULE)
  def test_gradient(self):
    def loss(run):
      return jax.grad(lambda x, w: sum(jnp.sum(y) for y in run(x, w)), (0, 1))
    run = functools.partial(series_of, jitted)
    g = shard_map(run, mesh=smt.make_mesh(4), in_specs=(P('x'), P()),
                  out_specs=P('x'))
    got = jax.jit(loss(g))(X, W)
    want = alone(jax.vmap(loss(run), (0, None)), X.reshape(4, 2), W)
    self.compare([got[0]], [np.concatenate(want[0])])
    self.compare([got[1]], [sum(want[1])], 1e-3)
