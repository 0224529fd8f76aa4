# SPDX-License-Identifier: Apache-2.0
"""Gradients of what is linear, in loops whose carry comes to vary.

The carry is a term, which each device multiplies by a number of its own, and a
parameter, the same on all, which descends. The loss is linear in it, or in its
square, beside the term, so that the gradient doesn't hold the term. The oracle
is the descent in NumPy, along the sum of all devices' gradients.
"""
from absl.testing import parameterized
import jax
from jax import lax
from jax._src import test_util as jtu
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
from testing.red import red
from testing.sharding import shard_map
from varying.testing.common import cast
from varying.testing.common import make_mesh
from varying.testing.common import maybe_jit

jax.config.parse_flags_with_absl()

# What pristine JAX says.
UNEQUAL_TYPES = '^TypeError: .* must have equal (output )?types'
OTHER_COTANGENT = ('^ValueError: unexpected JAX type .* for argument to vjp '
                   'function')
UNLIKE_OPERANDS = ('^ValueError: Primitive mul requires varying manual axes '
                   'to match, but got')

SIZES = {'1d': (4,), '2d': (2, 2), 'one': (1,), 'one_of_two': (4, 1)}
FACTORS = np.arange(1., 5.).astype(np.float32)


@jax.custom_vjp
def product(p, s):
  return p * s


product.defvjp(lambda p, s: (p * s, s), lambda s, _: (s, s))


def pulled(p, s):
  """By a cotangent that varies as the loss does."""
  loss, pull = jax.vjp(lambda p: p + s, p)
  return pull(jnp.ones_like(loss) + 0 * s)[0]


def transposed(p, s):
  loss, push = jax.linearize(lambda p: p + s, p)
  return jax.linear_transpose(push, p)(jnp.ones_like(loss) + 0 * s)[0]


def plus(p, s):
  return jax.grad(lambda p: p + s)(p)


# Has a function's equations copied as it is traced.
INLINE = jax.Inline.JAX_EARLY if hasattr(jax, 'Inline') else True

# Each with the gradient by p.
GRADIENTS = dict(
    plus=(plus, lambda p, s: 1.),
    thrice=(lambda p, s: jax.grad(lambda p: 3 * p + s)(p), lambda p, s: 3.),
    square=(lambda p, s: jax.grad(lambda p: p ** 2 + s)(p),
            lambda p, s: 2 * p),
    value_and_grad=(lambda p, s: jax.value_and_grad(lambda p: p + s)(p)[1],
                    lambda p, s: 1.),
    vjp=(pulled, lambda p, s: 1.),
    linear_transpose=(transposed, lambda p, s: 1.),
    jit=(jax.jit(plus), lambda p, s: 1.),
    jit_of_a_closure=(lambda p, s: jax.jit(jax.grad(lambda p: p + s))(p),
                      lambda p, s: 1.),
    inline=(jax.jit(plus, inline=INLINE), lambda p, s: 1.),
    residual=(lambda p, s: jax.grad(product)(p, s), lambda p, s: s),
    checkpoint=(lambda p, s: jax.grad(jax.checkpoint(lambda p: p + s))(p),
                lambda p, s: 1.),
    vmap=(lambda p, s: jax.vmap(jax.grad(lambda p, k: p + s * k), (None, 0))(
        p, jnp.arange(3.))[1], lambda p, s: 1.),
    second=(lambda p, s: jax.grad(jax.grad(lambda p: p ** 2 + s))(p),
            lambda p, s: 2.),
    cond=(lambda p, s: lax.cond(p > -1e9, lambda p: plus(p, s),
                                lambda p: 2 * plus(p, s), p),
          lambda p, s: 1.),
)
LOOPS = dict(
    scan=lambda step, c, trips=4: lax.scan(
        lambda c, _: (step(c), None), c, None, length=trips)[0],
    fori_loop=lambda step, c, trips=4: lax.fori_loop(
        0, trips, lambda _, c: step(c), c),
    while_loop=lambda step, c, trips=4: lax.while_loop(
        lambda k: k[0] < trips, lambda k: (k[0] + 1, step(k[1])), (0, c))[1],
    nested=lambda step, c: LOOPS['twice'](lambda c: LOOPS['twice'](step, c), c),
    twice=lambda step, c: lax.scan(
        lambda c, _: (step(c), None), c, None, length=2)[0],
    in_a_branch=lambda step, c: lax.scan(
        lambda c, i: (lax.cond(i >= 0, step, lambda c: c, c), None),
        c, jnp.arange(4))[0],
)


