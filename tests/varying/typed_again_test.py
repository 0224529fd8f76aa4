# SPDX-License-Identifier: Apache-2.0
"""Jaxprs that differentiate, used where more varies than when they were traced.

The oracle is the same program with its first value cast by hand, or each
device's own computation with NumPy.
"""
from absl.testing import parameterized
import jax
from jax import lax
from jax._src import test_util as jtu
from jax.extend.core import jaxpr_as_fun
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
UNLIKE_OPERANDS = ('^ValueError: Primitive mul requires varying manual axes '
                   'to match, but got')
PVARY_OF_DEVICE_VARYING = ('^ValueError: Collective pvary must be applied to '
                           'a non-device-varying type')
PVARY_OF_VARYING = r'^ValueError: pvary is a invariant->variant collective\.'
WHILE_CARRY = ('^TypeError: while_loop body function carry input and carry '
               'output must have equal types')
SCAN_CARRY = ('^TypeError: scan body function carry input and carry output '
              'must have equal types')
UNLIKE_REF = ("^ValueError: Primitive swap requires the value's varying "
              "manual axes to match the Ref's")
PVARY_OF_VARYING_BY_RELEASE = {
    '<0.12': PVARY_OF_VARYING,
    '>=0.12': UNLIKE_REF,
}

X = np.random.RandomState(0).uniform(0.5, 2., (4, 3)).astype(np.float32)
W = np.random.RandomState(1).uniform(0.5, 2., 3).astype(np.float32)
MESHES = {'1d': ((4,), ('x',)), '2d': ((2, 2), ('x', 'y'))}


def run(f, x, w, kind='1d', jit=True, out_specs=None):
  """Each device's result of its row, by ``f(row, w, axes)``."""
  sizes, axes = MESHES[kind]
  spec = P(axes)
  one = lambda x, w: f(x[0], w, axes)[None]
  mapped = shard_map(one, mesh=make_mesh(*sizes), in_specs=(spec, P()),
                     out_specs=spec if out_specs is None else out_specs)
  return maybe_jit(jit)(mapped)(x, w)


def loss(w, x):
  return jnp.sum((w * x) ** 2)


def as_fun(f, *args):
  jaxpr = jax.make_jaxpr(f)(*args)
  return lambda *args: jaxpr_as_fun(jaxpr)(*args)[0]


def converted(f, *args):
  new, consts = jax.closure_convert(f, *args)
  return lambda *args: new(*args, *consts)


CONVERSIONS = dict(closure_convert=converted, jaxpr_as_fun=as_fun)
# Of a function of a weight and a device's own x: gradients by the weight.
GRADIENTS = dict(
    square=lambda w, x: jax.grad(loss)(w, x),
    linear=lambda w, x: jax.grad(lambda w: jnp.sum(w * x))(w),
    jit=lambda w, x: jax.jit(jax.grad(loss))(w, x),
    checkpoint=lambda w, x: jax.grad(jax.checkpoint(loss))(w, x),
    vmap=lambda w, x: jax.vmap(lambda s: jax.grad(loss)(w * s, x))(
        jnp.arange(3.)).sum(0),
    scan=lambda w, x: jax.grad(lambda w: jnp.sum(lax.scan(
        lambda c, _: (jnp.sin(c * w) + x, None), x, None, length=2)[0]))(w),
)
LOOPS = dict(
    scan=lambda step, w: lax.scan(
        lambda c, _: (step(c), None), w, None, length=3)[0],
    fori=lambda step, w: lax.fori_loop(0, 3, lambda _, c: step(c), w),
    while_loop=lambda step, w: lax.while_loop(
        lambda s: s[0] < 3, lambda s: (s[0] + 1, step(s[1])), (0, w))[1],
)


def descent(x):
  return lambda c: c - .01 * jax.grad(loss)(c, x) + x


@red(r'^ValueError: unexpected JAX type \(e\.g\. shape/dtype\) for argument '
     'to vjp function', bases='<0.6.1')
