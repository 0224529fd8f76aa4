# SPDX-License-Identifier: Apache-2.0
"""Predicates made of arguments and of loops' carries that all devices share.

Solvers whose matrix is split by rows gather each product, so that all devices
take the same steps. Values that agree are passed to functions that branch by
them. The oracle is numpy's, or the function on one device.
"""
import functools

from absl.testing import parameterized
import jax
import jax.extend
from jax import lax
from jax._src import core
from jax._src import test_util as jtu
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
from testing.red import red
from testing.sharding import shard_map
from varying.testing.common import axes_of
from varying.testing.common import cast
from varying.testing.common import make_mesh
from varying.testing.common import maybe_jit

jax.config.parse_flags_with_absl()

# What pristine JAX says.
WHILE_CARRY = ('^TypeError: while_loop body function carry input and carry '
               'output must have equal types')
SCAN_CARRY = ('^TypeError: scan body function carry input and carry output '
              'must have equal types')
NOT_REFUSED = '^AssertionError: ValueError not raised'
# A gradient of what JAX types as the same on all devices is refused where that
# isn't known: never wrong.
IN_DOUBT = 'the predicate of a branch or loop .* is the same on all devices'

SIZES = {'1d': (4,), '2d': (2, 2), 'one': (1,), 'one_of_two': (4, 1)}
N = 8


def _matrix():
  q = np.random.RandomState(0).randn(N, N)
  return (q @ q.T + N * np.eye(N)).astype(np.float32)


A = _matrix()
B = np.random.RandomState(1).randn(N).astype(np.float32)


def product(part, axes):
  """The product with a matrix that is split by rows."""
  def apply(v):
    rows = part @ v
    for axis in reversed(axes):
      rows = lax.all_gather(rows, axis, tiled=True)
    return rows
  return apply


def conjugate_gradients(apply, b, hand):
  def body(s):
    x, r, p, rs, k = s
    ap = apply(p)
    alpha = rs / (p @ ap)
    x, r = x + alpha * p, r - alpha * ap
    new = r @ r
    return x, r, r + new / rs * p, new, k + 1
  init = (jnp.zeros_like(b), b, b, b @ b, jnp.int32(0))
  return lax.while_loop(lambda s: (s[3] > 1e-10) & (s[4] < 50), body,
                        hand(init))[0]


def power_iteration(apply, b, hand):
  def body(s):
    v, n, _ = s
    w = apply(v)
    norm = jnp.linalg.norm(w)
    return w / norm, norm, jnp.abs(norm - n)
  init = b / jnp.linalg.norm(b), jnp.float32(0), jnp.float32(1)
  return lax.while_loop(lambda s: s[2] > 1e-5, body, hand(init))[1]


def page_rank(apply, b, hand):
  def body(s):
    v, _ = s
    w = .85 / 40. * apply(v) + .15 / N
    return w, jnp.abs(w - v).sum()
  init = jnp.ones_like(b) / N, jnp.float32(1)
  return lax.while_loop(lambda s: s[1] > 1e-6, body, hand(init))[0]


def of_scipy(name, apply, b, hand, **params):
  solve = getattr(jax.scipy.sparse.linalg, name)
  return solve(apply, hand(b), tol=1e-6, **params)[0]


SOLVERS = {
    'conjugate_gradients': conjugate_gradients, 'power': power_iteration,
    'page_rank': page_rank, 'cg': functools.partial(of_scipy, 'cg'),
    'bicgstab': functools.partial(of_scipy, 'bicgstab'),
    'gmres': functools.partial(of_scipy, 'gmres', restart=N),
    'gmres_incremental': functools.partial(
        of_scipy, 'gmres', restart=N, solve_method='incremental')}


