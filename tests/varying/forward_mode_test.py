# SPDX-License-Identifier: Apache-2.0
"""Forward-mode differentiation inside shard_map (jax#28193).

The tangent does not vary along the mesh axes that its primal varies along.
Every result is compared with the same function applied to each device's block
outside of shard_map.
"""
import itertools

from absl.testing import parameterized
import jax
from jax import lax
from jax._src import test_util as jtu
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
from testing.red import red
from testing.sharding import shard_map
from varying.testing.common import BlockwiseTestCase
from varying.testing.common import MESHES
from varying.testing.common import blockwise
from varying.testing.common import cast
from varying.testing.common import fill
from varying.testing.common import make_mesh
from varying.testing.common import maybe_jit

jax.config.parse_flags_with_absl()

# What pristine JAX says.
OTHER_SCALAR_COTANGENT = (r'^ValueError: unexpected JAX type \(e\.g\. '
                          r'shape/dtype\) for argument to vjp function: got '
                          r'float32\[\],')
UNLIKE_OPERANDS = ('^ValueError: Primitive mul requires varying manual axes '
                   r'to match, but got \[frozenset\(\),')
UNLIKE_AXES = '^ValueError: .*varying manual axes'
OTHER_AVALS = r'^AssertionError: \(ShapedArray\(float32\[4,2\]'
JAXPR_REFUSED = '^JaxprTypeError: .*while checking jaxpr'
CALL_OPERAND = {
    '<0.7': '^JaxprTypeError: Call primitive pjit passes operand',
    '>=0.7,<0.12': UNLIKE_OPERANDS,
    '>=0.12': '^JaxprTypeError: Call primitive jit passes operand',
}

# Eager shard_map compiles each operation, so it runs on one mesh only.
JIT, EAGER = [('1d', True), ('2d', True)], ('2d', False)
f0 = jax.dtypes.float0


def block_values():
  return np.random.RandomState(0).uniform(0.5, 2., (8, 4)).astype(np.float32)


def loss(x):
  return jnp.sum(jnp.sin(x) * x ** 2)


def own_tangent(x):  # the same on every device
  return jnp.arange(x.size, dtype=x.dtype).reshape(x.shape)


def shared_point(x):
  return 1. + own_tangent(x) / x.size


slope = jax.custom_jvp(lambda x: jnp.sin(x))
slope.defjvps(lambda t, ans, x: t * jnp.cos(x))

CAPTURED = jnp.array([2., 3.])  # an array that a jaxpr holds as a constant
FUNCTIONS = {
    'sin': jnp.sin,
    'captured': jax.jit(lambda x: jnp.sin(x * CAPTURED[0]) * CAPTURED[1]),
    'jit': jax.jit(lambda x: jnp.sin(x) * x),
    'remat': jax.checkpoint(lambda x: jnp.sin(x) * x),
    'custom_jvp': slope,
    'jit_custom_jvp': jax.jit(slope),
    'relu_softmax': lambda x: jax.nn.relu(x) + jax.nn.softmax(x, 0) ** 2,
    'stack': lambda x: jnp.stack([x, x * x])[1],
    'scatter': lambda x: x.at[0].set(x[1] ** 2),
    'where': lambda x: jnp.where(x > 1., x * x, 1.),
    'sort': lambda x: jnp.sort(x, 0) ** 2,
    'cumulative': lambda x: jnp.cumsum(x, 0) * jnp.cumprod(x, 0),
    'solve': lambda x: jnp.linalg.solve(
        jnp.eye(x.shape[0]) * 3. + x @ x.T, x),
    'scan': lambda x: lax.scan(
        lambda c, _: (c * jnp.cos(c), c), x, None, length=2)[0],
    'fori': lambda x: lax.fori_loop(0, 2, lambda i, c: c * c, x),
    'cond': lambda x: lax.cond(True, jnp.sin, jnp.cos, x),
    'linear_solve': lambda x: lax.custom_linear_solve(
        lambda y: 2. * y, x, lambda _, b: b / 2., symmetric=True),
}
# What pristine refuses on every base, in each direction.
FEWER_REFUSED = ['scan', 'fori', 'linear_solve']
MORE_REFUSED = ['custom_jvp', 'relu_softmax', 'scan', 'fori', 'linear_solve']
# What pristine gives the primal's type, whatever the tangent's is.
CALLS_OF_A_JAXPR = ['sin', 'jit', 'remat', 'jit_custom_jvp', 'cond', 'sort']


