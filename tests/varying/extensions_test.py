# SPDX-License-Identifier: Apache-2.0
"""Primitives that other libraries define, inside shard_map (issue 3)."""
import functools
import sys

from absl.testing import parameterized
import jax
from jax import lax
from jax._src import test_util as jtu
from jax._src import util
from jax.extend import core
from jax.interpreters import ad
from jax.interpreters import batching
from jax.interpreters import mlir
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
NO_RULE = '^NotImplementedError: No replication rule for'
NOT_REFUSED = '^AssertionError: ValueError not raised'
WRONG_VALUES = (r'^AssertionError: \s*Not equal to tolerance .*ACTUAL: '
                r'array\(\[3\.878\d*, 3\.999\d*, ')

X = np.random.RandomState(0).uniform(0.5, 2., (4, 6)).astype(np.float32)
W = np.random.RandomState(1).uniform(0.5, 2., 6).astype(np.float32)
TYPED = jax.__version_info__ >= (0, 6)  # 0.5.3 has no varying axes in types
WHERE = [('1d', True), ('2d', True), ('1d', False)]


def primitive(name, f, rule, how='def_abstract_eval'):
  """A primitive as a library defines it, that computes ``f``."""
  prim = core.Primitive(name)
  prim.def_impl(jax.jit(f))
  getattr(prim, how)(rule)
  mlir.register_lowering(prim, mlir.lower_fun(f, multiple_results=False))
  return prim


def flat(x, *_):
  """The type of ``x``, made of what a library's author thinks of."""
  return jax.core.ShapedArray(x.shape, x.dtype)


any_p = primitive('any_of_all', jnp.any,
                  lambda x: jax.core.ShapedArray((), np.dtype(bool)))
add_p = primitive('add_two', lambda x, y: x + y, functools.partial(flat))
noted_p = primitive(
    'add_and_note', lambda x, y: x + y, lambda x, y: (flat(x), set()),
    'def_effectful_abstract_eval')
# From 0.10 on; its rule doesn't name the effect.
generic = [primitive('add_with_effect', lambda x, y: x + y, flat, how)
           for how in ('def_effectful_abstract_eval2',)
           if hasattr(core.Primitive, how)]
product_p = primitive('multiply_two', lambda x, y: x * y, flat)
ad.defbilinear(product_p, lambda ct, x, y: product_p.bind(ct, y),
               lambda ct, x, y: product_p.bind(x, ct))


def names_of_ours():
  """The local names of all that wraps primitives, as parameters."""
  names = {'prim', 'bind', 'rule', 'args', 'params', 'mesh', 'axes', 'ins'}

  def look(code):
    names.update(code.co_varnames, code.co_freevars)
    for const in code.co_consts:
      if hasattr(const, 'co_varnames'):
        look(const)
  ours = [m for n, m in sorted(sys.modules.items())
          if n.startswith(('jax._src.varying.', 'jax._src.replication.'))]
  for module in ours:
    for f in vars(module).values():
      if hasattr(f, '__code__'):
        look(f.__code__)
  # Parameters with the names that upstream's own functions on the way have.
  upstream = set(
      'self _prim _nonzeros primitive jvprules primals tangents lhs_rule '
      'rhs_rule dims axis_data cotangent x y ctx eqn eqn_ctx avals_in '
      'avals_out cache_key inline description platform_rules default_rule '
      'lowering_rule effects ordered_effects jaxpr call_jaxpr g'.split())
  if hasattr(util, 'MultiWeakRefCacheKey'):
    upstream.add('key')
  if jax.__version_info__ == (0, 7, 0):
    upstream.add('_')  # its caches' own, of types too
  return {n: 0 for n in sorted(names - upstream) if n.isidentifier()}


def named_rule(x, y, /, **_):
  return flat(x)


named_p = core.Primitive('named_product')
named_p.def_impl(lambda x, y, /, **_: jnp.multiply(x, y))
named_p.def_abstract_eval(named_rule)
mlir.register_lowering(named_p, mlir.lower_fun(
    lambda x, y, /, **_: x * y, multiple_results=False))
ad.defbilinear(named_p, lambda ct, x, y, /, **ps: named_p.bind(ct, y, **ps),
               lambda ct, x, y, /, **ps: named_p.bind(x, ct, **ps))


