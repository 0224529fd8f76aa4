# SPDX-License-Identifier: Apache-2.0
"""What custom derivative rules return inside shard_map (jax#28193).

Results are compared with the same rules applied to each device's block, or,
for a replicated parameter, with the sum of the devices' gradients.
"""
import os
import traceback

from absl.testing import parameterized
import jax
from jax import lax
from jax._src import config as jax_config
from jax._src import test_util as jtu
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec as P
import numpy as np
from testing.red import red
from testing.sharding import UNCHECKED, shard_map
from varying.testing.common import MESHES
from varying.testing.common import blockwise
from varying.testing.common import cast
from varying.testing.common import fill
from varying.testing.common import make_mesh
from varying.testing.common import maybe_jit

jax.config.parse_flags_with_absl()

# What pristine JAX says.
JVP_RULE = '^TypeError: .*Custom JVP rule must produce'
BWD_RULE = '^ValueError: .*Custom VJP bwd rule'
NEEDS_REPLICATION = '^ValueError: .*out_specs which require replication'
JVP_SHAPES = ('^TypeError: Custom JVP rule must produce primal and tangent '
              'outputs with corresponding shapes')
SCAN_CARRY = ('^TypeError: scan body function carry input and carry output '
              'must have equal types, but they')
ONLY_BWD_RULE = '^ValueError: Custom VJP bwd rule'
OTHER_EXPECTED_TYPE = "^ValueError: .*doesn't match expected type"
REDUCTION_NOT_NAMED = ('^AssertionError: "reduces it over .* does not match '
                       '"Custom VJP bwd')
NOT_REFUSED = '^AssertionError: ValueError not raised'
COND_TRANSPOSE = {
    '<0.8.1': r'^AssertionError: raised by conditionals\._cond_transpose',
    '==0.8.1':
        '^Exception: The branches of cond produced mismatched varying manual '
        r'axes\. Got \[frozenset\(\)\] and',
    '>=0.8.2': ONLY_BWD_RULE,
}

X = np.random.RandomState(0).uniform(0.5, 2., (8, 4)).astype(np.float32)
COMPILED = [('1d', True), ('2d', True)]
# Of the tests that say most: without jit each operation compiles by itself.
WHERE = [('1d', True), ('2d', False)]


def run(f, where, w=None):
  """Applies `f` to the blocks of X, and to a replicated `w`."""
  kind, jit = where
  mesh = make_mesh(*MESHES[kind])
  spec = P(*mesh.axis_names)
  specs, args = (spec,), (X,)
  if w is not None:
    specs, args = specs + (P(),), args + (w,)
  g = shard_map(f, mesh=mesh, in_specs=specs, out_specs=spec)
  return maybe_jit(jit)(g)(*args)


def own_cotangent(y):  # varies as y does, which every base accepts
  return y * 0. + 1.


def gradient(f, x):
  y, pull = jax.vjp(f, x)
  return pull(own_cotangent(y))[0]


def constant_slope():
  f = jax.custom_jvp(lambda x: x * 2.)
  f.defjvp(lambda p, t: (f(*p), jnp.full(p[0].shape, 2.)))
  return f


def numpy_slope():
  f = jax.custom_jvp(lambda x: x * 2.)
  f.defjvp(lambda p, t: (f(*p), np.full(p[0].shape, 2., np.float32)))
  return f


def constant_primal():
  f = jax.custom_jvp(lambda x: x ** 2)
  f.defjvp(lambda p, t: (jnp.full(p[0].shape, 4.), 2. * p[0] * t[0]))
  return f