@jtu.with_config(jax_enable_checks=False)
class ConvertedTest(jtu.JaxTestCase):

  @red('^AssertionError: TypeError not raised', bases='>=0.6.1',
       cases={'what': 'jit'})
  @red('^AssertionError: "jax.*closure_convert, .* does not match '
       r'"_psum_invariant_abstract_eval\(\) got', bases='>=0.8.1,<0.9',
       cases={'what': 'vmap'})
  @red(UNLIKE_OPERANDS, bases='>=0.6.1,!=0.8.1,!=0.8.2,!=0.8.3',
       cases={'what': 'vmap'})
  @red(PVARY_OF_DEVICE_VARYING, bases='>=0.6.1,<0.8.1')
  @red(PVARY_OF_VARYING, bases='>=0.8.1')
  @parameterized.product(how=[*CONVERSIONS], what=[*GRADIENTS], kind=[*MESHES])
  def test_a_sum_that_is_not_meant_is_refused(self, how, what, kind):
    def f(x, w, axes):
      del axes
      return CONVERSIONS[how](lambda w: GRADIENTS[what](w, x), w)(w + x)
    with self.assertRaisesRegex(
        TypeError, r'jax\.closure_convert, jax\.extend\.core\.jaxpr_as_fun'
        r'[\s\S]*Expected [\s\S]*got [\s\S]*(jax\.lax\.pcast|pvary)\('):
      run(f, X, W, kind)

  @parameterized.product(how=[*CONVERSIONS], what=[*GRADIENTS], kind=[*MESHES])
  def test_an_example_that_varies(self, how, what, kind):
    def f(x, w, axes):
      g = CONVERSIONS[how](lambda w: GRADIENTS[what](w, x), cast(w, axes))
      return g(w + x)
    got = run(f, X, W, kind)
    wanted = np.stack([GRADIENTS[what](W + x, x) for x in X])
    np.testing.assert_allclose(got, wanted, rtol=1e-4)

  @red(UNLIKE_OPERANDS, bases='>=0.6.1')
  @parameterized.product(how=[*CONVERSIONS], kind=[*MESHES])
  def test_another_argument_varies(self, how, kind):
    # The gradient is by what is still the same on all devices.
    def f(x, w, axes):
      del axes
      step = lambda t, w: t * w - jax.grad(loss)(w, x)
      return CONVERSIONS[how](step, jnp.ones(3), w)(x, w)
    got = run(f, X, W, kind)
    wanted = X * W - 2 * W * (X ** 2).sum(0)
    np.testing.assert_allclose(got, wanted, rtol=1e-4)

  @red(UNLIKE_OPERANDS)
  @parameterized.product(how=[*CONVERSIONS], kind=[*MESHES])
  def test_a_sum_that_is_missing_is_refused(self, how, kind):
    def f(x, w, axes):
      del axes
      return CONVERSIONS[how](jax.grad(loss), w, jnp.ones(3))(w, x)
    with self.assertRaisesRegex(
        TypeError, r'jax\.closure_convert[\s\S]* for which a sum is missing'):
      run(f, X, W, kind)

  @red('^ValueError: Primitive add requires varying manual axes to match, '
       'but got')
  @parameterized.product(how=[*CONVERSIONS], power=[1, 2])
  def test_a_linear_sum_that_is_missing_is_refused(self, how, power):
    # No equation of the derivative holds what comes to vary.
    def f(x, w, axes):
      del axes
      linear = jax.grad(lambda w, x: jnp.sum(w ** power + x))
      return CONVERSIONS[how](linear, w, jnp.ones(3))(w, x)
    with self.assertRaisesRegex(
        TypeError, r'jax\.closure_convert[\s\S]* for which a sum is missing'):
      run(f, X, W, '1d')

  @red(UNLIKE_OPERANDS)
  @parameterized.product(how=[*CONVERSIONS], kind=[*MESHES])
  def test_a_derivative_beside_what_is_cast(self, how, kind):
    # The weight meets what varies where no derivative is taken.
    def f(x, w, axes):
      del axes
      g = lambda w, s: w * s + jax.grad(lambda s: jnp.sum(s ** 3))(s)
      return CONVERSIONS[how](g, w, jnp.ones(3))(w, x)
    np.testing.assert_allclose(run(f, X, W, kind), W * X + 3 * X ** 2,
                               rtol=1e-5)

  @red(UNLIKE_OPERANDS)
  @parameterized.product(how=[*CONVERSIONS], kind=[*MESHES])
  def test_a_gradient_without_a_sum(self, how, kind):
    def f(x, w, axes):
      del axes
      return CONVERSIONS[how](jax.grad(lambda w: jnp.sum(w ** 3)), w)(w * x)
    np.testing.assert_allclose(run(f, X, W, kind), 3 * (W * X) ** 2, rtol=1e-4)

  @red(r'^AssertionError: "jax\.closure_convert" does not match "scan body '
       'function carry input', bases='>=0.6.1', cases=['scan', 'fori'])
  @red(r'^AssertionError: "jax\.closure_convert" does not match "while_loop '
       'body function carry', bases='>=0.6.1')
  @parameterized.product(loop=[*LOOPS])
  def test_a_loop_with_a_converted_step_is_refused(self, loop):
    def f(x, w, axes):
      del axes
      return LOOPS[loop](converted(descent(x), w), w)
    with self.assertRaisesRegex(TypeError, 'jax.closure_convert'):
      run(f, X, W)


