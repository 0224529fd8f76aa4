# SPDX-License-Identifier: Apache-2.0
"""Operations that hold their own types, in loops and branches (issue 3)."""
from absl.testing import parameterized
import jax
from jax import lax
from jax._src import test_util as jtu
from jax.experimental import hijax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec as P
import numpy as np
from testing.red import red
from testing.sharding import eight_devices

jax.config.parse_flags_with_absl()
eight_devices()

# What pristine JAX says.
CALL_MISMATCH = (r'^JaxprTypeError: Closed call in_avals mismatch\s+in '
                 r'equation:\s+d:f32\[3\] = eval_jaxpr\[')
NOT_REFUSED = '^AssertionError: ValueError not raised'
SCAN_CARRY = ('^TypeError: scan body function carry input and carry output '
              'must have equal types, but they')

F32 = np.float32
W = np.array([.2, .5, .9], F32)
A = np.array([[.3, -.4, .6], [-.2, .1, -.5], [.7, .2, .4], [0., -.3, .2]], F32)
GRID = np.linspace(-2., 2., 3, dtype=F32)

OPERATIONS = {
    'searchsorted': lambda s, w: jnp.searchsorted(s, w).astype(F32),
    'interp': lambda s, w: jnp.interp(w, GRID, s),
    'histogram': lambda s, w: jnp.histogram(s * w, 3)[0].astype(F32),
    'nonzero': lambda s, w: jnp.nonzero(s > w, size=3)[0].astype(F32) * w,
    'ldexp': lambda s, w: jnp.ldexp(s, 2) * w,
    'frexp': lambda s, w: jnp.frexp(s)[0] * w,
    'custom_root': lambda s, w: lax.custom_root(
        lambda y: y - s * w, w, lambda f, y: y - f(y), lambda g, y: y),
}
SMOOTH = [('interp', 'branch'), ('interp', 'loop'), ('ldexp', 'branch'),
          ('custom_root', 'loop')]


def in_branch(operation, a, w):
  return lax.cond(a[0] > 0., lambda: operation(w, w * .5), lambda: w)


def in_loop(operation, a, w):
  return lax.fori_loop(
      0, 2, lambda i, s: jnp.sort(operation(s, w)) * .5 + a, w)


def in_loop_in_branch(operation, a, w):
  return lax.cond(jnp.sum(a) > 0., lambda: in_loop(operation, w, w),
                  lambda: in_branch(operation, w, w))


FORMS = dict(branch=in_branch, loop=in_loop, both=in_loop_in_branch)
CASES = [dict(testcase_name=f'_{o}_{f}', name=o, form=f)
         for o in OPERATIONS for f in FORMS if f != 'both' or o == 'interp']


def sharded(f):
  """``f`` of each row of its first argument, on a device of its own."""
  mesh = Mesh(np.array(jax.devices()[:4]), ('x',))
  return jax.shard_map(lambda a, w: f(a[0], w)[None], mesh=mesh,
                       in_specs=(P('x'), P()), out_specs=P('x'))


def single(f):
  return jax.vmap(f, (0, None))


HiPrim = (hijax.HiPrim if hasattr(hijax, 'HiPrim') else
          hijax.VJPHiPrimitive)  # 0.11's name


class Product(HiPrim):
  """A user's own operation: the product of two arrays of one type."""

  def __init__(self, aval):
    self.in_avals, self.out_aval, self.params = (aval, aval), aval, {}
    super().__init__()

  def expand(self, x, y):
    return x * y

  def vjp_fwd(self, nzs_in, x, y):
    return self(x, y), (x, y)

  def vjp_bwd_retval(self, res, g):
    return g * res[1], g * res[0]