def by_ring(x, hand):
  """A loop with a permutation, whose carry is all cast but what is permuted."""
  there = [(i, (i + 1) % 4) for i in range(4)]
  def body(s):
    k, v, _ = s
    v = lax.ppermute(v, 'x', there) * .5
    return k + 1, v, jnp.max(lax.all_gather(jnp.abs(v), 'x'))
  k, residual = hand((jnp.int32(0), jnp.float32(9)))
  return lax.while_loop(lambda s: (s[0] < 20) & (s[2] > .1), body,
                        (k, x, residual))[1]


def by_counter(x, hand):
  there = [(i, (i + 1) % 4) for i in range(4)]
  body = lambda s: (s[0] + 1, lax.ppermute(s[1], 'x', there))
  return lax.while_loop(lambda s: s[0] < 3, body, (hand(jnp.int32(0)), x))[1]


def chosen(p, w, x):
  """A branch by p that sums over the devices."""
  return lax.cond(p > 0., lambda w: w * lax.psum(x, 'x'), lambda w: 2. * w, w)


def jitted(p, w, x):
  return jax.jit(lambda p, w: chosen(p, w, x))(p, w)


def jitted_within(p, w, x):
  inner = jax.jit(lambda p, w: chosen(p, w, x))
  step = lambda w, _: (.1 * inner(p, w), None)
  return jax.jit(lambda p, w: lax.scan(step, w, None, length=2)[0])(p, w)


def deeper(p, w, x):
  inner = jax.jit(lambda p, w, x: chosen(p, w, x))
  def step(w, q):
    return .1 * inner(q, w, x), None
  outer = jax.jit(lambda p, w: lax.scan(step, w, jnp.stack([p, -p]))[0])
  return outer(p, w)


def checkpointed(p, w, x):
  return jax.checkpoint(lambda p, w: chosen(p, w, x))(p, w)


def scanned(p, w, x):
  step = lambda w, p: (.1 * chosen(p, w, x), None)
  return lax.scan(step, w, jnp.stack([p, -p, p]))[0]


def with_jvp(p, w, x):
  f = jax.custom_jvp(lambda p, w: chosen(p, w, x))
  f.defjvp(lambda primals, tangents: (f(*primals), chosen(
      primals[0], tangents[1], x)))
  return f(p, w)


def with_vjp(p, w, x):
  f = jax.custom_vjp(chosen)
  f.defvjp(lambda p, w, x: (chosen(p, w, x), (p, x)),
           lambda r, c: (None, chosen(r[0], c, r[1]), 0. * r[1]))
  return f(p, w, x)


def carried(p, w, x):
  """A branch by a carry that the body makes of what all devices have."""
  def step(c, _):
    p, w = c
    w = .1 * chosen(p, w, x)
    return (jnp.max(lax.all_gather(p - 1., 'x')), w), None
  return lax.scan(step, (p, w), None, length=3)[0][1]


FORMS = {f.__name__: f for f in (
    jitted, jitted_within, deeper, checkpointed, scanned, with_jvp, with_vjp,
    carried)}