@red(SCAN_CARRY)
@jtu.with_config(jax_enable_checks=False)
class LoopsTest(jtu.JaxTestCase):
  """Types don't depend on when a loop's body was first traced."""

  def check(self, f, kind, jit=True):
    got = run(lambda x, w, axes: f(x, w, lambda c: c), X, W, kind, jit)
    wanted = run(lambda x, w, axes: f(x, w, lambda c: cast(c, axes)), X, W,
                 kind, jit)
    np.testing.assert_allclose(got, wanted, rtol=1e-4)

  @red(WHILE_CARRY, cases=['while_loop'])
  @parameterized.product(loop=[*LOOPS], kind=[*MESHES])
  def test_gradient_by_a_constant_of_what_comes_to_vary(self, loop, kind):
    def f(x, w, start):
      def step(s):
        total, c = s
        return total + jax.grad(loss)(w, c), c + x
      return LOOPS[loop](step, (jnp.zeros(3), start(jnp.ones(3))))[0] + 0 * x
    self.check(f, kind)

  @red(WHILE_CARRY, cases=['while_loop'])
  @parameterized.product(loop=[*LOOPS], kind=[*MESHES])
  def test_gradient_by_a_carry_that_need_not_vary(self, loop, kind):
    def f(x, w, start):
      def step(s):
        w, c = s
        return w - .01 * jax.grad(loss)(w, c), c + x
      return LOOPS[loop](step, (w, start(jnp.ones(3))))[0] + 0 * x
    self.check(f, kind)

  @red(WHILE_CARRY)
  @parameterized.product(kind=[*MESHES])
  def test_gradient_in_a_predicate(self, kind):
    def f(x, w, start):
      def more(s):
        return (jax.grad(loss)(s[0], s[1]).sum() < 90.) & (s[2] < 50)
      step = lambda s: (s[0] + .1, s[1] + x, s[2] + 1)
      return lax.while_loop(more, step, (w, start(jnp.zeros(3)), 0))[0] + 0 * x
    self.check(f, kind)

  @parameterized.product(kind=[*MESHES])
  def test_nested(self, kind):
    def f(x, w, start):
      def inner(c):
        return LOOPS['scan'](lambda d: d + jax.grad(loss)(w, c), jnp.zeros(3))
      step = lambda c, _: (c + x, inner(c))
      total = lax.scan(step, start(jnp.ones(3)), None, length=3)[1]
      return total.sum(0) + 0 * x
    self.check(f, kind)

  @parameterized.product(kind=[*MESHES])
  def test_branch(self, kind):
    def f(x, w, start):
      def step(c, _):
        return c + x, lax.cond(
            jnp.sum(w) > 0, lambda: jax.grad(loss)(w, c), lambda: w)
      total = lax.scan(step, start(jnp.ones(3)), None, length=3)[1]
      return total.sum(0) + 0 * x
    self.check(f, kind)


def in_ref(run_step):
  """A program that steps three times in a ref; all but the start is given."""
  def f(x, w, start):
    r = jax.new_ref(start(w))
    def step():
      r[...] = descent(x)(r[...])
    run_step(step)
    return r[...]
  return f


def scan_of(step):
  lax.scan(lambda c, _: (c, step()), 0, None, length=3)


def nested_of(step):
  def outer(c, _):
    lax.scan(lambda c, _: (c, step()), 0, None, length=3)
    return c, None
  lax.scan(outer, 0, None, length=1)


REF_LOOPS = dict(
    scan=scan_of,
    fori=lambda step: lax.fori_loop(0, 3, lambda _, c: (step(), c)[1], 0),
    while_loop=lambda step: lax.while_loop(
        lambda n: n < 3, lambda n: (step(), n + 1)[1], 0),
    jit_in_scan=lambda step: scan_of(jax.jit(step)),
    scan_in_jit=lambda step: jax.jit(lambda: scan_of(step))(),
    scan_in_jit_in_scan=lambda step: lax.scan(
        lambda c, _: (c, jax.jit(lambda: scan_of(step))()), 0, None, length=1),
    scan_in_checkpoint=lambda step: jax.checkpoint(lambda: scan_of(step))(),
    scan_in_cond=lambda step: lax.cond(
        True, lambda: scan_of(step), lambda: None),
    nested=nested_of,
)