class HijaxTest(jtu.JaxTestCase):

  @red(SCAN_CARRY, cases={'form': 'loop'})
  @parameterized.named_parameters(CASES)
  def test_values(self, name, form):
    f = lambda a, w: FORMS[form](OPERATIONS[name], a, w)
    self.assertAllClose(jax.jit(sharded(f))(A, W), jax.jit(single(f))(A, W))

  @red(r'^AssertionError: \s+Not equal to tolerance rtol=1e-05, '
       r'atol=1e-06\s+Mismatched elements: 3 / 3', cases={'form': 'branch'})
  @red(SCAN_CARRY)
  @parameterized.named_parameters(
      c for c in CASES if (c['name'], c['form']) in SMOOTH)
  def test_gradients(self, name, form):
    def loss(per_row):
      f = lambda a, w: FORMS[form](OPERATIONS[name], a, w)
      return lambda a, w: jnp.sum(per_row(f)(a, w) * (A + 1.))
    both = lambda f: jax.jit(lambda *args: (
        jax.grad(f, (0, 1))(*args), jax.jvp(f, args, args)[1]))
    self.assertAllClose(both(loss(sharded))(A, W), both(loss(single))(A, W),
                        rtol=1e-5)

  @red(r'^AssertionError: \s+Not equal to tolerance rtol=1e-05, atol=1e-06\s+'
       'Mismatched elements: 3 / 3')
  @parameterized.parameters(lambda f: f, jax.jit)
  def test_a_users_own_operation(self, wrap):
    def loss(per_row, product):
      f = lambda a, w: in_branch(wrap(product), a, w)
      return lambda a, w: jnp.sum(per_row(f)(a, w) * (A + 1.))
    got = jax.jit(jax.value_and_grad(loss(
        sharded, lambda x, y: Product(jax.typeof(x))(x, y)), 1))(A, W)
    want = jax.jit(jax.value_and_grad(loss(single, jnp.multiply), 1))(A, W)
    self.assertAllClose(got, want, rtol=1e-5)

  @red(r'^AssertionError: \(ShapedArray\(float32\[2,3\]\), '
       r'ShapedArray\(float32\[2,3\]\{V:x\}\),')
  @parameterized.named_parameters(
      c for c in CASES if c['form'] == 'branch'
      and c['name'] in ('interp', 'nonzero'))
  def test_values_of_a_batch(self, name, form):
    f = lambda a, w: FORMS[form](OPERATIONS[name], a, w)
    a = np.stack([A, -A])
    got = jax.jit(jax.vmap(sharded(f), (0, None)))(a, W)
    self.assertAllClose(got[0], jax.jit(single(f))(a[0], W))
    self.assertAllClose(got[1], jax.jit(single(f))(a[1], W))

  @parameterized.named_parameters(
      c for c in CASES if c['form'] == 'branch'
      and (c['name'], 'branch') not in SMOOTH)
  def test_tangents_in_a_branch(self, name, form):
    f = lambda a, w: FORMS[form](OPERATIONS[name], a, w)
    both = lambda a, w: sum(jax.jvp(f, (a, w), (a, w)))
    self.assertAllClose(jax.jit(sharded(both))(A, W),
                        jax.jit(single(both))(A, W))

  @red(SCAN_CARRY)
  @parameterized.named_parameters(
      dict(testcase_name='_' + o, name=o) for o in OPERATIONS
      if o != 'custom_root')
  def test_traces_the_body_once(self, name):
    calls = []
    def f(a, w):
      def body(s, _):
        calls.append(1)
        return OPERATIONS[name](s, w) + a, None
      return lax.scan(body, w, None, length=2)[0]
    jax.make_jaxpr(sharded(f))(A, W)
    self.assertLen(calls, 1)

  @red(NOT_REFUSED)
  def test_an_unsound_claim_is_refused(self):
    f = jax.shard_map(
        lambda a, w: in_branch(OPERATIONS['interp'], a[0], w),
        mesh=Mesh(np.array(jax.devices()[:4]), ('x',)),
        in_specs=(P('x'), P()), out_specs=P())
    with self.assertRaisesRegex(ValueError, 'replication'):
      f(A, W)

  @red(CALL_MISMATCH, bases='>=0.11.1', cases=[True])
  @red({
      '>=0.11,<0.11.1':
          r'^AssertionError: \(ShapedArray\(float32\[3\]\), '
          r'ShapedArray\(float32\[3\]\{V:x\}\), JitTracer',
      '>=0.11.1': CALL_MISMATCH,
  }, cases=[False])
  @parameterized.parameters(False, True)
  def test_a_traced_function_is_typed_by_its_operands(self, converted):
    if converted and not hasattr(jax.stages.Traced, 'closure_convert'):
      self.skipTest('the release has no Traced.closure_convert')
    def f(a, w):
      if not converted:  # with what it captures, it can't be called (upstream)
        traced = jax.jit(lambda u, w: u * jnp.sin(w)).trace(w, w)
        return traced(a, w)
      traced = jax.jit(lambda u: u * jnp.sin(w)).trace(w)
      consts, call = traced.closure_convert()
      return call(consts, a)
    want = single(lambda a, w: a * jnp.sin(w))(A, W)
    self.assertAllClose(jax.jit(sharded(f))(A, W), want)
    claim = jax.shard_map(
        lambda a, w: f(a[0], w), in_specs=(P('x'), P()), out_specs=P(),
        mesh=Mesh(np.array(jax.devices()[:4]), ('x',)))
    with self.assertRaisesRegex(ValueError, 'replication'):
      claim(A, W)
    grad = jax.jit(jax.grad(lambda w: jnp.sum(sharded(f)(A, w))))(W)
    self.assertAllClose(grad, A.sum(0) * np.cos(W), rtol=1e-5)

  @red(NOT_REFUSED, bases='>=0.12')
  def test_exponents_vary(self):
    f = jax.shard_map(
        lambda a: jnp.frexp(a[0])[1], in_specs=P('x'), out_specs=P(),
        mesh=Mesh(np.array(jax.devices()[:4]), ('x',)))
    with jax.enable_checks(False):  # as users run it
      with self.assertRaisesRegex(ValueError, 'replication'):
        jax.jit(f)(A)

  def test_what_does_not_vary_stays_so(self):
    f = lambda w: {n: of(w, w * .5) for n, of in OPERATIONS.items()}
    mesh = Mesh(np.array(jax.devices()[:4]), ('x',))
    got = jax.jit(jax.shard_map(f, mesh=mesh, in_specs=P(), out_specs=P()))(W)
    self.assertAllClose(got, jax.jit(f)(W))