class AgreeingCarriesTest(jtu.JaxTestCase):

  def check_solver(self, name, sizes, hand, jit):
    mesh = make_mesh(*SIZES[sizes])
    axes = mesh.axis_names
    by_hand = (lambda tree: jax.tree.map(lambda x: cast(x, axes), tree)) if (
        hand) else lambda x: x
    solver = SOLVERS[name]
    f = shard_map(
        lambda part, b: jnp.atleast_1d(solver(product(part, axes), b, by_hand)),
        mesh=mesh, in_specs=(P(axes), P()), out_specs=P(axes))
    got = np.split(np.asarray(maybe_jit(jit)(f)(A, B)), mesh.size)
    if name == 'power':
      want = np.linalg.eigvalsh(A)[-1:]
    elif name == 'page_rank':
      want = np.linalg.solve(np.eye(N) - .85 / 40. * A, np.full(N, .15 / N))
    else:
      want = np.linalg.solve(A, B)
    for part in got:
      self.assertAllClose(part, want.astype(np.float32), rtol=1e-2, atol=1e-4)

  @red(WHILE_CARRY)
  @parameterized.product(
      name=list(SOLVERS), at=[('1d', True), ('2d', True), ('1d', False)])
  def test_plain(self, name, at):
    self.check_solver(name, at[0], False, at[1])

  @parameterized.product(name=['conjugate_gradients', 'power', 'page_rank'],
                         at=[('1d', True), ('2d', True), ('1d', False)])
  def test_cast_by_hand(self, name, at):
    self.check_solver(name, at[0], True, at[1])

  @red(WHILE_CARRY)
  @parameterized.product(name=['bicgstab', 'gmres', 'gmres_incremental'])
  def test_cast_by_hand_of_scipy(self, name):
    self.check_solver(name, '1d', True, True)

  @red(WHILE_CARRY, bases='<0.7')
  @parameterized.parameters(True, False)
  def test_cast_by_hand_of_cg(self, jit):
    self.check_solver('cg', '1d', True, jit)

  @red(WHILE_CARRY)
  @parameterized.product(name=['conjugate_gradients', 'gmres'],
                         sizes=['one', 'one_of_two'])
  def test_axis_of_one_device(self, name, sizes):
    self.check_solver(name, sizes, False, True)

  @red(WHILE_CARRY, cases={'f': 'by_ring', 'hand': False})
  @parameterized.product(f=[by_ring, by_counter], hand=[True, False],
                         jit=[True, False])
  def test_permutation(self, f, hand, jit):
    x = np.arange(4., dtype=np.float32)
    by_hand = (lambda t: jax.tree.map(lambda x: cast(x, 'x'), t)) if hand else (
        lambda t: t)
    got = maybe_jit(jit)(shard_map(
        functools.partial(f, hand=by_hand), mesh=make_mesh(4), in_specs=P('x'),
        out_specs=P('x')))(x)
    if f is by_counter:
      want = np.roll(x, 3)
    else:  # 3 is halved until it is below .1
      want = np.roll(x, 5) / 2 ** 5
    self.assertAllClose(got, want)

  @red(NOT_REFUSED)
  def test_refuses_a_carry_that_comes_to_differ(self):
    def f(x):
      body = lambda s: (s[0] + x[0], s[1] + lax.psum(s[1], 'x'))
      return lax.while_loop(lambda s: s[0] < 3., body, (
          cast(jnp.float32(0), 'x'), x))[1]
    g = shard_map(f, mesh=make_mesh(4), in_specs=P('x'), out_specs=P('x'))
    with self.assertRaisesRegex(ValueError, 'psum over mesh axis .x. at'):
      jax.jit(g)(np.ones(4, np.float32))