def hvp_forward_over_reverse(x):
  return jax.jvp(jax.grad(loss), (x,), (jnp.ones(x.shape, x.dtype),))[1]


def hvp_reverse_over_forward(x):
  v = jnp.ones(x.shape, x.dtype)
  return jax.grad(lambda x: jax.jvp(loss, (x,), (v,))[1])(x)


def hessian(x):
  return jax.hessian(loss)(x).sum((2, 3))


@red(UNLIKE_AXES, bases='<0.7')
class HessianVectorTest(BlockwiseTestCase):
  """The direction does not vary. Refused by every release since 0.6.0."""

  @red({
      '<0.6.1': OTHER_SCALAR_COTANGENT,
      '>=0.10,<0.10.1': UNLIKE_OPERANDS,
      '>=0.10.1':
          '^ValueError: Primitive mul requires varying manual axes to match, '
          r'but got \[frozenset\(\{',
  }, cases=['hvp_forward_over_reverse'])
  @red(CALL_OPERAND, cases=['hvp_reverse_over_forward'])
  @red(UNLIKE_AXES, bases='>=0.6.1,<0.10')
  @parameterized.product(
      f=[hvp_forward_over_reverse, hvp_reverse_over_forward], where=JIT)
  def test_hvp(self, f, where):
    self.check(f, where, block_values())

  @red(OTHER_SCALAR_COTANGENT, bases='<0.7')
  @parameterized.product(where=JIT)
  def test_hessian(self, where):
    self.check(hessian, where, block_values())

  @parameterized.product(where=[('2d', True), EAGER])
  def test_jacfwd(self, where):
    def f(x):
      return jax.jacfwd(lambda x: jnp.cumsum(jnp.exp(x), 0))(x).sum((0, 1))
    self.check(f, where, block_values())

  def test_jacfwd_of_a_loop(self):
    def f(x):
      return jax.jacfwd(FUNCTIONS['scan'])(x).sum((0, 1))
    self.check(f, ('2d', True), block_values())