class CustomJvpTest(jtu.JaxTestCase):

  @red(JVP_RULE)
  @parameterized.parameters(
      (constant_slope, ('1d', True)), (constant_slope, ('2d', False)),
      (numpy_slope, ('2d', True)))
  def test_unvarying_tangent(self, make, where):
    f = make()
    got = run(lambda x: x * jax.jvp(f, (x,), (x,))[1], where)
    np.testing.assert_allclose(got, 2. * X, rtol=1e-6)

  @red(JVP_RULE)
  @parameterized.product(where=COMPILED)
  def test_defjvps_unvarying(self, where):
    f = jax.custom_jvp(lambda x, y: x + 3. * y)
    f.defjvps(lambda t, ans, x, y: jnp.ones(x.shape),
              lambda t, ans, x, y: jnp.full(x.shape, 3.))
    got = run(lambda x: x * jax.jvp(f, (x, x), (x, x))[1], where)
    np.testing.assert_allclose(got, 4. * X, rtol=1e-6)

  @red(JVP_RULE)
  @parameterized.product(where=COMPILED)
  def test_unvarying_primal(self, where):
    f = constant_primal()
    got = run(lambda x: x * 0. + jax.jvp(f, (x,), (x,))[0], where)
    np.testing.assert_allclose(got, np.full(X.shape, 4.), rtol=1e-6)

  @red(JVP_RULE)
  @parameterized.product(where=WHERE)
  def test_unvarying_primal_under_grad(self, where):
    f = constant_primal()
    got = run(lambda x: gradient(lambda x: jnp.sum(f(x) * x), x), where)
    np.testing.assert_allclose(got, 4. + 2. * X ** 2, rtol=1e-5)

  @red(JVP_RULE)
  @parameterized.product(where=COMPILED)
  def test_tree_with_symbolic_zeros(self, where):
    f = jax.custom_jvp(lambda p: {'a': p['a'] * 2., 'b': p['b'] + 1.})
    def rule(p, t):
      zero = t[0]['b']
      tangents = {'a': jnp.full(p[0]['a'].shape, 2.), 'b': zero}
      return f(*p), tangents
    f.defjvp(rule, symbolic_zeros=True)
    def g(x):
      y, t = jax.jvp(lambda x: f({'a': x, 'b': x * 0. + 2.})['a'], (x,), (x,))
      y, t = jax.jvp(lambda x: f({'a': x, 'b': jnp.ones(x.shape)})['a'],
                     (x,), (x,))
      return x * t
    np.testing.assert_allclose(run(g, where), 2. * X, rtol=1e-6)

  @red(JVP_RULE, bases='<0.7.2')
  @parameterized.parameters([{}], [UNCHECKED])
  def test_tangent_from_outside(self, options):
    slope = jnp.float32(3.)  # of no mesh
    f = jax.custom_jvp(jnp.sin)
    f.defjvp(lambda w, t: (f(*w), slope))
    g = shard_map(lambda x, w: x * jax.jvp(f, (w,), (w,))[1],
                  mesh=make_mesh(4), in_specs=(P('x'), P()), out_specs=P('x'),
                  **options)
    self.assertAllClose(g(X, slope), 3 * X)
    self.assertAllClose(jax.jit(g)(X, slope), 3 * X)

  def test_matching_rule_is_unchanged(self):
    f = jax.custom_jvp(lambda x: jnp.sin(x))
    f.defjvps(lambda t, ans, x: t * jnp.cos(x))
    got = run(lambda x: gradient(lambda x: jnp.sum(f(x)), x), ('2d', True))
    np.testing.assert_allclose(got, np.cos(X), rtol=1e-5)

  def test_shape_mismatch_is_still_refused(self):
    f = jax.custom_jvp(lambda x: x * 2.)
    f.defjvp(lambda p, t: (f(*p), jnp.ones((3,))))
    with self.assertRaisesRegex(TypeError, 'Custom JVP rule must produce'):
      run(lambda x: jax.jvp(f, (x,), (x,))[1], ('2d', True))


def constant_cotangent():
  f = jax.custom_vjp(lambda x: jnp.sum(x ** 2))
  f.defvjp(lambda x: (f(x), x), lambda x, g: (jnp.ones(x.shape),))
  return f


def numpy_cotangent():
  f = jax.custom_vjp(lambda x: jnp.sum(x ** 2))
  f.defvjp(lambda x: (f(x), x),
           lambda x, g: (np.ones(x.shape, np.float32),))
  return f


UNVARYING = [(constant_cotangent, ('1d', True)),
             (constant_cotangent, ('2d', False)),
             (numpy_cotangent, ('2d', True))]