def descent(gradient, factor):
  return lambda c: (c[0] * factor + 1, c[1] - .01 * gradient(c[1], c[0]))


def mapped(f, kind, jit=True):
  """Each device's result, by ``f(factor, p, axes)``, and the factors."""
  sizes = SIZES[kind]
  axes = ('x', 'y')[:len(sizes)]
  run = maybe_jit(jit)(shard_map(
      lambda x, p: f(x[0], p, axes)[None], mesh=make_mesh(*sizes),
      in_specs=(P(axes), P()), out_specs=P(axes)))
  x = FACTORS[:np.prod(sizes)]
  return np.asarray(run(x, np.float32(2.))), x


def expected(x, slope, trips=4):
  s, p = np.ones_like(x), 2.
  for _ in range(trips):
    s, p = s * x + 1, p - .01 * np.sum(slope(p, s) + 0 * s)
  return np.full_like(x, p)


# 0.6.0 can't differentiate by a replicated value.
@red(OTHER_COTANGENT, bases='<0.6.1')
@jtu.with_config(jax_enable_checks=False)
class LinearDerivativesTest(jtu.JaxTestCase):

  def check(self, loop, name, kind, jit=True, by_hand=False):
    gradient, slope = GRADIENTS[name]
    def f(x, p, axes):
      s = jnp.ones(())
      s = cast(s, axes) if by_hand else s
      return LOOPS[loop](descent(gradient, x), (s, p))[1]
    got, x = mapped(f, kind, jit)
    np.testing.assert_allclose(got, expected(x, slope), rtol=1e-5)

  @red(UNEQUAL_TYPES)
  @parameterized.product(
      loop=[k for k in LOOPS if k != 'twice'], name=[*GRADIENTS])
  def test_is_summed(self, loop, name):
    self.check(loop, name, '1d')

  @red(UNEQUAL_TYPES)
  @parameterized.product(kind=[*SIZES], name=['plus', 'square', 'residual'])
  def test_on_meshes(self, kind, name):
    self.check('scan', name, kind)

  @red(UNEQUAL_TYPES)
  @parameterized.product(loop=['scan', 'nested'], name=['plus', 'residual'])
  def test_eager(self, loop, name):
    self.check(loop, name, '2d', jit=False)

  @parameterized.product(loop=['scan', 'while_loop'], name=['plus', 'square'])
  def test_of_a_carry_cast_by_hand(self, loop, name):
    self.check(loop, name, '2d', by_hand=True)

  @red(UNEQUAL_TYPES)
  def test_term_that_varies_after_some_trips(self):
    # What is added to comes to vary one trip later than what is added.
    def f(x, p, axes):
      def step(c, _):
        late, s, p = c
        return (late + s, s * x, p - .01 * plus(p, late)), None
      return lax.scan(step, (jnp.ones(()), jnp.ones(()), p), None, length=4)[
          0][2]
    got, x = mapped(f, '2d')
    np.testing.assert_allclose(got, 2 - .01 * 4 * x.size, rtol=1e-5)

  @red(UNEQUAL_TYPES)
  def test_carry_that_does_not_depend_on_it_stays_replicated(self):
    # Summed over devices, what descends is the same on all of them.
    def f(x, p):
      return LOOPS['scan'](descent(plus, x[0]), (jnp.ones(()), p))[1]
    out = jax.jit(shard_map(f, mesh=make_mesh(4), in_specs=(P('x'), P()),
                            out_specs=P()))(FACTORS, np.float32(2.))
    np.testing.assert_allclose(out, 2 - .01 * 16, rtol=1e-5)

  @red(UNEQUAL_TYPES)
  @parameterized.parameters(False, True)
  def test_jitted_loop_inside(self, traced_before):
    # Traced before, it is seen only once the loop around is traced again.
    def f(x, p, axes):
      del axes
      def step(c, _):
        s, late, p = c
        return (s, late + s, p - .01 * plus(p, late)), None
      inner = jax.jit(lambda c: lax.scan(step, c, None, length=2)[0])
      one = jnp.ones(())
      if traced_before:
        inner((one, one, p))
      def outer(c, _):
        s, _, p = inner((c[0], one, c[1]))
        return (s * x, p), None
      return lax.scan(outer, (one, p), None, length=2)[0][1]
    got, x = mapped(f, '2d')
    np.testing.assert_allclose(got, 2 - .01 * 4 * x.size, rtol=1e-5)

  @red(UNEQUAL_TYPES)
  @parameterized.parameters(False, INLINE)
  def test_function_that_was_traced_before(self, inline):
    def f(x, p, axes):
      del axes
      one, gradient = jnp.ones(()), jax.jit(plus, inline=inline)
      gradient(p, one)
      return LOOPS['scan'](descent(gradient, x), (one, p))[1]
    got, x = mapped(f, '1d')
    np.testing.assert_allclose(got, expected(x, lambda p, s: 1.), rtol=1e-5)

  @red(UNEQUAL_TYPES)
  def test_gradient_of_the_loop(self):
    def loss(factor, p):
      def f(x, p):
        p = LOOPS['scan'](
            descent(GRADIENTS['square'][0], x[0]), (jnp.ones(()), p))[1]
        return p ** 2
      return shard_map(f, mesh=make_mesh(4), in_specs=(P('x'), P()),
                       out_specs=P())(factor, p)
    got = jax.jit(jax.grad(loss, 1))(FACTORS, 2.)
    # Four steps of p - .01 * 4 * 2 p.
    np.testing.assert_allclose(got, 2 * 2 * .92 ** 8, rtol=1e-5)

  def test_traced_once_where_nothing_grows(self):
    calls = []
    def f(x, p, axes):
      del axes
      def step(c, _):
        calls.append(1)
        return (c[0] * x, c[1] - plus(c[1], c[0])), None
      return lax.scan(step, (x, p), None, length=2)[0][1]
    mapped(f, '1d')
    self.assertLen(calls, 1)