def thrice(step):
  step(), step(), step()


@red({
    '<0.12':
        '^Exception: The branches of cond produced mismatched varying manual '
        r'axes\.',
    '>=0.12': UNLIKE_REF,
}, bases='>=0.9.1')
@jtu.with_config(jax_enable_checks=False)
class RefsTest(jtu.JaxTestCase):
  """A gradient by a content that is replicated at first, then varies."""

  def setUp(self):
    super().setUp()
    if jax.__version_info__ < (0, 9, 1):
      self.skipTest('refs come to vary from 0.9.1 on')

  @red(PVARY_OF_VARYING_BY_RELEASE, bases='>=0.9.1', cases=['while_loop'])
  @red({
      '<0.12':
          '^ValueError: Scan carry input and output got mismatched varying '
          'manual axes',
      '>=0.12': UNLIKE_REF,
  }, bases='>=0.9.1')
  @parameterized.product(loop=[*REF_LOOPS], kind=[*MESHES])
  def test_loop(self, loop, kind):
    f = in_ref(REF_LOOPS[loop])
    got = run(lambda x, w, axes: f(x, w, lambda w: w), X, W, kind)
    wanted = X * 0 + W
    for _ in range(3):
      wanted = wanted - .02 * wanted * X ** 2 + X
    np.testing.assert_allclose(got, wanted, rtol=1e-4)

  @red(PVARY_OF_VARYING_BY_RELEASE, bases='>=0.9.1')
  @parameterized.product(how=['jit', 'checkpoint'], kind=[*MESHES])
  def test_a_step_that_is_called_again(self, how, kind):
    # As without jit: the first call finds what is the same on all devices.
    wrap = dict(jit=jax.jit, checkpoint=jax.checkpoint)[how]
    f = in_ref(lambda step: thrice(wrap(step)))
    got = run(lambda x, w, axes: f(x, w, lambda w: w), X, W, kind)
    wanted = W - .02 * W * (X ** 2).sum(0) + X
    for _ in range(2):
      wanted = wanted - .02 * wanted * X ** 2 + X
    np.testing.assert_allclose(got, wanted, rtol=1e-4)

  @red({
      '<0.12':
          r'^AssertionError: \s*Not equal to tolerance rtol=0\.0001, '
          r'atol=0\s+Mismatched elements: 12 / 12',
      '>=0.12': UNLIKE_REF,
  }, bases='>=0.9.1')
  @parameterized.product(kind=[*MESHES])
  def test_a_gradient_that_is_called_again(self, kind):
    def f(x, w, axes):
      del axes
      r = jax.new_ref(w)
      gradient = jax.jit(lambda: jax.grad(loss)(r[...], x))
      first = gradient()
      r[...] = r[...] + x
      return first + gradient()
    wanted = 2 * W * (X ** 2).sum(0) + 2 * (W + X) * X ** 2
    np.testing.assert_allclose(run(f, X, W, kind), wanted, rtol=1e-4)

  @red({
      '<0.12': SCAN_CARRY,
      '>=0.12': UNLIKE_REF,
  }, bases='>=0.9.1')
  def test_a_carry_and_a_ref(self):
    def f(x, w, axes):
      del axes
      r = jax.new_ref(w)
      def step(c, _):
        r[...] = descent(x)(r[...])
        return descent(x)(c), None
      return lax.scan(step, w, None, length=3)[0] + r[...]
    wanted = X * 0 + W
    for _ in range(3):
      wanted = wanted - .02 * wanted * X ** 2 + X
    np.testing.assert_allclose(run(f, X, W), 2 * wanted, rtol=1e-4)

  @parameterized.product(first=[True, False])
  def test_a_branch_writes(self, first):
    # Either branch, once and again.
    def f(x, w, axes):
      del axes
      r = jax.new_ref(w)
      def write():
        r[...] = r[...] * 2 + x
      branches = (write, lambda: None) if first else (lambda: None, write)
      lax.cond((jnp.sum(w) > 0) == first, *branches)
      lax.cond((jnp.sum(w) > 0) == first, *branches)
      return r[...]
    np.testing.assert_allclose(run(f, X, W), 4 * W + 3 * X, rtol=1e-5)

  def test_a_branch_that_is_called_again_is_refused(self):
    f = in_ref(lambda step: [lax.cond(True, step, lambda: None)
                             for _ in range(2)])
    with self.assertRaisesRegex(
        TypeError, r'jax\.new_ref[\s\S]*expected [\s\S]*got [\s\S]*'
        r'jax\.new_ref\(jax\.lax\.pcast\('):
      run(lambda x, w, axes: f(x, w, lambda w: w), X, W)

  @red({
      '<0.12': '^TypeError: cond branches must have equal output types',
      '>=0.12': UNLIKE_REF,
  }, bases='>=0.9.1', cases=['branch'])
  @red({
      '<0.12':
          '^ValueError: Primitive add requires varying manual axes to match',
      '>=0.12': UNLIKE_REF,
  }, bases='>=0.9.1')
  @parameterized.product(how=['plain', 'branch', 'loop'], kind=[*MESHES])
  def test_lowered_as_it_was_traced(self, how, kind):
    # What holds an operation of its own (custom_root, 0.12) is evaluated once
    # more to be lowered, when the ref has come to vary.
    def f(x, w, axes):
      r = jax.new_ref(w)

      @jax.jit
      def step(c):
        content = r[...]
        root = lax.custom_root(
            lambda u: u ** 3 - content ** 3, content * 0.,
            lambda f, u: content + 0. * f(u), lambda g, y: y / g(jnp.ones(3)))
        slope = jax.grad(lambda t: jnp.sum(jnp.sin(t * c)))(content)
        r[...] = content * .5 + x
        return root + slope

      return step(w) + r[...]

    def body(x, w, axes):
      if how == 'branch':
        return lax.cond(jnp.sum(w) > -9., lambda: f(x, w, axes), lambda: x)
      if how == 'loop':
        step = lambda c, _: (c, f(x, w, axes))
        return lax.scan(step, 0, None, length=2)[1][1]
      return f(x, w, axes)

    wanted = W + np.cos(W * W) * W + W * .5 + X
    np.testing.assert_allclose(run(body, X, W, kind), wanted, rtol=1e-5)

  @red(PVARY_OF_VARYING_BY_RELEASE, bases='>=0.9.1')
  def test_a_ref_of_another_step_does_not_count(self):
    # It varied from the start; the other one's first call is as ever.
    def f(x, w, axes):
      del axes
      r, s = jax.new_ref(w), jax.new_ref(x)
      @jax.jit
      def step():
        s[...] = s[...] * 2
        r[...] = descent(x)(r[...])
      step()
      return r[...] + s[...]
    wanted = W - .02 * W * (X ** 2).sum(0) + X + 2 * X
    np.testing.assert_allclose(run(f, X, W), wanted, rtol=1e-4)