def unvarying_cotangent(make, where):
  f = make()
  got = run(lambda x: x * gradient(f, x), where)
  np.testing.assert_allclose(got, X, rtol=1e-6)


class CustomVjpTest(jtu.JaxTestCase):

  def test_adds_no_frame_outside(self):
    files = []

    def bwd(r, g):
      files.extend(f.filename for f in traceback.extract_stack())
      return (g * r,)

    f = jax.custom_vjp(lambda x: x ** 2 / 2)
    f.defvjp(lambda x: (f(x), x), bwd)
    self.assertEqual(jax.grad(f)(3.), 3.)
    self.assertContainsSubset(['ad.py'], map(os.path.basename, files))
    ours = os.path.join('_src', 'varying', '')
    self.assertEmpty([f for f in files if ours in f])

  @red(BWD_RULE, bases='>=0.8.2')
  @parameterized.parameters(*UNVARYING)
  def test_unvarying_cotangent(self, make, where):
    unvarying_cotangent(make, where)

  @red(BWD_RULE, bases='>=0.8.2')
  @red(r'^AssertionError: \s*Not equal to tolerance .*ACTUAL: array\(\[\[1',
       bases='<0.8.2')
  @parameterized.product(where=WHERE)
  def test_replicated_parameter_is_summed(self, where):
    f = jax.custom_vjp(lambda x, w: jnp.sum(x * w))
    f.defvjp(lambda x, w: (f(x, w), (x, w)),
             lambda r, g: (None, jnp.sum(g * r[0])))
    def g(x, w):
      return x * gradient(lambda w: f(x, w), w)
    got = run(g, where, np.float32(2.))
    np.testing.assert_allclose(got, X * X.sum(), rtol=1e-5)

  @red(BWD_RULE, bases='>=0.8.2')
  @red(NEEDS_REPLICATION, bases='<0.8.2')
  @parameterized.product(jit=[False, True])
  def test_summed_gradient_is_replicated(self, jit):
    # As jax.grad of the plain function: out_specs=P() is accepted.
    f = jax.custom_vjp(lambda x, w: jnp.sum(jnp.sin(x * w)))
    f.defvjp(lambda x, w: (f(x, w), (x, w)),
             lambda r, g: (None, jnp.sum(g * jnp.cos(r[0] * r[1]) * r[0])))
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ('x', 'y'))
    g = shard_map(lambda x, w: gradient(lambda w: f(x, w), w), mesh=mesh,
                  in_specs=(P('x', 'y'), P()), out_specs=P())
    got = (jax.jit(g) if jit else g)(X, np.float32(1.5))
    np.testing.assert_allclose(got, np.sum(np.cos(X * 1.5) * X), rtol=1e-5)

  @red(BWD_RULE, bases='>=0.8.2')
  @red(NEEDS_REPLICATION, bases='<0.8.2')
  def test_summed_if_it_is_wanted_only(self):
    # The other cotangent is one of a constant: nobody asks for it.
    f = jax.custom_vjp(lambda w, s, x: w * s * x)
    f.defvjp(lambda w, s, x: (f(w, s, x), (w, s, x)),
             lambda r, g: (g * r[1] * r[2], g * r[0] * r[2], None))
    g = shard_map(
        lambda w, x: gradient(lambda w: f(w, np.float32(2.), x[0]), w),
        mesh=make_mesh(4), in_specs=(P(), P('x')), out_specs=P())
    w, x = np.float32(1.), np.arange(4.).astype(np.float32)
    self.assertEqual(str(jax.make_jaxpr(g)(w, x)).count('psum'), 1)
    np.testing.assert_allclose(g(w, x), 12.)

  @red(BWD_RULE, bases='>=0.8.2')
  @red(NEEDS_REPLICATION, bases='<0.8.2')
  def test_summed_over_the_missing_axis_only(self):
    # w varies along 'x' and the cotangent along both.
    f = jax.custom_vjp(lambda x, w: jnp.sum(x * w, 1))
    f.defvjp(lambda x, w: (f(x, w), (x, w)),
             lambda r, g: (None, jnp.sum(r[0], 1, keepdims=True)))
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ('x', 'y'))
    w = X[:, :1]
    g = jax.jit(shard_map(
        lambda x, w: gradient(lambda w: f(x, w), w), mesh=mesh,
        in_specs=(P('x', 'y'), P('x')), out_specs=P('x')))
    np.testing.assert_allclose(g(X, w), X.sum(1, keepdims=True), rtol=1e-5)

  @red('^TypeError: .*Custom VJP fwd rule')
  @parameterized.product(where=COMPILED)
  def test_unvarying_forward_result_of_staged_function(self, where):
    f = jax.custom_vjp(lambda x: jnp.sum(x ** 2))
    f.defvjp(lambda x: (jnp.float32(3.), x), lambda x, g: (g * x,))
    def g(x):
      y, pull = jax.vjp(jax.jit(f), x)
      return y + pull(own_cotangent(jnp.sum(x)))[0]
    np.testing.assert_allclose(run(g, where), 3. + X, rtol=1e-6)

  @red(NEEDS_REPLICATION, bases='!=0.8.2,!=0.8.3')
  @parameterized.product(jit=[False, True])
  def test_unchecked_cotangent_is_summed(self, jit):
    # The option that turns off the check of what rules return.
    option = getattr(
        jax_config, 'disable_bwd_checks',
        getattr(jax_config, 'custom_vjp_disable_shape_check', None))
    if option is None:
      self.skipTest('0.8.2 has no such option')
    f = jax.custom_vjp(lambda x, w: jnp.sum(x * w))
    f.defvjp(lambda x, w: (f(x, w), x), lambda x, g: (None, jnp.sum(g * x)))
    def g(x, w):
      return gradient(lambda w: f(x, w), w)
    with option(True):
      h = shard_map(g, mesh=make_mesh(2, 2), in_specs=(P('x', 'y'), P()),
                    out_specs=P())
      got = maybe_jit(jit)(h)(X, np.float32(1.5))
    np.testing.assert_allclose(got, X.sum(), rtol=1e-5)

  def test_user_may_sum_himself(self):
    f = jax.custom_vjp(lambda x, w: jnp.sum(x * w))
    f.defvjp(lambda x, w: (f(x, w), (x, w)),
             lambda r, g: (None,
                           lax.psum(jnp.sum(g * r[0]), ('x', 'y'))))
    def g(x, w):
      return x * gradient(lambda w: f(x, w), w)
    got = run(g, ('2d', True), np.float32(2.))
    np.testing.assert_allclose(got, X * X.sum(), rtol=1e-5)

  def test_shape_mismatch_is_still_refused(self):
    f = jax.custom_vjp(lambda x: jnp.sum(x))
    f.defvjp(lambda x: (f(x), None), lambda r, g: (jnp.ones((3,)),))
    with self.assertRaisesRegex(ValueError, 'Custom VJP bwd rule'):
      run(lambda x: gradient(f, x), ('2d', True))