@red(UNLIKE_AXES)
class JvpTest(BlockwiseTestCase):
  """jvp with a tangent that does not have its primal's varying axes."""

  def fewer(self, names, where):
    def f(x):
      return {n: jax.jvp(FUNCTIONS[n], (x,), (own_tangent(x),)) for n in names}
    self.check(f, where, block_values())

  def more(self, names, where):
    """Tangents vary, and primal outputs may be declared not to."""
    kind, jit = where
    mesh, x = make_mesh(*MESHES[kind]), block_values()
    spec = P(*mesh.axis_names)
    def f(x):
      p = shared_point(x)
      out = {n: jax.jvp(FUNCTIONS[n], (p,), (x,)) for n in names}
      return [y for y, _ in out.values()], [t + 0. * x for _, t in out.values()]
    g = shard_map(f, mesh=mesh, in_specs=spec, out_specs=(P(), spec))
    got = maybe_jit(jit)(g)(x)
    want = blockwise(f, MESHES[kind], x)  # has each device's primal outputs
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want)):
      self.assertEqual(a.dtype, b.dtype)
      np.testing.assert_allclose(a, b[tuple(map(slice, a.shape))], rtol=2e-5,
                                 atol=2e-5)

  @parameterized.parameters(
      ('1d', ['jit', 'stack']),
      ('2d', [n for n in FUNCTIONS if n not in FEWER_REFUSED]))
  def test_tangent_varies_less(self, kind, names):
    self.fewer(names, (kind, True))

  @red(OTHER_AVALS, cases=['linear_solve'])
  @parameterized.product(name=FEWER_REFUSED)
  def test_tangent_varies_less_refused(self, name):
    self.fewer([name], ('2d', True))

  @parameterized.parameters(
      ('1d', ['jit', 'stack']),
      ('2d', [n for n in FUNCTIONS if n not in [*MORE_REFUSED, 'solve']]))
  def test_tangent_varies_more(self, kind, names):
    self.more(names, (kind, True))

  @red('^TypeError: Custom JVP rule must produce primal and tangent outputs '
       'with corresponding shapes', cases=['custom_jvp', 'relu_softmax'])
  @red(OTHER_AVALS, cases=['linear_solve'])
  @parameterized.product(name=MORE_REFUSED)
  def test_tangent_varies_more_refused(self, name):
    self.more([name], ('2d', True))

  @red(OTHER_AVALS)
  def test_eager(self):
    self.fewer(['linear_solve'], EAGER)
    self.more(['custom_jvp', 'jit', 'remat'], EAGER)

  @red({
      '<0.8.1':
          '^ValueError: Collective psum_invariant must be applied to a '
          'device-varying type, but got',
      '>=0.8.1':
          r'^ValueError: psum is a variant->invariant collective\. This means '
          'that the axis names mentioned',
  }, cases=['psum', 'pmean'])
  @red('^ValueError: Collective.*must be applied to a '
       r'device-varying\s+type, but got frozenset\(\) for co')
  @parameterized.product(
      collective=['psum', 'pmean', 'all_gather', 'ppermute', 'all_to_all',
                  'psum_scatter'])
  def test_collective(self, collective):
    ring = [(i, (i + 1) % 4) for i in range(4)]
    g = {'psum': lambda x: lax.psum(x, 'x'),
         'pmean': lambda x: lax.pmean(x, 'x'),
         'all_gather': lambda x: lax.all_gather(x, 'x'),
         'ppermute': lambda x: lax.ppermute(x, 'x', ring),
         'all_to_all': lambda x: lax.all_to_all(x, 'x', 0, 0, tiled=True),
         'psum_scatter': lambda x: lax.psum_scatter(x, 'x', tiled=True),
         }[collective]
    x = np.random.RandomState(0).rand(16, 4).astype(np.float32)
    t = np.random.RandomState(1).rand(4, 4).astype(np.float32)
    mesh, spec = make_mesh(4), P('x')
    def f(x, t):
      y = jax.jvp(g, (x,), (t,))[1]
      return y.sum()[None] + 0. * x[:1, 0]
    h = shard_map(f, mesh=mesh, in_specs=(spec, P()), out_specs=spec)
    got = jax.jit(h)(x, t)
    blocks = np.broadcast_to(t, (4, 4, 4))
    want = jax.vmap(lambda t: g(t).sum(), axis_name='x')(blocks)
    np.testing.assert_allclose(got, want, rtol=1e-5)

  @parameterized.product(where=[('2d', True), EAGER])
  def test_python_scalars(self, where):
    def f(x):
      s = x[0, 0]
      a = jax.jvp(jnp.sin, (s,), (1.,))[1]
      b = jax.jvp(lambda y: x * y, (2.,), (1.,))[1]
      c = jax.jvp(jnp.sin, (2.,), (s,))[1]
      d = jax.jvp(jax.jit(jnp.sin), (s,), (1.,))[1]
      return fill(x, a + c + d) + b
    self.check(f, where, block_values())

  def test_integer_argument(self):
    def f(x):
      i = (x * 5.).astype(int)
      return jax.jvp(lambda x, i: x * i.astype(x.dtype), (x, i),
                     (jnp.ones(x.shape), np.zeros(x.shape, f0)))[1]
    self.check(f, ('2d', True), block_values())


# grad of jvp. 0.10.2 and later refuse most of these while transposing; 0.6.0
# refuses all, at the cotangent.
GRAD_OF_JVP = ['remat', 'relu_softmax', 'stack', 'sort', 'scan',
               'linear_solve', 'where']