class AgreeingArgumentsTest(jtu.JaxTestCase):

  def check_form(self, form, jit, derive=None, sizes=(4,)):
    mesh = make_mesh(*sizes)
    x = np.arange(1., 5., dtype=np.float32)

    def f(w, x):
      p = jnp.max(lax.all_gather(x, 'x'))
      run = lambda w: FORMS[form](p, w, x[0])
      return (derive(run) if derive else run)(w)

    g = maybe_jit(jit)(shard_map(
        lambda w, x: f(w, x)[None], mesh=mesh, in_specs=(P(), P('x')),
        out_specs=P('x')))
    def whole(w, x):
      p = jnp.max(x)
      run = lambda w: one_form(form, p, w, jnp.sum(x))
      return (derive(run) if derive else run)(w)
    try:
      got = g(np.float32(.5), x)
    except ValueError as e:
      self.assertIsNotNone(derive, e)
      self.assertRegex(str(e), IN_DOUBT)
    else:
      self.assertAllClose(got, np.full(4, whole(np.float32(.5), x)), rtol=1e-5)

  @parameterized.product(form=list(FORMS), jit=[True, False])
  def test_value(self, form, jit):
    self.check_form(form, jit)

  @parameterized.product(form=list(FORMS), jit=[True, False])
  def test_gradient_inside(self, form, jit):
    self.check_form(form, jit, jax.grad)

  @parameterized.product(form=list(FORMS))
  def test_two_axes(self, form):
    self.check_form(form, True, None, (4, 2))

  @parameterized.product(form=['jitted', 'scanned', 'checkpointed'])
  def test_same_function_where_it_differs(self, form):
    """What was traced for an argument that agrees isn't used for another."""
    mesh = make_mesh(4)
    f = jax.jit(lambda p, w: lax.cond(
        p > 2., lambda w: 2. * w, lambda w: 3. * w, w))
    step = lambda w, p: (f(p, w), None)
    calls = {'jitted': f,
             'scanned': lambda p, w: lax.scan(step, w, p[None])[0],
             'checkpointed': jax.checkpoint(lambda p, w: f(p, w))}
    call = calls[form]
    def both(w, x):
      same = call(jnp.max(lax.all_gather(x, 'x')), w)
      return same, call(x[0], w), call(
          lax.all_gather(x, 'x')[1, 0], w)
    got = jax.jit(shard_map(
        lambda w, x: jnp.stack(both(w, x))[None], mesh=mesh,
        in_specs=(P(), P('x')), out_specs=P('x')))(
            np.float32(1.), np.arange(1., 5., dtype=np.float32))
    want = np.float32([[2, 3, 3], [2, 3, 3], [2, 2, 3], [2, 2, 3]])
    self.assertAllClose(got, want)

  @red(NOT_REFUSED)
  def test_refuses_what_differs(self):
    def f(w, x):
      return jax.jit(lambda p: chosen(p, w, x[0]))(x[0])
    g = shard_map(f, mesh=make_mesh(4), in_specs=(P(), P('x')), out_specs=P())
    with self.assertRaisesRegex(ValueError, 'psum over mesh axis .x. at'):
      jax.jit(g)(np.float32(1), np.ones(4, np.float32))


def choose(p, w):
  return lax.cond(p > 2., lambda w: w * w, lambda w: 3. * w, w)


def shared_then_own(w, x, largest):
  f = jax.jit(choose)
  return f(largest, w) * x + f(x, w)


def own_then_shared(w, x, largest):
  f = jax.checkpoint(choose)
  return f(x, w) + f(largest, w) * x


def mixed(w, x, largest):
  return jax.jit(lambda p, q, w: choose(p - q, w))(largest, x, w)


def traced_elsewhere(w, x, largest):
  """The example agrees, and the argument doesn't."""
  closed = jax.make_jaxpr(lambda p, w: choose(1. * p, w))(largest, w)
  f = jax.extend.core.jaxpr_as_fun(closed)
  return f(x, w)[0] + x * f(largest, w)[0]


def cast_inside(w, x, largest):
  """A jitted function's argument agrees until the jaxpr is typed again."""
  f = jax.jit(choose)
  closed = jax.make_jaxpr(lambda p, w: f(cast_if_same(p), w))(
      jnp.float32(1), w)
  again = jax.jit(lambda p, w: jax.extend.core.jaxpr_as_fun(closed)(p, w)[0])
  return again(x, w) + x * again(largest, w)


def cast_if_same(p):
  names = core.get_axis_env().axis_sizes
  axes = [a for a in ('x', 'y') if a in names and a not in axes_of(p)]
  return cast(p, axes)


def carry_differs_later(w, x, largest):
  def step(c, _):
    p, y = c
    return (p + x, choose(p, y)), None
  return lax.scan(step, (0. * largest, w), None, length=3)[0][1]


def chain_of_carries(w, x, largest):
  def step(c, _):
    a, b, d, y = c
    return (b, d, 1. * x, choose(a, y)), None
  same = 0. * largest
  return lax.scan(step, (same, same, same, w), None, length=5)[0][3]


def scan_within(w, x, largest):
  def outer(c, _):
    p, y = c
    inner = lambda y, q: (.5 * choose(p * q, y), None)
    return (p + x, lax.scan(inner, y, jnp.stack([largest, -largest]))[0]), None
  return lax.scan(outer, (largest, w), None, length=2)[0][1]