def scaled_sum(**options):
  """A function of x and a parameter w, with a rule of its own."""
  f = jax.custom_vjp(lambda x, w: jnp.sum(jnp.sin(x)) * w)
  plain = lambda x: getattr(x, 'value', x)  # with symbolic zeros
  def fwd(x, w):
    x, w = plain(x), plain(w)
    return f(x, w), (x, w)
  def bwd(r, g):
    return g * r[1] * jnp.cos(r[0]), g * jnp.sum(jnp.sin(r[0]))
  f.defvjp(fwd, bwd, **options)
  return f


WITHIN = {
    'function': lambda f: f,
    'branch': lambda f: lambda x, w: lax.cond(
        x[0, 0] > 1., lambda: f(x, w), lambda: jnp.sum(x)),
    # The rule's cotangent for the constant varies, and nobody wants it.
    'branch_with_constant': lambda f: lambda x, w: lax.cond(
        x[0, 0] > 1., lambda: f(jnp.ones(3), w), lambda: 1.),
    'scan': lambda f: lambda x, w: lax.scan(
        lambda c, a: (0.1 * f(c + a, w), None), w, x)[0],
    'fori_loop': lambda f: lambda x, w: jnp.sum(lax.fori_loop(
        0, 2, lambda _, c: 0.1 * f(c, w) + x, jnp.ones(x.shape))),
}