def with_custom_vmap(a, b):
  f = jax.custom_batching.custom_vmap(lambda a, b: lax.psum(a, 'x') * b)
  f.def_vmap(lambda size, mapped, a, b: (lax.psum(a, 'x') * b, True))
  return f(a, b)


def with_linear_call(a, b):
  f = lambda r, t: lax.psum(r, 'x') * t
  return jax.custom_derivatives.linear_call(f, f, a, b)


def with_composite(a, b):
  return lax.composite(lambda a, b: lax.psum(a, 'x') * b, 'test.product')(a, b)


def with_solve(a, b):
  return lax.custom_linear_solve(
      lambda v: v / lax.psum(a, 'x'), b,
      lambda mv, v: v * lax.psum(a, 'x'), symmetric=True)


HOLDERS = dict(custom_vmap=with_custom_vmap, linear_call=with_linear_call,
               composite=with_composite, custom_linear_solve=with_solve)


@jtu.with_config(jax_enable_checks=False)
class HoldersTest(jtu.JaxTestCase):
  """Primitives that hold a jaxpr, one of whose operands varied before."""

  def apply(self, holder, how, raised=True, out_specs=None):
    def f(x, w, axes):
      del axes
      g = CONVERSIONS[how](HOLDERS[holder], x, w)
      return g(x, w * x if raised else w)
    return run(f, X, W, out_specs=out_specs)

  @red(UNLIKE_OPERANDS, cases=['custom_vmap', 'linear_call'])
  @red({
      '<0.8.1': PVARY_OF_DEVICE_VARYING,
      '>=0.8.1': PVARY_OF_VARYING,
  })
  @parameterized.product(holder=[*HOLDERS], how=[*CONVERSIONS])
  def test_value(self, holder, how):
    np.testing.assert_allclose(self.apply(holder, how), X.sum(0) * W * X,
                               rtol=1e-5)

  @red('^AssertionError: "require replication" does not match "Primitive mul '
       'requires varying manual', cases=['custom_vmap', 'linear_call'])
  @red({
      '<0.8.1':
          '^AssertionError: "require replication" does not match "Collective '
          'pvary must be applied to',
      '>=0.8.1':
          '^AssertionError: "require replication" does not match "pvary is a '
          'invariant->variant',
  })
  @parameterized.product(holder=[*HOLDERS], how=[*CONVERSIONS])
  def test_unsound(self, holder, how):
    with self.assertRaisesRegex(ValueError, 'require replication'):
      self.apply(holder, how, out_specs=P())

  @red("^ValueError: shard_map applied to the function '<lambda>' was given "
       'out_specs which require', cases=['custom_linear_solve'])
  @parameterized.product(holder=[*HOLDERS], how=[*CONVERSIONS])
  def test_what_varied_before(self, holder, how):
    got = self.apply(holder, how, raised=False, out_specs=P())
    np.testing.assert_allclose(got[0], X.sum(0) * W, rtol=1e-5)

  @red(SCAN_CARRY)
  @parameterized.product(holder=[*HOLDERS])
  def test_loop(self, holder):
    def f(x, w, axes):
      del axes
      step = lambda c, _: (HOLDERS[holder](x, c) * .1 + x, None)
      return lax.scan(step, w, None, length=2)[0]
    wanted = X * 0 + W
    for _ in range(2):
      wanted = X.sum(0) * wanted * .1 + X
    np.testing.assert_allclose(run(f, X, W), wanted, rtol=1e-5)
    with self.assertRaisesRegex(ValueError, 'require replication'):
      run(f, X, W, out_specs=P())

  @red(SCAN_CARRY)
  def test_gradient(self):
    # By what comes to vary, of the sum over devices of each one's result.
    def f(x, w, axes):
      del axes
      step = lambda c, _: (with_linear_call(x, c) * .1 + x, None)
      total = lambda w: jnp.sum(lax.scan(step, w, None, length=2)[0] * x)
      return jax.grad(total)(w) + 0 * x
    wanted = np.tile(.01 * X.sum(0) ** 3, (4, 1))
    np.testing.assert_allclose(run(f, X, W), wanted, rtol=1e-4)