class GradOfJvpTest(BlockwiseTestCase):

  @red(JAXPR_REFUSED, cases=['sort'])
  @red(CALL_OPERAND, cases=['where', 'relu_softmax'])
  @red(OTHER_AVALS, cases=['remat', 'linear_solve'])
  @red(UNLIKE_AXES)
  @parameterized.parameters(
      *((n, w) for n in GRAD_OF_JVP for w in ('primal', 'tangent')
        if (n, w) != ('linear_solve', 'primal')))
  def test_unvarying_factor(self, name, which):
    x = block_values()
    mesh, spec = make_mesh(2, 2), P('x', 'y')
    def directional(s, x, reduce):
      t = jnp.ones(x.shape)
      p, t = (x * s, t) if which == 'primal' else (x, t * s)
      return reduce(jnp.sum(jax.jvp(FUNCTIONS[name], (p,), (t,))[1] * x))
    def f(x):
      total = lambda v: lax.psum(v, ('x', 'y'))
      return jax.grad(lambda s: directional(s, x, total))(jnp.float32(1.1))
    got = jax.jit(shard_map(f, mesh=mesh, in_specs=spec, out_specs=P()))(x)
    alone = jax.grad(lambda s, b: directional(s, b, lambda v: v))
    want = blockwise(lambda b: fill(b, alone(jnp.float32(1.1), b)), (2, 2), x)
    want = want[::4, ::2].sum()
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


# Of a point that all devices share and a device's number.
LOSSES = {
    'square': lambda w, x: w ** 2 * x,
    'sine': lambda w, x: jnp.sin(w * x),
    'product': lambda w, x: jnp.exp(w) * x * w,
}
AROUND = {
    'plain': lambda g: g,
    'jit': jax.jit,
    'remat': jax.checkpoint,
    'cond': lambda g: lambda w: lax.cond(w > 0., g, lambda w: w, w),
}


@jtu.with_config(jax_enable_checks=False)  # upstream's own programs fail them
class OwnDirectionTest(jtu.JaxTestCase):
  """A gradient that was summed over devices, along each one's own direction."""

  # JaxprTypeError: of a call that was typed wrongly. Upstream's test settings
  # look for that; a user's program is accepted with the wrong type.
  @red(OTHER_SCALAR_COTANGENT, bases='<0.6.1')
  @parameterized.parameters(
      ('product', 'plain'),
      *itertools.product(LOSSES, ('jit', 'remat', 'cond')))
  def test_slope(self, loss, around):
    # Directions are typed as varying, and are alike.
    def f(x):
      g = AROUND[around](jax.grad(lambda w: LOSSES[loss](w, x[0])))
      direction = cast(jnp.float32(.5), 'x')
      return jax.jvp(g, (jnp.float32(1.),), (direction,))[1] + 0. * x
    x = np.float32([.5, 1., 1.5, 2.])
    run = shard_map(f, mesh=make_mesh(4), in_specs=P('x'), out_specs=P('x'))
    slope = jax.grad(jax.grad(lambda w: sum(LOSSES[loss](w, a) for a in x)))
    self.assertAllClose(jax.jit(run)(x), np.full(4, .5 * slope(1.), np.float32))