class WithinTest(jtu.JaxTestCase):
  """Rules in loops and branches whose types are found after their tracing."""

  def check(self, f, plain, where):
    def gradients(f):
      return lambda x, w: fill(x, gradient(lambda w: f(x, w), w)) + gradient(
          lambda x: f(x, w), x)
    w, kind = np.float32(0.7), where[0]
    got = run(gradients(f), where, w)
    # On one device: of each block, and by w of all together.
    want, each = blockwise(lambda x: [fill(x, g) for g in jax.grad(
        plain, (0, 1))(x, w)], MESHES[kind], X)
    size = X.size // np.prod(MESHES[kind])
    np.testing.assert_allclose(got, want + each.sum() / size, rtol=1e-4,
                               atol=1e-5)

  def check_custom_vjp(self, what, where, options):
    plain = lambda x, w: jnp.sum(jnp.sin(x)) * w
    self.check(WITHIN[what](scaled_sum(**options)), WITHIN[what](plain), where)

  @red({
      '<0.8.2':
          r'^AssertionError: \s*Not equal to tolerance .*ACTUAL: '
          r'array\(\[\[7\.779\d*, 7\.606\d*, ',
      '>=0.8.2': ONLY_BWD_RULE,
  }, cases=['function'])
  @red(COND_TRANSPOSE, cases=['branch'])
  @red(r'^AssertionError: \s*Not equal to tolerance .*ACTUAL: '
       r'array\(\[\[2\.524\d*, 2\.524\d*, ', cases=['branch_with_constant'])
  @red(SCAN_CARRY)
  @parameterized.product(
      what=list(WITHIN),
      options=[{}, {'optimize_remat': True}, {'symbolic_zeros': True}])
  def test_custom_vjp(self, what, options):
    self.check_custom_vjp(what, ('2d', True), options)

  @red('^NotImplementedError: custom_vjp symbolic_zeros support with '
       'shard_map is not implemented; please open an', cases=['function'])
  @red(COND_TRANSPOSE)
  @parameterized.parameters('function', 'branch')
  def test_custom_vjp_eagerly(self, what):
    self.check_custom_vjp(what, ('2d', False), {'symbolic_zeros': True})

  @red(JVP_SHAPES, cases=['function', 'branch'])
  @red(JVP_SHAPES, bases='>=0.6.1,<0.7.2', cases=['branch_with_constant'])
  @red(SCAN_CARRY, cases=['scan', 'fori_loop'])
  @parameterized.product(what=list(WITHIN))
  def test_constant_slope(self, what):
    f = jax.custom_jvp(lambda x, w: jnp.sum(x) * w)
    f.defjvp(lambda p, t: (f(*p), jnp.ones(())))
    within = WITHIN[what](f)
    def g(x, w):
      return fill(x, jax.jvp(within, (x, w), (jnp.ones(x.shape), 1.))[1])
    w = np.float32(0.7)
    got = run(g, ('2d', True), w)
    want = blockwise(lambda x: g(x, w), MESHES['2d'], X)
    np.testing.assert_allclose(got, want, rtol=1e-5)