def parts(x):
  """Devices along 'x' diverge at this branch's index."""
  return lax.axis_index('x') == 0


COLLECTIVES = dict(
    psum=lambda v: lax.psum(v, 'x'),
    ppermute=lambda v: lax.ppermute(v, 'x', [(0, 1), (1, 0)]),
    all_gather=lambda v: lax.all_gather(v, 'x').sum(0),
)


@red('^AssertionError: ValueError not raised')
@jtu.with_config(jax_enable_checks=False)
class DivergentSolveTest(jtu.JaxTestCase):
  """A collective in a solve that only some of the devices arrive at."""

  def solve(self, name, x):
    solve = lambda _, b: b / 2 + 0 * COLLECTIVES[name](b)
    return lax.custom_linear_solve(lambda v: 2 * v, x, solve, symmetric=True)

  def traced(self, f, kind='1d'):
    sizes, axes = MESHES[kind]
    return jax.jit(shard_map(
        lambda x: f(x[0])[None], mesh=make_mesh(*sizes), in_specs=P(axes),
        out_specs=P(axes))).lower(X)

  # Run, they would wait forever.
  @parameterized.product(name=[*COLLECTIVES])
  def test_branch(self, name):
    f = lambda x: lax.cond(parts(x), lambda: self.solve(name, x), lambda: x)
    with self.assertRaisesRegex(ValueError, f'{name}.* over mesh axis'):
      self.traced(f)

  @parameterized.product(name=[*COLLECTIVES])
  def test_loop(self, name):
    f = lambda x: lax.while_loop(
        lambda s: s[0] <= lax.axis_index('x'),
        lambda s: (s[0] + 1, self.solve(name, s[1])), (0, x))[1]
    with self.assertRaisesRegex(ValueError, f'{name}.* over mesh axis'):
      self.traced(f)

  @red("^AssertionError: 'collective_permute' unexpectedly found in ")
  def test_along_another_axis(self):
    # A ppermute in it is marked, as any other there.
    f = lambda x: lax.cond(lax.axis_index('y') == 0,
                           lambda: self.solve('ppermute', x), lambda: x)
    self.assertNotIn('collective_permute', self.traced(f, '2d').as_text())