@red({
    '<0.6.1': OTHER_SCALAR_COTANGENT,
    '>=0.6.1': '^TypeError: .*must have equal types',
})
class DerivativeInLoopTest(BlockwiseTestCase):
  """A step along a gradient; the carry begins the same on every device."""

  @parameterized.parameters('scan', 'while', 'cond', 'weak')
  def test_step(self, kind):
    # At the carry's final type, the gradient isn't summed over devices.
    def f(x):
      y = x.reshape(-1)
      grad = jax.grad(lambda c: (jnp.sin(c) * y).sum())
      step = lambda c: c - .1 * grad(c) + y[0]
      if kind == 'while':
        return fill(x, lax.while_loop(
            lambda s: s[0] < 3, lambda s: (s[0] + 1, step(s[1])), (0, .5))[1])
      if kind == 'cond':
        half = lambda c: lax.cond(c > 1., step, lambda c: c + y[1], c)
        return lax.scan(lambda c, a: (half(c), c), .5, y)[1].reshape(x.shape)
      init = 1 if kind == 'weak' else .5
      return lax.scan(lambda c, a: (step(c * 1.), step(c * 1.)), init, y)[
          1].reshape(x.shape)
    self.check(f, ('2d', True), block_values())

  def test_one_value_in_two_carries(self):
    # What each must vary over is its own. Found by random programs (530029).
    def f(b, c, w):
      def step(_, carry):
        loss = lambda u: jnp.sum(lax.psum(u * w * b[0], 'x'))
        return c[0, 0], jax.grad(loss)(carry[1])
      return lax.fori_loop(jnp.argmax(b) * 0, 2, step, (w, w))[1][None]
    b, w = np.arange(6., dtype='f').reshape(2, 3), np.float32([1, 2, 3])
    g = shard_map(f, mesh=make_mesh(2, 2), in_specs=(P('y'), P('x', 'y'), P()),
                  out_specs=P('y'))
    got = jax.jit(g)(b, np.ones((2, 2, 3), 'f'), w)
    np.testing.assert_allclose(got, 2 * w * b)

  @parameterized.parameters(True, False)
  def test_one_value_in_two_carries_one_untouched(self, jit):
    # Which of them became a constant of the loop? Random programs: 530649.
    def f(a, b, w):
      def step(_, carry):
        kept, grown = carry
        slope = jax.grad(lambda u: jnp.sum(jnp.sin(b[0]) * u))(w)
        return kept, b[0] * slope
      kept, grown = lax.fori_loop((a[0, 0] * 0).astype(int), 2, step,
                                  (w, w))
      return kept, grown[None, None]
    a, b = np.arange(6., dtype='f').reshape(2, 3)[::-1], np.ones((2, 3), 'f')
    w = np.float32([1, 2, 3])
    g = shard_map(f, mesh=make_mesh(2, 2), in_specs=(P('x'), P('y'), P()),
                  out_specs=(P(), P('x', 'y')))
    kept, grown = maybe_jit(jit)(g)(a, b, w)
    np.testing.assert_array_equal(kept, w)
    np.testing.assert_allclose(
        grown, np.full((2, 2, 3), 2 * np.sin(1.)), rtol=1e-5)