class CustomVjp3Test(jtu.JaxTestCase):
  """Custom derivative rules under jax_custom_vjp3."""

  def setUp(self):
    super().setUp()
    if not hasattr(jax_config, 'custom_vjp3'):
      self.skipTest('the option is newer')
    self.enter_context(jax_config.custom_vjp3(True))

  @red(OTHER_EXPECTED_TYPE, bases='>=0.9.1')
  @parameterized.parameters(*UNVARYING)
  def test_unvarying_cotangent(self, make, where):
    unvarying_cotangent(make, where)

  @red(OTHER_EXPECTED_TYPE, bases='>=0.9.1')
  @parameterized.product(where=WHERE)
  def test_replicated_parameter_is_summed(self, where):
    f = jax.custom_vjp(lambda p: jnp.sum(p['x'] * p['w']))
    f.defvjp(lambda p: (f(p), p),
             lambda p, g: ({'x': None, 'w': jnp.sum(g * p['x'])},))
    def g(x, w):
      return x * gradient(lambda w: f({'x': x, 'w': w}), w)
    got = run(g, where, np.float32(2.))
    np.testing.assert_allclose(got, X * X.sum(), rtol=1e-5)

  @red(OTHER_EXPECTED_TYPE, bases='>=0.9.1', cases=['scan', 'vmap'])
  @red(OTHER_EXPECTED_TYPE, bases='>=0.9.2')
  @parameterized.product(what=['scan', 'vmap', 'remat'])
  def test_replicated_parameter_within(self, what):
    if what == 'remat' and jax.__version_info__ < (0, 9, 2):
      self.skipTest('such a rule has no transpose in jax.checkpoint there')
    f = jax.custom_vjp(lambda x, w: jnp.sum(x * w))
    f.defvjp(lambda x, w: (f(x, w), (x, w)),
             lambda r, g: (jnp.full(r[0].shape, g * r[1]), jnp.sum(g * r[0])))
    within = {
        'scan': lambda x, w: lax.scan(
            lambda c, r: (c + f(r, w), None), w + 0. * x[0, 0], x)[0],
        'vmap': lambda x, w: jnp.sum(jax.vmap(f, (0, None))(x, w)),
        'remat': jax.checkpoint(f)}[what]
    def g(x, w):
      return x * gradient(lambda w: within(x, w), w)
    got = run(g, ('2d', True), np.float32(2.))
    # The first carry of the scan is the parameter, once on each device.
    want = X.sum() + (4. if what == 'scan' else 0.)
    np.testing.assert_allclose(got, X * want, rtol=1e-5)

  @red(r"^TypeError: at , got fwd output type float32\[\] which doesn't "
       'match primal output type', bases='>=0.9.1')
  def test_unvarying_forward_result(self):
    f = jax.custom_vjp(lambda x: jnp.sum(x ** 2))
    f.defvjp(lambda x: (jnp.float32(3.), x), lambda x, g: (g * x,))
    def g(x):
      y, pull = jax.vjp(f, x)
      return y + pull(own_cotangent(jnp.sum(x)))[0]
    np.testing.assert_allclose(run(g, ('2d', True)), 3. + X, rtol=1e-6)

  def test_shape_mismatch_is_still_refused(self):
    f = jax.custom_vjp(lambda x: jnp.sum(x))
    f.defvjp(lambda x: (f(x), None), lambda r, g: (jnp.ones((3,)),))
    with self.assertRaisesRegex(ValueError, "doesn't match expected type"):
      run(lambda x: gradient(f, x), ('2d', True))


# Each as in the days of pmap, when the gradient of a sum was a sum.
TWICE = {
    'psum': lambda g: lax.psum(g, 'x'),
    'pmean': lambda g: lax.pmean(g, 'x'),
    'pmax': lambda g: lax.pmax(g, 'x'),
    'part': lambda g: g * 2. - lax.psum(g, 'x'),
    'jit': jax.jit(lambda g: 3. * lax.psum(g, 'x')),
    'cond': lambda g: lax.cond(
        g[0] > 0., lambda: lax.psum(g, 'x'), lambda: g),
    'scan': lambda g: lax.scan(
        lambda c, _: (lax.psum(c, 'x'), None), g, None, length=2)[0],
    'while_loop': lambda g: lax.while_loop(
        lambda c: c[0] < 9., lambda c: lax.psum(c, 'x'), g),
}

# The same result and none of it from a reduced cotangent.
ONCE = {
    'plain': lambda r, g: g,
    'scaled': lambda r, g: g + 0. * lax.psum(1., 'x'),
    'residual': lambda r, g: g * lax.psum(r, 'x') / 10.,
    'constant': lambda r, g: jnp.ones(g.shape),
    'beside': lambda r, g: jax.jit(
        lambda g: (g, lax.psum(g, 'x')))(g)[0],
    'scan': lambda r, g: lax.scan(
        lambda c, _: (c, lax.psum(c, 'x')), g, None, length=2)[0],
}