class ReusedTest(jtu.JaxTestCase):
  """What agrees in one place, and doesn't in another, counts for itself."""

  @red(r'^AssertionError: \s+Not equal to tolerance',
       cases=['shared_then_own', 'traced_elsewhere', 'carry_differs_later',
              'chain_of_carries', 'own_then_shared', 'mixed'])
  @red(r'^AssertionError: \(ShapedArray\(float32\[\]\), '
       r'ShapedArray\(float32\[\]\{', cases=['cast_inside'])
  @parameterized.product(
      f=[shared_then_own, own_then_shared, mixed, traced_elsewhere, cast_inside,
         carry_differs_later, chain_of_carries, scan_within],
      at=[('1d', True), ('1d', False), ('2d', True)])
  def test_gradient(self, f, at):
    mesh = make_mesh(*SIZES[at[0]])
    axes = mesh.axis_names
    x = np.arange(1., 5.).astype(np.float32)

    def part(w, x):
      largest = x[0]
      for axis in axes:
        largest = jnp.max(lax.all_gather(largest, axis))
      return (f(w, x[0], largest) + 0. * x[0])[None]

    g = shard_map(part, mesh=mesh, in_specs=(P(), P(axes)), out_specs=P(axes))
    got = maybe_jit(at[1])(jax.value_and_grad(lambda w: jnp.sum(g(w, x))))(
        np.float32(.7))
    want = jax.value_and_grad(
        lambda w: sum(f(w, v, np.float32(4)) for v in x))(np.float32(.7))
    self.assertAllClose(got, want, rtol=1e-5)