class TypesTest(BlockwiseTestCase):
  """Outputs that may be declared to be equal on all devices."""

  def run_with(self, f, out_specs):
    mesh, spec = make_mesh(2, 2), P('x', 'y')
    return jax.jit(shard_map(f, mesh=mesh, in_specs=spec, out_specs=out_specs))(
        block_values())

  @red({
      '<0.11':
          r'^AssertionError: \(ShapedArray\(float32\[\]\), '
          r'ShapedArray\(float32\[\]\{',
      '>=0.11':
          '^ValueError: linearized function called on tangent values '
          'inconsistent with the original primal',
  }, cases=['root'])
  @red(JAXPR_REFUSED, cases=['auxiliary', 'nested'])
  @parameterized.parameters('loop', 'root', 'auxiliary', 'nested')
  def test_primal_output(self, what):
    # Through jit within jit; the tangent of each is the derivative times x.
    def f(x):
      w, t = jnp.float32(1.5), x[0, 0]
      if what == 'loop':
        g = lambda w: lax.while_loop(lambda s: s[0] < 3,
                                     lambda s: (s[0] + 1, s[1] * w), (0, w))[1]
      elif what == 'root':
        g = lambda w: lax.custom_root(
            lambda y: y ** 2 - w, w, lambda f, y: jnp.sqrt(w),
            lambda g, y: y / g(1.))
      else:
        g = jax.jit(lambda w: jax.jit(jnp.sin)(w) * jax.nn.silu(w))
      if what == 'auxiliary':
        y, yt, aux = jax.jvp(lambda w: (g(w), w * 2.), (w,), (t,),
                             has_aux=True)
        y = y + aux
      elif what == 'nested':
        y, yt = jax.jvp(lambda w: jax.jvp(g, (w,), (2.,))[1], (w,), (t,))
      else:
        y, yt = jax.jvp(g, (w,), (t,))
      return y, fill(x, yt / t)
    y, slope = self.run_with(f, (P(), P('x', 'y')))
    w = 1.5
    s = 1 / (1 + np.exp(-w))
    silu, d_silu = w * s, s + w * s * (1 - s)
    d2_silu = 2 * s * (1 - s) + w * s * (1 - s) * (1 - 2 * s)
    first = np.cos(w) * silu + np.sin(w) * d_silu
    second = -np.sin(w) * silu + 2 * np.cos(w) * d_silu + np.sin(w) * d2_silu
    want = {'loop': (w ** 4, 4 * w ** 3),
            'root': (np.sqrt(w), 0.5 / np.sqrt(w)),
            'auxiliary': (np.sin(w) * silu + 2 * w, first),
            'nested': (2. * first, 2. * second)}[what]
    np.testing.assert_allclose(y, want[0], rtol=1e-5)
    np.testing.assert_allclose(slope, np.full((8, 4), want[1]), rtol=1e-5)

  @red('^AssertionError: "replication" does not match "Primitive mul '
       'requires varying manual axes to match,', cases=['sin'])
  @red('^AssertionError: ValueError not raised', cases=['remat'])
  @red(JAXPR_REFUSED)
  @parameterized.parameters(*CALLS_OF_A_JAXPR)
  def test_unsound_tangent_is_not_the_same(self, name):
    def f(x):
      return jax.jvp(FUNCTIONS[name], (shared_point(x),), (x,))[1]
    with self.assertRaisesRegex(ValueError, 'replication'):
      self.run_with(f, P())

  def test_tangent_of_an_operation_that_reads_no_primal(self):
    # Linear with constant coefficients, so the primal's axes don't matter.
    def f(x):
      g = lambda x: lax.neg(lax.transpose(x, (1, 0)))
      return jax.jvp(g, (x,), (own_tangent(x),))[1]
    got = self.run_with(f, P())
    np.testing.assert_allclose(got, -own_tangent(block_values()[:4, :2]).T)

  @red(UNLIKE_AXES)
  def test_point_varies_along_one_axis_and_tangent_along_the_other(self):
    x = block_values()
    mesh = make_mesh(2, 2)
    def f(x, y):
      p, t = jax.jvp(FUNCTIONS['scan'], (x[:, 0],), (y[:, 0],))
      return p, t[:, None]
    g = jax.jit(shard_map(f, mesh=mesh, in_specs=(P('x'), P(None, 'y')),
                          out_specs=(P('x'), P('x', 'y'))))
    p, t = g(x[:, :1], x[:4, :2])
    want = [[jax.jvp(FUNCTIONS['scan'], (x[i:i + 4, 0],), (x[:4, j],))
             for j in (0, 1)] for i in (0, 4)]
    np.testing.assert_allclose(
        p, np.concatenate([row[0][0] for row in want]), rtol=1e-5)
    np.testing.assert_allclose(
        t, np.concatenate([np.stack([c[1] for c in row], 1) for row in want]),
        rtol=1e-5)

  def test_matching_jvp_is_not_changed(self):
    mesh, spec = make_mesh(2, 2), P('x', 'y')
    f = shard_map(lambda x: jax.jvp(FUNCTIONS['scan'], (x,), (x,))[1],
                  mesh=mesh, in_specs=spec, out_specs=spec)
    text = str(jax.make_jaxpr(f)(block_values()))
    self.assertNotIn('pvary', text)
    self.assertNotIn('pcast', text)


# A collective, and what it makes of [x, y, ...] values, all devices' in numpy.
COLLECTIVES = {
    'psum': (lambda t: lax.psum(t, ('x', 'y')),
             lambda a: np.broadcast_to(a.sum((0, 1)), a.shape)),
    'pmean': (lambda t: lax.pmean(t, ('x', 'y')),
              lambda a: np.broadcast_to(a.mean((0, 1)), a.shape)),
    'psum_scatter': (
        lambda t: lax.psum_scatter(t, ('x', 'y'), tiled=True),
        lambda a: a.sum((0, 1)).reshape(*a.shape[:2], -1)),
}
DIRECTIONS = {
    'shared': lambda w: w,
    'along_x': lambda w: w * jnp.float32(1 + lax.axis_index('x')),
    'along_y': lambda w: w * jnp.float32(1 + 2 * lax.axis_index('y')),
}