def summing(bwd):
  f = jax.custom_vjp(lambda v: lax.psum(v, 'x'))
  f.defvjp(lambda v: (f(v), v), lambda r, g: (bwd(r, g),))
  return f


class SummedTwiceTest(jtu.JaxTestCase):
  """Rules of which the result was reduced over the axes that it lacks."""

  def gradient(self, bwd, jit):
    f = summing(bwd)
    g = shard_map(
        lambda v: jax.grad(lambda v: jnp.sum(f(v)))(v),
        mesh=make_mesh(4), in_specs=P('x'), out_specs=P('x'))
    return maybe_jit(jit)(g)(np.arange(1., 5., dtype=np.float32))

  @red(REDUCTION_NOT_NAMED, bases='>=0.8.2')
  @red(NOT_REFUSED, bases='<0.8.2')
  @parameterized.parameters(*((what, True) for what in TWICE),
                            ('psum', False), ('scan', False))
  def test_sum_of_the_cotangent_is_refused(self, what, jit):
    with self.assertRaisesRegex(
        ValueError, r"reduces it over mesh axis 'x'.*return the cotangent as"):
      self.gradient(lambda r, g: TWICE[what](g), jit)

  @red(ONLY_BWD_RULE, bases='>=0.8.2')
  @parameterized.parameters(*((what, True) for what in ONCE),
                            ('plain', False), ('residual', False))
  def test_what_met_no_sum_is_cast(self, what, jit):
    got = self.gradient(ONCE[what], jit)
    np.testing.assert_allclose(got, np.ones(4), rtol=1e-6)

  @red(ONLY_BWD_RULE, bases='>=0.8.2')
  @parameterized.parameters(True, False)
  def test_a_part_is_summed(self, jit):
    # The result varies, and so the cotangent: each device has a part of it.
    f = jax.custom_vjp(lambda a, b: a * lax.psum(b, 'x'))
    f.defvjp(lambda a, b: (f(a, b), (a, lax.psum(b, 'x'))),
             lambda r, g: (g * r[1], lax.psum(g * r[0], 'x')))
    a, b = np.arange(1., 5.), np.arange(2., 6.)
    w = np.array([1., 10., 100., 1000.])
    g = shard_map(lambda a, b, w: w * f(a, b), mesh=make_mesh(4),
                  in_specs=P('x'), out_specs=P('x'))
    got = maybe_jit(jit)(jax.grad(lambda *x: jnp.sum(g(*x)), (0, 1)))(
        *(x.astype(np.float32) for x in (a, b, w)))
    self.assertAllClose(got, (w * b.sum(), np.full(4, (w * a).sum())),
                        check_dtypes=False)

  @red(ONLY_BWD_RULE, bases='>=0.8.2')
  def test_a_part_is_summed_along_one_of_two_axes(self):
    # Along 'y' neither the result nor what the rule is given varies.
    f = jax.custom_vjp(lambda a, b: a * lax.psum(b, ('x', 'y')))
    f.defvjp(lambda a, b: (f(a, b), (a, lax.psum(b, ('x', 'y')))),
             lambda r, g: (g * r[1], lax.psum(g * r[0], 'x')))
    a, b = np.arange(1., 3.), np.arange(2., 6.)
    g = shard_map(f, mesh=make_mesh(2, 2), in_specs=(P('x'), P(('x', 'y'))),
                  out_specs=P('x'))
    got = jax.jit(jax.grad(lambda *x: jnp.sum(g(*x)), (0, 1)))(
        a.astype(np.float32), b.astype(np.float32))
    self.assertAllClose(got, (np.full(2, b.sum()), np.full(4, a.sum())),
                        check_dtypes=False)

  @red(ONLY_BWD_RULE, bases='>=0.8.2')
  def test_a_part_is_summed_on_one_device(self):
    # A sum over one device is none, however often.
    g = shard_map(summing(lambda r, g: lax.psum(g, 'x')), mesh=make_mesh(1),
                  in_specs=P('x'), out_specs=P())
    got = jax.grad(lambda v: jnp.sum(g(v)))(np.ones(4, np.float32))
    np.testing.assert_allclose(got, np.ones(4))

  def test_as_the_message_says(self):
    got = self.gradient(
        lambda r, g: cast(lax.psum(g, 'x'), ('x',)), jit=True)
    np.testing.assert_allclose(got, np.full(4, 4.), rtol=1e-6)

  @red(ONLY_BWD_RULE, bases='>=0.8.2')
  def test_a_shape_and_a_flag_among_the_residuals(self):
    f = jax.custom_vjp(lambda v: lax.psum(v, 'x'))
    f.defvjp(lambda v: (f(v), (v.shape, True)),
             lambda r, g: (jnp.ones(r[0]) if r[1] else g,))
    g = shard_map(jax.grad(lambda v: jnp.sum(f(v))), mesh=make_mesh(4),
                  in_specs=P('x'), out_specs=P('x'))
    np.testing.assert_allclose(jax.jit(g)(np.arange(4.)), np.ones(4))

  @red(ONLY_BWD_RULE, bases='>=0.8.2')
  @red(NOT_REFUSED, bases='<0.8.2')
  def test_outside_of_it(self):
    for bwd, refused in ((lambda r, g: g, False),
                         (lambda r, g: lax.psum(g, 'x'), True)):
      g = shard_map(summing(bwd), mesh=make_mesh(4), in_specs=P('x'),
                    out_specs=P())
      value = jax.grad(lambda v: jnp.sum(g(v)))
      if refused:
        with self.assertRaisesRegex(ValueError, 'reduces it over mesh axis'):
          value(np.ones(4, np.float32))
      else:
        np.testing.assert_allclose(value(np.ones(4, np.float32)), np.ones(4))

  @red(ONLY_BWD_RULE, bases='>=0.8.2')
  @red('^ValueError: unexpected JAX type .*vjp function', bases='<0.6.1')
  def test_other_axis(self):
    # What was reduced over 'y' lacks 'x' for another reason.
    f = jax.custom_vjp(lambda v: lax.psum(v, 'x'))
    f.defvjp(lambda v: (f(v), None),
             lambda r, g: (cast(lax.psum(g, 'y'), ('y',)),))
    g = shard_map(
        lambda v: jax.grad(lambda v: jnp.sum(f(v) ** 2) / 2.)(v),
        mesh=make_mesh(2, 2), in_specs=P('x', 'y'), out_specs=P('x', 'y'))
    x = np.arange(4., dtype=np.float32).reshape(2, 2)
    want = np.full((2, 2), x.sum())
    np.testing.assert_allclose(jax.jit(g)(x), want, rtol=1e-6)

  @red(REDUCTION_NOT_NAMED, bases='>=0.8.2')
  @red(NOT_REFUSED, bases='<0.8.2')
  def test_one_of_two(self):
    f = jax.custom_vjp(lambda v, w: lax.psum(v * w, 'x'))
    f.defvjp(lambda v, w: (f(v, w), None),
             lambda r, g: (jnp.ones(g.shape), lax.psum(g, 'x')))
    g = shard_map(
        lambda v: sum(jax.grad(lambda *a: jnp.sum(f(*a)), (0, 1))(v, v)),
        mesh=make_mesh(4), in_specs=P('x'), out_specs=P('x'))
    with self.assertRaisesRegex(ValueError, 'reduces it over mesh axis'):
      g(np.ones(4, np.float32))

  @red(OTHER_EXPECTED_TYPE, bases='>=0.9.1')
  def test_under_custom_vjp3(self):
    if not hasattr(jax_config, 'custom_vjp3'):
      self.skipTest('the option is newer')
    with jax_config.custom_vjp3(True):
      got = self.gradient(ONCE['residual'], jit=True)
      np.testing.assert_allclose(got, np.ones(4), rtol=1e-6)
      with self.assertRaisesRegex(ValueError, 'reduces it over mesh axis'):
        self.gradient(lambda r, g: lax.psum(g, 'x'), jit=True)