def named_batcher(args, dims, /, **params):
  size, = {a.shape[d] for a, d in zip(args, dims) if d is not None}
  args = [jnp.broadcast_to(a, (size, *a.shape)) if d is None
          else jnp.moveaxis(a, d, 0) for a, d in zip(args, dims)]
  return named_p.bind(*args, **params), 0


batching.primitive_batchers[named_p] = named_batcher


# JAX's own primitives have parameters that these lack.
NAMES = ('scan', 'cond', 'while', 'custom_linear_solve', 'shard_map', 'jit',
         'custom_vjp_call', 'linear_call', 'custom_lin', 'call_hi_primitive',
         'pallas_call', 'psum', 'axis_index', 'agreed')
named = {}


def named_as_ours(name):
  """A product that a library named as JAX has named something else."""
  if name not in named:
    # Its operands vary alike, and the result as they do.
    prim = named[name] = primitive(name, lambda x, y: x * y, lambda x, _: x)
    ad.defbilinear(prim, lambda ct, x, y: prim.bind(ct, y),
                   lambda ct, x, y: prim.bind(x, ct))
  return named[name]


class ExtensionsTest(jtu.JaxTestCase):

  @red(NO_RULE, bases='<0.6')
  @red(NOT_REFUSED, bases='>=0.6')
  @parameterized.product(jit=[True, False], mesh=[(4,), (2, 2)])
  def test_claim_of_replication_is_refused(self, jit, mesh):
    f = shard_map(lambda x: any_p.bind(x > 1.9), mesh=make_mesh(*mesh),
                  in_specs=P('x'), out_specs=P())
    with self.assertRaisesRegex(ValueError, 'replicat'):
      jax.block_until_ready(maybe_jit(jit)(f)(X))

  @red(r'^AssertionError: Lists differ: \[frozenset\(\), frozenset\(\), '
       r'frozenset\(\), frozenset\(\), frozenset\(\)\] !=', bases='>=0.6')
  @parameterized.product(prim=[add_p, noted_p, product_p, *generic])
  def test_varies_as_the_operands(self, prim):
    if not TYPED:
      self.skipTest('looks at the types of tracers')
    seen = []

    def body(x, y, w):
      seen.extend(axes_of(prim.bind(a, b)) for a, b in [
          (x, x), (w, x), (x, w), (x, y), (w, w)])
      return ()

    jax.make_jaxpr(shard_map(
        body, mesh=make_mesh(2, 2), in_specs=(P('x'), P('y'), P()),
        out_specs=()))(X, X, X[:2])
    self.assertEqual(seen, [{'x'}, {'x'}, {'x'}, {'x', 'y'}, set()])

  @red(NO_RULE, bases='<0.6')
  @red(WRONG_VALUES, bases='>=0.6')
  @parameterized.product(where=WHERE)
  def test_gradient_of_shared_operand(self, where):
    f = lambda x, w: product_p.bind(w, jnp.sin(x))
    got = jax.grad(lambda w: jnp.sum(run_rows(f, where, X, shared=w)))(W)
    np.testing.assert_allclose(got, np.sin(X).sum(0), rtol=1e-5)

  @red(NO_RULE, bases='<0.6')
  @parameterized.product(where=WHERE)
  def test_what_only_a_derivative_binds(self, where):
    value = primitive('sine', jnp.sin, flat)  # new ones, that no rule is known
    slope = primitive('sine_slope', lambda x, t: jnp.cos(x) * t, flat)
    ad.primitive_jvps[value] = lambda primals, tangents: (
        value.bind(*primals), slope.bind(*primals, *tangents))
    f = lambda x: run_rows(lambda x: value.bind(x), where, x)
    got, rate = jax.jvp(f, (X,), (X,))
    np.testing.assert_allclose(got, np.sin(X), rtol=1e-5)
    np.testing.assert_allclose(rate, np.cos(X) * X, rtol=1e-5)

  @red(NO_RULE, bases='<0.6')
  @red(NOT_REFUSED, bases='>=0.6')
  @parameterized.product(where=WHERE)
  def test_predicate(self, where):
    # What each device decides by its own numbers, though it computes with w.
    def f(x, w):
      y = lax.while_loop(
          lambda c: any_p.bind(c * x < 9.), lambda c: c * 2., w[2])
      return lax.cond(any_p.bind(x > 1.9), lambda: w[0], lambda: w[1]) * y
    with jax.disable_jit():
      want = np.stack([f(x, W) for x in X])
    np.testing.assert_allclose(run_rows(f, where, X, shared=W), want, rtol=1e-6)
    with self.assertRaisesRegex(ValueError, 'replicat'):
      jax.block_until_ready(run_rows(f, where, X, shared=W, out=P()))

  @red(NO_RULE, bases='<0.6')
  @parameterized.product(where=WHERE)
  def test_shared_operands_stay_shared(self, where):
    f = lambda x, w: product_p.bind(w, add_p.bind(w, w))
    got = run_rows(f, where, X, shared=W, out=P())
    np.testing.assert_allclose(got, 2. * W * W, rtol=1e-5)

  @red("^TypeError: _rule_missing.. got multiple values for argument 'prim'",
       bases='<0.6')
  @red(WRONG_VALUES, bases='>=0.6')
  @parameterized.product(where=WHERE)
  def test_parameters_of_any_name(self, where):
    names = names_of_ours()
    f = lambda x, w: named_p.bind(w, jnp.sin(x), **names)
    got = jax.grad(lambda w: jnp.sum(run_rows(f, where, X, shared=w)))(W)
    np.testing.assert_allclose(got, np.sin(X).sum(0), rtol=1e-5)

  def test_parameters_of_any_name_outside(self):
    names = names_of_ours()
    f = lambda x, w: named_p.bind(w, x, **names)
    eqn, = jax.make_jaxpr(f)(W, W).eqns
    self.assertEqual(eqn.params, names)
    np.testing.assert_allclose(f(W, W), W * W)
    g = jax.vmap(jax.grad(lambda x, w: jnp.sum(f(x, w))))
    np.testing.assert_allclose(jax.jit(g)(X, X + 1), X + 1)

  @red(NO_RULE, bases='<0.6')
  @parameterized.product(name=NAMES)
  def test_named_as_a_primitive_of_jax(self, name):
    prod = named_as_ours(name).bind

    def f(x):
      def body(c):
        n, y = c
        z = lax.cond(y[0] > 2, lambda: prod(y, x), lambda: prod(x, x))
        y, _ = lax.scan(lambda y, _: (prod(y, x), None), z, None, length=2)
        return n + 1., jax.jit(prod)(y, x) / 9

      stop = lax.all_gather(x, 'x').max() + 2.
      go_on = lambda c: prod(c[0], stop) < prod(stop, stop)
      n = x[0] * 0.
      return lax.while_loop(go_on, body, (n, x))[1]

    def by_hand(x):
      y, n, stop = x, 0., X.max() + 2
      while n * stop < stop * stop:
        y, n = np.where(y[0] > 2, y, x) * x * x * x * x / 9, n + 1
      return y
    got = run_rows(f, ('1d', True), X)
    np.testing.assert_allclose(got, [by_hand(x) for x in X], rtol=1e-4)

  @red(NO_RULE, bases='<0.6')
  @parameterized.product(name=NAMES)
  def test_gradient_of_one_named_as_ours(self, name):
    prod = named_as_ours(name).bind
    f = lambda x: lax.scan(
        lambda c, _: (prod(c, x), prod(c, c)), x, None, length=2)[0]
    loss = jax.checkpoint(lambda x: jnp.sum(run_rows(f, ('1d', True), x)))
    got = jax.jit(jax.grad(loss))(X)
    np.testing.assert_allclose(got, 3 * X * X, rtol=1e-5)

  @red(NO_RULE, bases='<0.6')
  # What two loops make of their carries.
  @red('^TypeError: scan body function carry input and carry output must '
       'have equal types', bases='>=0.6')
  @parameterized.product(name=NAMES)
  def test_named_as_ours_typed_again(self, name):
    # Its equation was traced with operands that the loop makes vary.
    prod = named_as_ours(name).bind

    def f(x, w):
      def body(c, _):
        d = lax.cond(prod(c, c)[0] > 2., lambda: prod(c, c), lambda: c)
        return prod(d, d) * x, None
      return lax.scan(body, w, None, length=2)[0]

    def by_hand(x):
      c = W
      for _ in range(2):
        d = c * c if c[0] * c[0] > 2 else c
        c = d * d * x
      return c
    got = run_rows(f, ('1d', True), X, shared=W)
    np.testing.assert_allclose(got, [by_hand(x) for x in X], rtol=1e-4)

  def test_outside_of_shard_map(self):
    eqn, = jax.make_jaxpr(product_p.bind)(W, W).eqns
    self.assertIs(eqn.primitive, product_p)
    np.testing.assert_allclose(jax.jit(product_p.bind)(W, W), W * W)
