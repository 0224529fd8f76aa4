# SPDX-License-Identifier: Apache-2.0
"""checkify of programs with shard_maps: which device says what.

The oracle is checkify of the plain function on each device's block by itself.
"""
import jax
from jax import lax
from jax._src import config
from jax._src import test_util as jtu
from jax.experimental import checkify
import jax.numpy as jnp
import numpy as np
from testing.red import red
from testing.sharding import AxisType, partly_manual, shard_map, typed_mesh
import varying.testing.common as smt
from varying.testing.common import P

config.parse_flags_with_absl()

# What pristine JAX says.
UNLIKE_CASES = ('^TypeError: select cases must have.*raised by '
                r'lax\._select_shape_rule')
WHILE_CARRY = ('^TypeError: while_loop body function carry input and carry '
               'output must have equal types, but')
MISMATCHED_AXES = ('^Exception: The branches of cond produced mismatched '
                   r'varying manual axes\. Got \[')
NOT_VERIFIED = ('^ValueError: Cannot lower jaxpr with verifier '
                r"errors:\s+'sdy\.manual_computation' op result shape,")
SPREAD_ERROR = r'^ShardingTypeError: Use `\.at\[\.\.\.\]\.get\(out_sharding=\)`'
SPREAD_SLICE = '^ShardingTypeError: dynamic_slice on sharded dims'
SPREAD_SORT = '^ShardingTypeError: Arguments to sort must be unsharded'
AT_MAPPED_INDICES = (r'^AssertionError: \s+- at mapped index 2: x is 2\.0 '
                     r'\(`check` failed\)\s+- at mapped index 3: x is 2\.0')

X = np.arange(8., dtype=np.float32)
W = np.float32(2.)
F32 = jnp.float32
ERRORS = checkify.all_checks
ENTER = getattr(jax, 'set_mesh', None) or jax.sharding.use_mesh
# Beside an Explicit axis in one array dimension; 0.6 refuses to mix them there.
OTHERS = [AxisType.Explicit,
          *([AxisType.Auto] if jax.__version_info__ >= (0, 7) else [])]
# What makes a shard_map over 'x' and 'y' manual along 'x' only.
ALONG_X = partly_manual('y', of='xy')


def small(x, w):
  checkify.check(jnp.all(x < 5), 'x is {x}', x=x[0])
  return x * w


def index(x, w):
  x = x[jnp.argsort(-x)]
  return x[x.astype(int)] * w


def nan(x, w):
  return jnp.log(w - x)


def division(x, w):
  return 1. / (x - w)


def branch(x, w):
  return lax.cond(x[0] > 3, lambda: small(x, w), lambda: x[jnp.int32(w)] + x)


def switch(x, w):
  n = jnp.int32(x[0]) % 3
  return lax.switch(n, [lambda: x / (w - 2), lambda: x,
                        lambda: jnp.log(x - 3.)])


def scan(x, w):
  def body(c, n):
    checkify.check(jnp.all(c < 20.), 'c is {c}, n is {n}', c=c[1], n=n)
    return c * w + n, c[0]
  return lax.scan(body, x, jnp.arange(3.))[0]


def fori(x, w):
  return lax.fori_loop(0, 3, lambda i, c: c + x[i] / (w - F32(i)), x)


def while_loop(x, w):
  def body(c):
    checkify.check(c < 16., 'c is {c}', c=c)
    return c * w + x[0]
  return x + lax.while_loop(lambda c: c < 20., body, w)


def mapped(x, w):
  return lax.map(lambda v: jnp.log(v - w), x)


def vmapped(x, w):
  def f(v):
    checkify.check(v != 4, 'v is {v}', v=v)
    return v / (v - w)
  return jax.vmap(f)(x)


STRAIGHT = [small, nan, division]
INDEXED = [index, vmapped]  # vmapped has constants that it captured
FLOW = [branch, switch, scan, fori, while_loop, mapped]


def in_shard_map(f, sizes, manual=None, **options):
  """``f`` of a device's own array and a shared number."""
  spec = P(manual or ('x', 'y')[:len(sizes)])
  return shard_map(f, mesh=smt.make_mesh(*sizes), in_specs=(spec, P()),
                   out_specs=spec, **options)


def checked(f, jit, *args):
  """The message and the value."""
  f = smt.maybe_jit(jit)(checkify.checkify(f, errors=ERRORS))
  error, out = f(*map(jnp.asarray, args))
  return error.get(), np.asarray(out)