def each(f):
  """Each device's result, by ``f`` of its own factor."""
  return np.asarray(jax.jit(shard_map(
      lambda x: f(x[0])[None], mesh=make_mesh(4), in_specs=P('x'),
      out_specs=P('x')))(FACTORS))


def two():
  return jnp.full((), 2.)


def scaled_slope(w):
  return w * jax.grad(lambda q: w * q ** 2)(2.)


def slopes(w):
  return lax.scan(lambda c, _: (jax.grad(lambda q: q ** 2 * c)(c), None), w,
                  None, length=2)[0]


JVPS = dict(
    plain=(jax.grad(lambda w: w ** 4), 48.),
    jit=(jax.jit(jax.grad(lambda w: w ** 4)), 48.),
    jit_around=(jax.jit(scaled_slope), 16.),
    checkpoint=(jax.checkpoint(scaled_slope), 16.),
    cond=(lambda w: lax.cond(w > 0, scaled_slope, lambda w: w, w), 16.),
)
# Of functions without communication: what each device has by itself.
BY_PREDICATE = dict(
    fori_loop=lambda x: lax.fori_loop(
        0, x.astype(int), lambda _, s: s + jax.grad(lambda w: w + s)(2.),
        jnp.ones(())),
    index=lambda x: lax.fori_loop(
        0, x.astype(int),
        lambda i, s: s + jax.grad(lambda w: jnp.sin(w) * i)(two()),
        jnp.ones(())),
    while_loop=lambda x: lax.while_loop(
        lambda k: k[0] < x,
        lambda k: (k[0] + 1, k[1] + jax.grad(lambda w: w + k[1])(two())),
        (0., jnp.ones(())))[1],
)


