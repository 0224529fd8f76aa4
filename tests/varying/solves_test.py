# SPDX-License-Identifier: Apache-2.0
"""What varies in linear solves and roots inside shard_map (issue 3)."""
from absl.testing import parameterized
import jax
import jax.extend
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
COTANGENT_MISMATCH = '^TypeError: cotangent type does not match function output'
OTHER_AVALS = (r'^AssertionError: \(ShapedArray\(float32\[3\]\), '
               r'ShapedArray\(float32\[3\]\{')
CALL_MISMATCH = r'^JaxprTypeError: Closed call in_avals mismatch\s+in equation:'
SCAN_CARRY = ('^TypeError: scan body function carry input and carry output '
              'must have equal types')
OTHER_COTANGENT = {
    '<0.6.1':
        r'^ValueError: unexpected JAX type .* got float32\[3\], but expected '
        r'float32\[3\]\{x\}',
    '>=0.6.1,<0.7':
        r'^ValueError: unexpected JAX type .* got float32\[3\], but expected '
        r'float32\[3\]\{[V:]*x\}',
    '>=0.7,<0.8.1': OTHER_AVALS,
    '>=0.8.1,<0.9':
        r'^TypeError: _psum_invariant_abstract_eval\(\) got an unexpected '
        'keyword',
    '>=0.9,<0.11.2': OTHER_AVALS,
    '>=0.11.2': CALL_MISMATCH,
}

F32 = np.float32
MESHES = {'1d': (4,), '2d': (4, 2)}
B = np.arange(1, 4, dtype=F32)


def matrices():
  diagonals = 1 + np.arange(12, dtype=F32).reshape(4, 3) / 4
  return np.eye(3, dtype=F32) * diagonals[:, None]


def invert(a, b):
  return b / jnp.diagonal(a)  # as long as `a` is diagonal


def solve(a, b, symmetric=False):
  return lax.custom_linear_solve(
      lambda x: a @ x, b, lambda _, b: invert(a, b),
      None if symmetric else (lambda _, b: invert(a.T, b)),
      symmetric=symmetric)


def solve_with_more(a, b):
  """A solve that returns two numbers beside the solution."""
  def more(a, b):
    return invert(a, b), {'a': jnp.sum(a), 'one': F32(1.)}
  x, found = lax.custom_linear_solve(
      lambda x: a @ x, b, lambda _, b: more(a, b), lambda _, b: more(a.T, b),
      has_aux=True)
  return x + found['a'] * found['one']


def spread_solve(a, b):
  """Solves with the sum of all devices' matrices."""
  return lax.custom_linear_solve(
      lambda x: lax.psum(a @ x, 'x'), b,
      lambda _, b: invert(lax.psum(a, 'x'), b),
      lambda _, b: invert(lax.psum(a, 'x').T, b))


def of_sums(d):
  return lax.custom_linear_solve(
      lambda u: u * lax.psum(1. + d ** 2, 'x'), lax.psum(d, 'x'),
      lambda f, u: u / f(jnp.ones(3)), symmetric=True)


def meeting(v):
  """``v``, mapped, so that vmap adds up what the devices have."""
  return v + 0. * lax.axis_index('x').astype(F32)


def cube_root(a):
  return lax.custom_root(
      lambda y: y ** 3 - a, F32(1.),
      lambda f, y: lax.stop_gradient(jnp.cbrt(a)) + 0 * y,
      lambda g, y: y / g(F32(1.)))


def several_roots(a, b):
  """Solves `a y + y^3 / 8 = b` by Newton's method."""
  return root_with_casts(a, b, uncast)


def solve_with_casts(a, b, by_hand):
  """A solve whose functions cast what they are given."""
  return lax.custom_linear_solve(
      lambda x: a @ by_hand(x), b, lambda _, b: invert(a, by_hand(b)),
      lambda _, b: invert(a.T, by_hand(b)))


def root_with_casts(a, b, by_hand):
  """Solves ``a y + y^3 / 8 = b``, by functions that cast what they are given.

  Newton's first step casts the guess; what follows varies already.
  """
  def newton(f, y):
    y = y - jnp.linalg.solve(a + jnp.diag(by_hand(y) ** 2) * .375, f(y))
    for _ in range(5):
      y = y - jnp.linalg.solve(a + jnp.diag(y ** 2) * .375, f(y))
    return y
  return lax.custom_root(
      lambda y: a @ y + y ** 3 / 8 - b, jnp.zeros(3), newton,
      lambda g, y: jnp.linalg.solve(jax.jacobian(g)(y), y))


def equation_with_casts(a, b, by_hand):
  """The root of a function that casts its own argument."""
  return lax.custom_root(
      lambda y: a @ by_hand(y) - b, jnp.zeros(3),
      lambda f, y: y - invert(a, f(y)), lambda g, y: invert(a, y))