def per_device(f, *args, number=4):
  """The oracle's message and value; ``f`` may be several, one after another."""
  x, w = args
  def one(block, w):
    for g in f if isinstance(f, list) else [f]:
      block = g(block, w)
    return block
  with jax.enable_checks(False):
    run = jax.jit(checkify.checkify(one, errors=ERRORS))
    results = [run(block, w) for block in np.split(x, number)]
  lines = [f'at mapped index {n}: {error.get()}'
           for n, (error, _) in enumerate(results) if error.get()]
  return '\n'.join(lines) or None, np.concatenate([out for _, out in results])


def before(x, w):
  checkify.check(jnp.all(x < 6), 'before')
  return x + 0 * w


def after(x, w):
  checkify.check(x[0] > w, 'after {w}', w=w)
  return x


class MessagesTest(jtu.JaxTestCase):

  def compare(self, got, want):
    self.assertEqual(got[0], want[0])
    np.testing.assert_allclose(got[1], want[1], rtol=1e-5)

  def check_messages(self, f, mesh, jit):
    got = checked(in_shard_map(f, smt.MESHES[mesh]), jit, X, W)
    self.compare(got, per_device(f, X, W))

  @jtu.sample_product(f=STRAIGHT)
  def test_straight_line(self, f):
    self.check_messages(f, '1d', True)

  @red('^ValueError: Primitive reduce requires varying manual axes to match, '
       r'but got \[frozenset\(', bases='<0.6.1')
  @red({
      '>=0.9.2,<0.11.1':
          r'^ValueError: .*argument 2 is shorter.*raised by core\.eval_jaxpr',
      '>=0.11.1':
          r'^AssertionError: \(ShapedArray\(int32\[1\]\), '
          r'ShapedArray\(float32\[2\]\{V:\(x,y\)\}\),',
  })
  @jtu.sample_product(f=INDEXED)
  def test_index(self, f):
    self.check_messages(f, '2d', True)

  @red(WHILE_CARRY, cases=['while_loop'])
  @red(MISMATCHED_AXES, cases=['branch', 'switch'])
  @red('^ValueError: Scan carry input and output got mismatched varying '
       'manual axes')
  @jtu.sample_product(f=FLOW)
  def test_loops_and_branches(self, f):
    self.check_messages(f, '2d', True)

  @red(WHILE_CARRY, cases=['while_loop'])
  @red(MISMATCHED_AXES)
  @jtu.sample_product(f=[branch, while_loop])
  def test_loops_and_branches_eager(self, f):
    self.check_messages(f, '1d', False)

  @red(UNLIKE_CASES)
  @jtu.sample_product(
      [dict(f=small, sizes=(4,)), dict(f=division, sizes=(2, 2))])
  def test_two_shard_maps(self, f, sizes):
    first = in_shard_map(small, (4,))
    second = in_shard_map(f, sizes)
    got = checked(lambda x, w: second(first(x, w), w), True, X, W)
    self.compare(got, per_device([small, f], X, W))

  @red({
      '<0.10.2': UNLIKE_CASES,
      '>=0.10.2': NOT_VERIFIED,
  })
  def test_over_another_number_of_devices(self):
    first = in_shard_map(small, (2, 2), ('x',), **ALONG_X)
    second = in_shard_map(after, (2, 2))
    got = checked(lambda x, w: second(first(x, w), w), True, X, W)
    self.assertEqual(got[0], '\n'.join(
        f'at mapped index {n}: x is 4.0 (`check` failed)' for n in range(4)))

  @red({
      '<0.10.2': UNLIKE_CASES,
      '>=0.10.2':
          r'^IndexError: Too many indices.*raised by indexing\._parse_indices',
  })
  @jtu.sample_product(fails=['before', 'in', 'after', 'none'])
  def test_before_and_after(self, fails):
    inside = in_shard_map(small, (4,))
    def f(x, w):
      checkify.check(x[0] > w - 9, 'before {n}', n=jnp.int32(w))
      y = inside(x, w)
      checkify.check(x[0] < w, 'after {w}', w=w)
      return y
    x, w = {'before': (X - 4., 6.), 'in': (X, 2.), 'after': (X - 4., -4.5),
            'none': (X - 4., 2.)}[fails]
    message = checked(f, True, x, np.float32(w))[0]
    lines = {
        'before': [f'{n}: before 6' for n in range(4)],
        'in': ['2: x is 4.0', '3: x is 6.0'],
        'after': [f'{n}: after -4.5' for n in range(4)], 'none': []}[fails]
    want = [f'at mapped index {line} (`check` failed)' for line in lines]
    self.assertEqual(message, '\n'.join(want) or None)

  @red({
      '<0.10.2': UNLIKE_CASES,
      '>=0.10.2':
          '^ValueError: axis -1 is out of bounds for array of dimension 0',
  })
  @jtu.sample_product(fails=['in', 'after', 'last', 'none'])
  def test_thrown_again(self, fails):
    # What is checked after has no index of a device, what is inside has; and
    # what has no number in its message is an effect of its own.
    inside = in_shard_map(small, (4,))
    def f(x, w):
      y = inside(x, w)
      checkify.check(x[0] < w, 'after {w}', w=w)
      checkify.check(x[1] < 2., 'last')
      return y
    def again(x, w):
      error, y = checkify.checkify(f)(x, w)
      checkify.check_error(error)
      return y
    x, w, want = {
        'in': (X, 2., 'x is 6.0'), 'after': (X - 4., -4.5, 'after -4.5'),
        'last': (X[::-1] * .5, 9., 'last'), 'none': (X - 4., 2., 'None')}[fails]
    self.assertIn(want, str(checked(again, True, x, np.float32(w))[0]))

  @red('^ValueError: The truth value of an array.*raised by '
       r'core\.check_bool_conversion', cases=[True])
  @red(r'^IndexError: Too many indices:.*, raised by indexing\._')
  @jtu.sample_product(jit=[False, True])
  def test_after_is_reported_beside_what_failed_in_it(self, jit):
    inside = in_shard_map(small, (4,))
    def f(x, w):
      y = inside(x, w)
      checkify.check(x[1] > w, 'after')
      return y
    message = checked(f, jit, X, W)[0]
    self.assertEqual(message, '\n'.join(
        f'at mapped index {line} (`check` failed)' for line in
        ['0: after', '1: after', '2: x is 4.0', '3: x is 6.0']))

  def test_throw(self):
    inside = in_shard_map(small, (4,))
    error, _ = jax.jit(checkify.checkify(inside))(X, W)
    with self.assertRaisesRegex(Exception, r'x is [46]\.0 \(`check` failed'):
      error.throw()

  @red('^ValueError: .*should match the aval mesh', bases='>=0.10')
  @red(UNLIKE_CASES, bases='<0.10', cases=[False])
  @jtu.sample_product(
      [dict(first=False, jit=True), dict(first=True, jit=True),
       dict(first=True, jit=False)])
  def test_context_mesh(self, first, jit):
    mesh = smt.make_mesh(4)
    inside = in_shard_map(small, (4,))
    def f(x, w):
      x = before(x, w) if first else x
      y = inside(x, w)
      return y if first else after(y, w)
    with ENTER(mesh):
      message = checked(f, jit, X[:6].repeat(2)[:8], W)[0]
    self.assertEqual(message, None if first else '\n'.join(
        f'at mapped index {n}: after 2.0 (`check` failed)' for n in range(4)))

  @red({
      '<0.7': AT_MAPPED_INDICES,
      '>=0.7': NOT_VERIFIED,
  }, cases={'context': False})
  @red({
      '<0.7': AT_MAPPED_INDICES,
      '>=0.7,<0.10': NOT_VERIFIED,
      '>=0.10':
          '^ValueError: For primitive broadcast_in_dim, context mesh .* '
          'should match the aval mesh',
  })
  @jtu.sample_product(first=[False, True], context=[False, True])
  def test_partly_manual(self, first, context):
    mesh = smt.make_mesh(2, 2)
    inside = in_shard_map(small, (2, 2), ('x',), **ALONG_X)
    def f(x, w):
      return inside(before(x, w) if first else x, w)
    if context:
      with ENTER(mesh):
        got = checked(f, True, X - 2, W)
    else:
      got = checked(f, True, X - 2, W)
    self.compare(got, per_device(small, X - 2, W, number=2))

  @red('^ShardingTypeError: Use `.at', bases='>=0.7')
  @jtu.sample_product(other=OTHERS)
  def test_explicit_axes(self, other):
    mesh = typed_mesh((2, 2), ('x', 'y'), (other, AxisType.Explicit))
    spec = P(('x', 'y'))
    x = jax.device_put(X, jax.sharding.NamedSharding(mesh, spec))
    f = shard_map(lambda x: small(x, W), mesh=mesh, in_specs=spec,
                  out_specs=spec)
    message, _ = checked(f, True, x)
    self.assertEqual(message, per_device(small, X, W)[0])

  @jtu.sample_product(f=[small, nan])
  def test_gradient(self, f):
    def loss(f):
      def g(x, w):
        error, out = checkify.checkify(f, errors=ERRORS)(x, w)
        return jnp.sum(out ** 2), error
      return jax.jit(jax.value_and_grad(g, argnums=(0, 1), has_aux=True))
    x = X / 8 - 2
    (value, error), got = loss(in_shard_map(f, (4,)))(x, W)
    self.assertIsNone(error.get())
    alone = loss(f)
    parts = [alone(b, W) for b in np.split(x, 4)]
    np.testing.assert_allclose(value, sum(p[0][0] for p in parts), rtol=1e-5)
    np.testing.assert_allclose(got[0], np.concatenate(
        [p[1][0] for p in parts]), rtol=1e-4)
    np.testing.assert_allclose(got[1], sum(p[1][1] for p in parts), rtol=1e-4)

  @red('^AssertionError: .* has length of [23], expected 1', bases='>=0.10.2')
  def test_effects_are_told_apart_by_shapes_and_dtypes(self):
    # What varies, the mesh and weak types would make three of one.
    def f(x, w):
      checkify.check(w < 9., 'in f: {w}', w=w)
      return after(small(x, w), w)
    f = in_shard_map(f, (4,))
    def g(x, w):
      return before(f(after(x, w), w), w)
    error, _ = jax.jit(checkify.checkify(g))(X, W)
    self.assertLen([e for e in error._pred if e.shape_dtypes], 1)