class DirectionOfCollectiveTest(jtu.JaxTestCase):
  """The gradient by a tangent that varies over some axes of a collective."""

  @red('^ValueError: Collective reduce_scatter must be applied to a device',
       cases=['psum_scatter'])
  @red({
      '<0.8.1': '^ValueError: Collective psum_invariant must be applied to a ',
      '>=0.8.1': '^ValueError: psum is a variant->invariant collective',
  }, cases={'direction': 'shared'})
  @red({
      '<0.6.1': r'^_RepError: \[<jax\.experimental\.shard_map\.NoFail',
      '>=0.6.1,<0.7': r'^_RepError: \[<jax\._src\.shard_map\.NoFail',
      '>=0.7,<0.8.2': r"^ValueError: .*'transpose\(f\)' was given out_specs",
      '>=0.8.2,<0.10': '^ValueError: Input primal JAX type to VJP function is ',
      '>=0.10': '^ValueError: Expected cotangent type float32',
  })
  @parameterized.product(
      collective=list(COLLECTIVES), direction=list(DIRECTIONS),
      where=[('2d', True), ('column', True), ('2d', False)])
  def test_gradient(self, collective, direction, where):
    sizes, jit = {'2d': (2, 2), 'column': (4, 1)}[where[0]], where[1]
    on_device, on_all = COLLECTIVES[collective]
    w = np.array([.5, .7, .9, .2], np.float32)
    x, y = np.mgrid[:sizes[0], :sizes[1]][..., None]
    factor = {'shared': 0. * x + 1., 'along_x': 1. + x,
              'along_y': 1. + 2. * y}[direction] + 0. * y
    weight = np.arange(1., 5.).reshape(*sizes, 1)
    def f(b, w, weight):
      out = jax.jvp(on_device, (b[0, 0],), (DIRECTIONS[direction](w),))[1]
      return (out.sum() * weight[0, 0, 0])[None, None]
    f = shard_map(f, mesh=make_mesh(*sizes), out_specs=P('x', 'y'),
                  in_specs=(P('x', 'y'), P(), P('x', 'y')))
    got = maybe_jit(jit)(jax.grad(lambda w: f(
        np.ones((*sizes, 4), np.float32), w, weight.astype('float32')).sum()
    ))(w)
    want = [(on_all(factor * e) * weight).sum() for e in np.eye(4)]
    np.testing.assert_allclose(got, want, rtol=1e-5)


class LoopsByGatheredNumbersTest(jtu.JaxTestCase):
  """Loops that all devices go round equally often, by a number they share."""

  @parameterized.product(jit=[True, False], loop=['fori', 'while'])
  def test_derivative(self, jit, loop):
    x, t = block_values()[:4], np.linspace(-1., 1., 16).reshape(4, 4)

    def f(x):
      trips = (lax.all_gather(x, 'x').max() * 3).astype(int)
      if loop == 'fori':
        return lax.fori_loop(0, trips, lambda i, y: y * x, x)
      return lax.while_loop(lambda c: c[0] < trips,
                            lambda c: (c[0] + 1, c[1] * x),
                            (trips * 0, x))[1]
    g = shard_map(f, mesh=make_mesh(4), in_specs=P('x'), out_specs=P('x'))
    ans, rate = maybe_jit(jit)(lambda x, t: jax.jvp(g, (x,), (t,)))(
        x, t.astype(x.dtype))
    n = int(x.max() * 3) + 1
    np.testing.assert_allclose(ans, x ** n, rtol=1e-5)
    np.testing.assert_allclose(rate, n * x ** (n - 1) * t, rtol=1e-4)