@jtu.with_config(jax_enable_checks=False)
class DirectionsTest(jtu.JaxTestCase):
  """Derivatives of gradients, by tangents of each device's own."""

  @red(UNLIKE_OPERANDS, bases='>=0.8.1', cases=['plain'])
  @parameterized.parameters(*JVPS)
  def test_jvp(self, name):
    f, slope = JVPS[name]
    got = each(lambda x: jax.jvp(f, (two(),), (x,))[1])
    np.testing.assert_allclose(got, slope * FACTORS, rtol=1e-5)

  @red('^ValueError: Scan carry input and output got mismatched varying '
       'manual axes')
  def test_jvp_of_a_loop(self):
    got = each(lambda x: jax.jvp(slopes, (two(),), (x,))[1])
    np.testing.assert_allclose(got, 256 * FACTORS, rtol=1e-5)

  @red('^ValueError: linearized function called on tangent values '
       'inconsistent with the original primal values')
  @parameterized.parameters('plain', 'jit')
  def test_linearize(self, name):
    f, slope = JVPS[name]
    got = each(lambda x: jax.linearize(f, two())[1](x))
    np.testing.assert_allclose(got, slope * FACTORS, rtol=1e-5)


@jtu.with_config(jax_enable_checks=False)
class PredicateTest(jtu.JaxTestCase):

  @parameterized.parameters(*BY_PREDICATE)
  def test_carry_that_varies_by_the_predicate_alone(self, name):
    got = each(BY_PREDICATE[name])
    wanted = [BY_PREDICATE[name](jnp.float32(x)) for x in FACTORS]
    np.testing.assert_allclose(got, wanted, rtol=1e-5)


@jtu.with_config(jax_enable_checks=False)
class BackwardRuleTest(jtu.JaxTestCase):

  @red({
      '<0.6.1': OTHER_COTANGENT,
      '>=0.6.1': '^TypeError: .* must have equal types',
  })
  @parameterized.product(
      loss=[(lambda p, s: p + s, 1.88), (lambda p, s: p * s, 1.38)],
      loop=['scan', 'fori_loop', 'while_loop'])
  def test_loop_in_a_rule(self, loss, loop):
    loss, wanted = loss
    def f(x):
      g = jax.custom_vjp(lambda w: w * 1.)
      def bwd(_, ct):
        step = descent(lambda p, s: jax.grad(lambda p: loss(p, s))(p), x)
        return LOOPS[loop](step, (jnp.ones(()), two()), 3)[1] * ct,
      g.defvjp(lambda w: (w * 1., None), bwd)
      return jax.grad(g)(cast(two(), ('x',)))
    # Three steps along four devices' gradients, of 1 or of the terms.
    np.testing.assert_allclose(each(f), np.full(4, wanted), rtol=1e-5)


WRAPS = {
    'plain': lambda f: f,
    'jit': jax.jit,
    'inline_jit': lambda f: jax.jit(f, inline=True),
    'checkpoint': jax.checkpoint,
}


@jtu.with_config(jax_enable_checks=False)
class ReadRefTest(jtu.JaxTestCase):

  # Before 0.12 a ref takes what varies, and keeps its type.
  @red(UNLIKE_OPERANDS, bases='>=0.9.1,<0.12', cases=['plain'])
  @red(UNLIKE_OPERANDS, bases='>=0.9.1,<0.11.2', cases=['inline_jit'])
  @red(r'^AssertionError: \s*Not equal to tolerance .*Mismatched elements: 8 '
       '/ 12', bases='>=0.9.1,<0.12')
  @red("^ValueError: Primitive swap requires the value's varying manual axes "
       "to match the Ref's, and the", bases='>=0.12')
  @parameterized.parameters(*WRAPS)
  def test_that_comes_to_vary(self, name):
    if jax.__version_info__ < (0, 9, 1):
      self.skipTest('a ref keeps its type before 0.9.1')
    def f(x):
      ref = jax.new_ref(jnp.ones(()))
      read = WRAPS[name](lambda p: jax.grad(lambda p: p * ref[...])(p))
      out = []
      for _ in range(3):
        out.append(read(two()))
        ref[...] = ref[...] * x
      return jnp.stack(out)
    # Of a content that is the same everywhere first, then the devices' sum.
    np.testing.assert_allclose(each(f), np.tile([1., 10., 30.], (4, 1)),
                               rtol=1e-5)