class DerivativesOfSolvesTest(jtu.JaxTestCase):
  """Each device solves by itself; right-hand sides agree, cotangents don't."""

  def solver(self, form, shared, by_hand):
    def solve(t, b):
      return jax.scipy.sparse.linalg.cg(
          lambda u: u * (2. if shared else 2. + t ** 2), by_hand(b))[0]
    return dict(
        jitted=jax.jit(solve), checkpointed=jax.checkpoint(solve),
        scanned=lambda t, b: lax.scan(
            lambda c, _: (c * solve(t, b), None), t, None, length=2)[0])[form]

  def check(self, form, shared, hand, sizes, jit, derive):
    mesh = make_mesh(*sizes)
    axes, n = mesh.axis_names, mesh.size
    f = self.solver(form, shared, lambda x: cast(x, axes) if hand else x)
    g = shard_map(lambda t, b: f(t[0], b)[None], mesh=mesh,
                  in_specs=(P(axes), P()), out_specs=P(axes))

    def exact(t, b):
      x = b[None] / (2. if shared else 2. + t ** 2)
      return x * x * t if form == 'scanned' else x + 0. * t
    weights = np.arange(1., 1. + 3 * n, dtype=np.float32).reshape(n, 3)
    loss = lambda f: lambda t, b: (f(t, b) * weights).sum()
    args = weights / (3 * n), np.float32([1., -2., 3.])
    if derive == 'reverse':
      derived = lambda f: jax.value_and_grad(loss(f), (0, 1))
    elif derive == 'forward':
      derived = lambda f: lambda *a: jax.jvp(f, a, a)
    else:
      derived = lambda f: jax.grad(
          lambda *a: sum(map(jnp.sum, jax.grad(loss(f), (0, 1))(*a))), (0, 1))
    got = maybe_jit(jit)(derived(g))(*args)
    self.assertAllClose(got, derived(exact)(*args), rtol=1e-4, atol=1e-4)

  @red(WHILE_CARRY, bases='<0.7')
  @red(WHILE_CARRY, bases='>=0.7', cases={'hand': False})
  @parameterized.product(
      hand=[True, False], at=[
          ('jitted', 'reverse'), ('jitted', 'forward'), ('jitted', 'twice'),
          ('scanned', 'reverse'), ('scanned', 'forward'), ('scanned', 'twice'),
          ('checkpointed', 'reverse'), ('checkpointed', 'forward')])
  def test_of_a_matrix_of_its_own(self, hand, at):
    form, derive = at
    self.check(form, False, hand, (4,), True, derive)

  @red(WHILE_CARRY, bases='<0.7', cases={'hand': True})
  @parameterized.product(
      form=['jitted', 'checkpointed', 'scanned'], hand=[True, False],
      derive=['reverse', 'forward'])
  def test_of_a_shared_matrix(self, form, hand, derive):
    self.check(form, True, hand, (4,), True, derive)

  @red(WHILE_CARRY, bases='<0.7')
  @red(WHILE_CARRY, bases='>=0.7', cases={'hand': False})
  @parameterized.product(hand=[True, False], jit=[True, False],
                         sizes=[(2, 2), (1,), (4, 1)])
  def test_meshes(self, hand, jit, sizes):
    self.check('jitted', False, hand, sizes, jit, 'reverse')

  @red(NOT_REFUSED, bases='>=0.7')
  @red(WHILE_CARRY, bases='<0.7')
  def test_one_that_communicates_is_refused(self):
    solve = jax.jit(lambda part, b: jax.scipy.sparse.linalg.cg(
        product(part, ('x',)), b)[0])
    g = shard_map(lambda part, b: solve(part, cast(b, 'x')), mesh=make_mesh(4),
                  in_specs=(P('x'), P()), out_specs=P('x'))
    self.assertAllClose(np.split(np.asarray(jax.jit(g)(A, B)), 4)[3],
                        np.linalg.solve(A, B), rtol=1e-2, atol=1e-4)
    loss = lambda b: (g(A, b) * np.arange(32.)).sum()
    with self.assertRaisesRegex(
        ValueError, r"all_gather over mesh axis 'x' at .* is inside a "
        r'lax.while_loop \(called at'):
      jax.jit(jax.grad(loss)).lower(B)

  @red(SCAN_CARRY, bases='>=0.7')
  @red(WHILE_CARRY, bases='<0.7')
  def test_one_that_communicates_in_a_carry_that_grows(self):
    """What a solver takes to agree is known once its loop is typed again."""
    def part(rows, b, s):
      step = lambda c, _: (s[0] * jax.scipy.sparse.linalg.cg(
          product(rows, ('x',)), c)[0], None)
      return lax.scan(step, cast(b, 'x'), None, length=2)[0][None, None]
    g = shard_map(part, mesh=make_mesh(2, 2), in_specs=(P('x'), P(), P('y')),
                  out_specs=P('x', 'y'))
    s = np.float32([1., 2.])
    if jax.__version_info__ >= (0, 11, 1):  # before, values are refused, too
      got = jax.jit(g)(A, B, s)
      want = np.linalg.solve(A, np.linalg.solve(A, B))
      for y in range(2):
        self.assertAllClose(got[1, y], want * s[y] ** 2, rtol=1e-2, atol=1e-4)
    weights = np.arange(4. * N, dtype=np.float32).reshape(2, 2, N)
    loss = lambda b: (g(A, b, s) * weights).sum()
    with self.assertRaisesRegex(ValueError, "all_gather over mesh axis 'x' at"):
      jax.jit(jax.grad(loss)).lower(B)


def one_form(form, p, w, x):
  """What the form computes on one device, x being the sum over all."""
  choose = lambda p, w: jnp.where(p > 0., w * x, 2. * w)
  if form == 'jitted_within':
    return .1 * choose(p, .1 * choose(p, w))
  if form == 'deeper':
    return .1 * choose(-p, .1 * choose(p, w))
  if form == 'scanned':
    return .1 * choose(p, .1 * choose(-p, .1 * choose(p, w)))
  if form == 'carried':
    for n in range(3):
      w = .1 * choose(p - n, w)
    return w
  return choose(p, w)