def over_explicit(f, sizes=(2, 2), manual=('x', 'y')):
  """``f`` of a device's own array over Explicit axes, and the whole array."""
  mesh = typed_mesh(sizes, ('x', 'y'), (AxisType.Explicit,) * 2)
  spec = P(manual)
  g = shard_map(lambda x: f(x, W), mesh=mesh, in_specs=spec, out_specs=spec,
                **(ALONG_X if manual == ('x',) else {}))
  return g, jax.device_put(X, jax.sharding.NamedSharding(mesh, spec))


if jax.__version_info__ >= (0, 9):  # before, what is spread can be read

  class ExplicitAxesTest(jtu.JaxTestCase):
    """The parts of an error are spread over the manual axes, and are read."""

    @red(NOT_VERIFIED, bases='>=0.9',
         cases={'manual': [('x',)], 'sizes': [(2, 2)]})
    @red(SPREAD_ERROR, bases='>=0.9')
    @jtu.sample_product(manual=[('x',), ('x', 'y')], sizes=[(2, 2), (4, 1)])
    def test_get(self, manual, sizes):
      g, x = over_explicit(small, sizes, manual)
      error, out = jax.jit(checkify.checkify(g, errors=ERRORS))(x)
      number = np.prod(sizes[:len(manual)])
      want = per_device(small, X, W, number=number)
      self.assertEqual(error.get(), want[0])
      np.testing.assert_allclose(out, want[1], rtol=1e-5)

    @red(SPREAD_ERROR, bases='>=0.9')
    def test_get_where_nothing_failed(self):
      g, x = over_explicit(small)
      self.assertIsNone(jax.jit(checkify.checkify(g))(x * 0)[0].get())

    @red({'>=0.9,<0.9.1': SPREAD_ERROR, '>=0.9.1,<0.9.2': SPREAD_SLICE,
          '>=0.9.2': SPREAD_SORT})
    def test_throw(self):
      g, x = over_explicit(small)
      error, _ = jax.jit(checkify.checkify(g))(x)
      with self.assertRaisesRegex(checkify.JaxRuntimeError,
                                  r'x is [46]\.0 \(`check` failed'):
        error.throw()

    @red({'>=0.9,<0.9.2': SPREAD_SLICE, '>=0.9.2': SPREAD_SORT})
    def test_thrown_again(self):
      g, x = over_explicit(small)
      def again(x):
        error, y = checkify.checkify(g)(x)
        checkify.check_error(error)
        return y
      error, _ = jax.jit(checkify.checkify(again))(x)
      self.assertIn('x is 6.0', error.get())

    @red({'>=0.9,<0.10.2': UNLIKE_CASES,
          '>=0.10.2': '^DuplicateSpecError: A single NamedSharding spec'})
    def test_over_another_number_of_devices(self):
      (f, x), (g, y) = over_explicit(small), over_explicit(small, manual=('x',))
      run = jax.jit(checkify.checkify(lambda x, y: (f(x), g(y))))
      message = run(x, y)[0].get()
      self.assertIn('at mapped index 0: x is 4.0', message)