def uncast(x):
  return x


def exact(a, b):
  return np.linalg.solve(a.astype(np.float64), b).astype(F32)


class SolvesTest(jtu.JaxTestCase):

  @red('^TypeError: cotangent type does not match function output, expected '
       r'\(ShapedArray\(float32\[3\]\{', cases={'symmetric': False})
  @red(OTHER_AVALS)
  @parameterized.product(jit=[False, True], symmetric=[False, True])
  def test_matrix_varies_and_vector_does_not(self, jit, symmetric):
    a = matrices()
    f = shard_map(lambda a, b: solve(a[0], b, symmetric)[None],
                  mesh=make_mesh(4, 2), in_specs=(P('x'), P()),
                  out_specs=P('x'))
    self.assertAllClose(maybe_jit(jit)(f)(a, B),
                        np.stack([exact(m, B) for m in a]), rtol=1e-3)

  @red(COTANGENT_MISMATCH)
  @parameterized.product(jit=[False, True])
  def test_gradients(self, jit):
    a = matrices()
    f = shard_map(lambda a, b: solve(a[0], b)[None], mesh=make_mesh(4, 2),
                  in_specs=(P('x'), P()), out_specs=P('x'))
    loss = lambda a, b: jnp.sum(f(a, b))
    da, db = maybe_jit(jit)(jax.grad(loss, (0, 1)))(a, B)
    left = [exact(m.T, np.ones(3)) for m in a]
    self.assertAllClose(db, np.sum(left, 0), rtol=1e-3)
    self.assertAllClose(
        da, np.stack([-np.outer(u, exact(m, B)) for u, m in zip(left, a)]),
        rtol=1e-3, atol=1e-4)

  @red(COTANGENT_MISMATCH)
  @parameterized.product(mesh=list(MESHES))
  def test_second_derivatives(self, mesh):
    a, weights = matrices(), np.arange(12, dtype=F32).reshape(4, 3)
    def product(f):
      loss = lambda a, b: jnp.sum(f(a, b) * weights)
      return jax.jit(lambda a, b: jax.jvp(
          jax.grad(loss, (0, 1)), (a, b), (jnp.cos(a), jnp.sin(b)))[1])(a, B)
    f = shard_map(lambda a, b: solve(a[0], b)[None],
                  mesh=make_mesh(*MESHES[mesh]), in_specs=(P('x'), P()),
                  out_specs=P('x'))
    self.assertAllClose(product(f), product(jax.vmap(solve, (0, None))),
                        rtol=1e-3, atol=1e-4)

  def check_rows(self, fun, rows, mesh, jit=True, alone=None):
    """Against one device, where operands named in ``rows`` vary along 'x'."""
    a, b = matrices(), np.outer(np.arange(1, 5, dtype=F32), B)
    args = a if 'a' in rows else a[0], b if 'b' in rows else b[0]
    own = lambda n, x: x[0] if n in rows else x
    f = shard_map(
        lambda a, b: fun(own('a', a), own('b', b))[None],
        mesh=make_mesh(*MESHES[mesh]), out_specs=P('x'),
        in_specs=tuple(P('x') if n in rows else P() for n in 'ab'))
    alone = jax.vmap(alone or fun, [0 if n in rows else None for n in 'ab'])
    loss = lambda f: jax.value_and_grad(
        lambda *args: jnp.sum(jnp.sin(f(*args))), (0, 1))
    self.assertAllClose(maybe_jit(jit)(loss(f))(*args),
                        jax.jit(loss(alone))(*args), rtol=1e-3, atol=1e-4)

  @red(COTANGENT_MISMATCH, cases=['solve_with_casts'])
  @red(OTHER_COTANGENT, cases=['root_with_casts'])
  @red({
      '<0.11.2': OTHER_AVALS,
      '>=0.11.2': CALL_MISMATCH,
  })
  @parameterized.parameters(
      (solve_with_casts, '1d', True), (root_with_casts, '2d', True),
      (equation_with_casts, '1d', True), (solve_with_casts, '2d', False))
  def test_casts_by_hand(self, fun, mesh, jit):
    # They are traced again, with a start that varies.
    by_hand = lambda x: cast(x, ('x',))
    self.check_rows(lambda a, b: fun(a, b, by_hand), 'a', mesh, jit,
                    lambda a, b: fun(a, b, uncast))

  @red(COTANGENT_MISMATCH, cases=['a'])
  @red('^ValueError: Primitive linear_solve requires varying manual axes to '
       r"match, but got .frozenset.{'x'}., frozenset\(")
  @parameterized.parameters(('a', '1d', True), ('b', '2d', True),
                            ('ab', '1d', True), ('a', '2d', False))
  def test_what_a_solver_returns_beside(self, rows, mesh, jit):
    self.check_rows(solve_with_more, rows, mesh, jit)

  def test_what_a_solver_returns_beside_varies_alike(self):
    def fun(a, b):
      more = lambda a, b: (invert(a, b), jnp.sum(a))
      x, found = lax.custom_linear_solve(
          lambda x: a @ x, b, lambda _, b: more(a, b),
          lambda _, b: more(a.T, b), has_aux=True)
      return x * found
    self.check_rows(fun, 'ab', '1d')

  @red('^ValueError: .*require replication', cases=[True])
  @red(OTHER_AVALS)
  @parameterized.product(jit=[False, True])
  def test_matrix_spread_over_the_devices(self, jit):
    # The solution is the same everywhere, and may be said to be.
    a = matrices()
    whole = a.sum(0)
    f = shard_map(lambda a, b: spread_solve(a[0], b), mesh=make_mesh(4, 2),
                  in_specs=(P('x'), P()), out_specs=P())
    self.assertAllClose(maybe_jit(jit)(f)(a, B), exact(whole, B), rtol=1e-3)
    loss = lambda a, b: jnp.sum(f(a, b))
    da, db = maybe_jit(jit)(jax.grad(loss, (0, 1)))(a, B)
    left = exact(whole.T, np.ones(3))
    self.assertAllClose(db, left, rtol=1e-3)
    self.assertAllClose(
        da, np.stack([-np.outer(left, exact(whole, B))] * 4), rtol=1e-3,
        atol=1e-4)

  @red(SCAN_CARRY)
  @parameterized.product(mesh=list(MESHES), jit=[False, True])
  def test_typed_again_in_a_loop(self, mesh, jit):
    # What is summed inside stays the same everywhere when its operands grow.
    def fun(v):
      step = lambda c, _: ((c[0] * .5 + v, of_sums(c[0])), None)
      return lax.scan(step, (jnp.ones(3), jnp.zeros(3)), None, length=2)[0][1]

    self.check_sums(fun, mesh, jit)

  @red(OTHER_AVALS)
  @parameterized.product(mesh=list(MESHES))
  def test_typed_again_when_converted(self, mesh):
    def fun(v):
      jaxpr = jax.make_jaxpr(of_sums)(jnp.ones(3))
      return jax.extend.core.jaxpr_as_fun(jaxpr)(v)[0]

    self.check_sums(fun, mesh, True)

  def check_sums(self, fun, mesh, jit):
    v = np.linspace(.5, 2., 12, dtype=F32).reshape(4, 3)
    f = shard_map(lambda v: fun(v[0]), mesh=make_mesh(*MESHES[mesh]),
                  in_specs=P('x'), out_specs=P())
    alone = lambda v: jax.vmap(lambda v: fun(meeting(v)),
                               axis_name='x')(v)[0]
    loss = lambda f: jax.value_and_grad(lambda v: jnp.sum(jnp.sin(f(v))))
    self.assertAllClose(maybe_jit(jit)(f)(v), jax.jit(alone)(v), rtol=1e-4)
    self.assertAllClose(maybe_jit(jit)(loss(f))(v), jax.jit(loss(alone))(v),
                        rtol=1e-3, atol=1e-4)

  @red('^TypeError: cond branches must have equal output types')
  @parameterized.product(jit=[False, True])
  def test_typed_again_in_a_branch(self, jit):
    # Where devices diverge along 'y', with a sum over 'x'.
    def fun(v, u):
      key = jax.random.key(3)
      return lax.cond(
          jnp.sum(u) > 2., lambda: (of_sums(v), key),
          lambda: (u, jax.random.fold_in(key, jnp.argmax(of_sums(v * u)))))

    def body(v, u):
      out, key = fun(v[0], u[0])
      return out[None], jax.random.uniform(key, (3,))[None]

    v = np.linspace(.5, 2., 12, dtype=F32).reshape(4, 3)
    u = np.array([[.1, .2, .3], [1., 2., 3.]], F32)
    f = shard_map(body, mesh=make_mesh(4, 2), in_specs=(P('x'), P('y')),
                  out_specs=P('y'))
    drawn = lambda v, u: (lambda out, key: (
        out, jax.random.uniform(key, (3,))))(*fun(meeting(v), u))
    alone = lambda v, u: jax.tree.map(lambda x: x[0], jax.vmap(
        jax.vmap(drawn, (None, 0)), (0, None), axis_name='x')(v, u))
    self.assertAllClose(maybe_jit(jit)(f)(v, u), jax.jit(alone)(v, u),
                        rtol=1e-4)
    loss = lambda f: jax.grad(lambda *a: jnp.sum(jnp.sin(f(*a)[0])), (0, 1))
    self.assertAllClose(maybe_jit(jit)(loss(f))(v, u),
                        jax.jit(loss(alone))(v, u), rtol=1e-3, atol=1e-4)

  def test_claim_of_replication_is_refused(self):
    f = shard_map(lambda a, b: solve(a[0], b, True), mesh=make_mesh(4),
                  in_specs=(P('x'), P()), out_specs=P())
    with self.assertRaisesRegex(ValueError, 'replicat'):
      jax.eval_shape(f, matrices(), B)

  @red({
      '<0.6.1':
          r'^AssertionError: \(ShapedArray\(float32\[\]\), '
          r'ShapedArray\(float32\[\]\{x\}\)\)',
      '>=0.6.1,<0.8':
          r'^AssertionError: \(ShapedArray\(float32\[\]\), '
          r'ShapedArray\(float32\[\]\{[V:]*x\}\)\)',
      '>=0.8,<0.11.2': r'^AssertionError: <exception str\(\) failed>',
      '>=0.11.2':
          r'^JaxprTypeError: Closed call in_avals mismatch\s+in '
          r'equation:\s+e:f32\[\]\{V:x\} = eval_jaxpr\[',
  }, cases={'jit': False, 'mesh': '2d'})
  @red({
      '<0.11.2':
          r'^AssertionError: \(ShapedArray\(float32\[\]\), '
          r'ShapedArray\(float32\[\]\{',
      '>=0.11.2': CALL_MISMATCH,
  })
  @parameterized.product(jit=[False, True], mesh=list(MESHES))
  def test_root(self, jit, mesh):
    a = np.arange(1, 5, dtype=F32)
    mesh = make_mesh(*MESHES[mesh])
    f = shard_map(lambda a: cube_root(a[0])[None], mesh=mesh,
                  in_specs=P('x'), out_specs=P('x'))
    self.assertAllClose(maybe_jit(jit)(f)(a), np.cbrt(a), rtol=1e-5)
    da = maybe_jit(jit)(jax.grad(lambda a: jnp.sum(f(a))))(a)
    self.assertAllClose(da, np.cbrt(a) ** -2 / 3, rtol=1e-4)

  @red(OTHER_COTANGENT)
  @parameterized.parameters(('a', '1d'), ('b', '2d'), ('ab', '2d'))
  def test_roots_by_jacobian(self, rows, mesh):
    self.check_rows(several_roots, rows, mesh)

  def test_replicated_solve_and_root(self):
    a = matrices()[0]
    f = shard_map(lambda a, b: (solve(a, b), cube_root(b[0])),
                  mesh=make_mesh(4, 2), in_specs=(P(), P()), out_specs=P())
    x, y = jax.jit(f)(a, B)
    self.assertAllClose(x, exact(a, B), rtol=1e-3)
    self.assertAllClose(y, np.cbrt(B[0]))

  @red({
      '<0.6.1':
          r'^ValueError: unexpected JAX type .* got float32\[\], but expected '
          r'float32\[\]\{x\}',
      '>=0.6.1': SCAN_CARRY,
  })
  @parameterized.product(jit=[False, True], mesh=list(MESHES))
  def test_tree_of_roots_of_which_one_is_replicated(self, jit, mesh):
    # Its derivative is summed, as no other leaf's axes are its own.
    def roots(x):
      f = lambda t: (jax.grad(lambda q: (q * x - 2 * x - 1) ** 2)(t[0]),
                     t[1] - x)
      step = lambda f: lambda i, t: jax.tree.map(
          lambda a, b, rate: a - rate * b, t, f(t), (F32(.05), F32(.5)))
      return lax.custom_root(
          f, (F32(0), F32(0)), lambda f, t: lax.fori_loop(0, 60, step(f), t),
          lambda g, y: y)
    x = np.arange(.25, 2, .5, dtype=F32)
    f = shard_map(lambda x: (roots(x[0])[0], roots(x[0])[1][None]),
                  mesh=make_mesh(*MESHES[mesh]), in_specs=P('x'),
                  out_specs=(P(), P('x')))
    slope, own = maybe_jit(jit)(f)(x)
    self.assertAllClose(slope, F32(2 + x.sum() / (x ** 2).sum()), rtol=1e-5)
    self.assertAllClose(own, x, rtol=1e-5)

  def test_user_functions_are_traced_once_where_types_are_right(self):
    calls = []

    def body(a, b):
      mv = lambda x: (calls.append(0), a[0] @ x)[1]
      return lax.custom_linear_solve(
          mv, b, lambda _, b: b, symmetric=True)

    jax.make_jaxpr(shard_map(body, mesh=make_mesh(4),
                             in_specs=(P('x'), P('x')), out_specs=P('x')))(
                                 matrices(), np.tile(B, 4))
    self.assertLen(calls, 1)
