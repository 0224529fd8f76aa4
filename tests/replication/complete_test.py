# SPDX-License-Identifier: Apache-2.0
"""Every primitive has a replication rule or a reason, check_rep=True."""
import gc
import importlib
import os

from absl.testing import parameterized
import jax
from jax import lax
from jax._src import core
from jax._src import test_util as jtu
from jax._src.lax import parallel
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import io_callback
from jax.experimental import shard_map as shard_map_lib
from jax.experimental import sparse
from jax.experimental.ode import odeint
import jax.export
import jax.ffi
import jax.numpy as jnp
import jax.scipy as jsp
from jax.scipy.sparse import linalg as sparse_linalg
from jax.sharding import PartitionSpec as P
import numpy as np
import scipy.linalg
import scipy.special
from testing.red import red
from testing.sharding import eight_devices
from testing.sharding import smap

jax.config.parse_flags_with_absl()

# What pristine JAX says.
NO_RULE = '^NotImplementedError: No replication rule for'
NOT_REFUSED = '^AssertionError: ValueError not raised'
# Most of the time would go to optimising programs that run once.
os.environ['XLA_FLAGS'] = os.environ.get('XLA_FLAGS', '') + (
    ' --xla_backend_optimization_level=0'
    ' --xla_llvm_disable_expensive_passes=true')
eight_devices()


# Modules that register primitives and that `import jax` leaves out.
MODULES = [
    'jax._src.checkify', 'jax._src.cudnn.fused_attention_stablehlo',
    'jax._src.cudnn.fusion', 'jax._src.cudnn.scaled_matmul_stablehlo',
    'jax._src.custom_batching', 'jax._src.custom_dce',
    'jax._src.custom_partitioning', 'jax._src.export._export',
    'jax._src.lax.control_flow.for_loop', 'jax._src.shard_alike',
    'jax._src.state.primitives', 'jax._src.tpu_custom_call',
    'jax.experimental.attrs', 'jax.experimental.compute_on',
    'jax.experimental.jet', 'jax.experimental.key_reuse',
    'jax.experimental.mosaic.gpu', 'jax.experimental.multihost_utils',
    'jax.experimental.ode', 'jax.experimental.pallas',
    'jax.experimental.pallas.tpu', 'jax.experimental.rnn',
    'jax.experimental.roofline', 'jax.experimental.sparse',
]


def primitives():
  for name in MODULES:
    try:
      importlib.import_module(name)
    except ImportError:  # a part of JAX for hardware that is not here
      pass
  gc.unfreeze()  # what a test is forked with is frozen
  return {o for o in gc.get_objects() if isinstance(o, core.Primitive)}


REGISTERED = primitives()  # some of the modules define options of jax.config


class EveryPrimitiveTest(jtu.JaxTestCase):

  @red('^AssertionError: Lists differ: .*addupdate')
  def test_each_has_both_rules_or_a_reason(self):
    registered = REGISTERED
    self.assertGreater(len(registered), 250)
    # One of JAX that nobody knows makes the tables complete, then is refused.
    x = core.Primitive('unknown_to_shard_map')
    x.abstract_eval = lax.sin_p.abstract_eval
    with self.assertRaisesRegex(NotImplementedError, 'unknown_to_shard_map'):
      jax.make_jaxpr(smap(P('i'), P('i'))(x.bind))(np.ones(2))
    try:
      from jax._src.replication.rules import lookup
      reasons = lookup.reasons
    except ImportError:
      reasons = {}
    lacking = sorted(
        p.name for p in registered if p.name not in reasons and not (
            p in shard_map_lib._check_rules and
            p in shard_map_lib._rewrite_rules))
    self.assertEqual(lacking, [])
    for name, reason in reasons.items():
      self.assertIn(name, {p.name for p in registered} | OPTIONAL)
      self.assertGreater(len(reason), 20)


# From modules that need hardware or packages to be imported, or, the last
# one, that 0.5.3 has first.
OPTIONAL = {
    'debug_barrier_p', 'elementwise_inline_asm_p', 'approx_tanh', 'reciprocal'}

EXPORTED = jax.export.deserialize(jax.export.export(jax.jit(jnp.sin))(
    jax.ShapeDtypeStruct((2, 4), jnp.float32)).serialize(vjp_order=1))


@jax.custom_batching.custom_vmap
def custom_vmapped(x):
  return jnp.sin(x)


@custom_vmapped.def_vmap
def batched_sin(size, batched, x):
  del size
  return jnp.sin(x), batched[0]


def bcoo(x):  # fromdense would be most of the time
  rows, columns = np.indices(x.shape)
  indices = np.stack([rows.ravel(), columns.ravel()], 1)
  return sparse.BCOO((x.ravel(), indices), shape=x.shape)


def by_rows(kind):
  def make(x):
    columns = np.indices(x.shape)[1].ravel()
    starts = np.arange(0, x.size + 1, x.shape[1])
    return kind((x.ravel(), columns, starts), shape=x.shape)
  return make


def coo(x):
  rows, columns = np.indices(x.shape)
  return sparse.COO((x.ravel(), rows.ravel(), columns.ravel()), shape=x.shape)


def product(make):
  return lambda x: make(x) @ jnp.sin(x[0])


# Functions of a device's part of x, which varies.
FUNCTIONS = {
    'bcoo': product(lambda x: sparse.BCOO.fromdense(x, nse=8)),
    'bcsr': product(by_rows(sparse.BCSR)),
    'coo': product(coo),
    'csr': product(by_rows(sparse.CSR)),
    'bcoo_transpose': lambda x: bcoo(x).T.todense(),
    'bcoo_sum': lambda x: bcoo(x).sum(0).todense(),
    'sparsify': lambda x: sparse.sparsify(lambda a, b: (a * 2) @ b)(
        bcoo(x), x[0]),
    'checkpoint_name': jax.checkpoint(
        lambda x: jnp.sin(checkpoint_name(jnp.sin(x), 'a')),
        policy=jax.checkpoint_policies.save_only_these_names('a')),
    'export': EXPORTED.call,
}

# Built from loops and conds; the derivative is left out where there is none.
LIBRARY = {
    'expm': (lambda x: jsp.linalg.expm(.1 * x[:, :2], max_squarings=2), True),
    'sqrtm': (lambda x: jnp.abs(jsp.linalg.sqrtm(spd(x))), False),
    'polar': (lambda x: jsp.linalg.polar(spd(x))[0], False),
    'exp1': (lambda x: jsp.special.exp1(jnp.abs(x) + .1), False),
    'hyp1f1': (lambda x: jsp.special.hyp1f1(1.5, 2., jnp.abs(x)), False),
    'binomial': (lambda x: jax.random.binomial(
        jax.random.key(0), 5., jax.nn.sigmoid(x)), False),
    'searchsorted': (lambda x: 1. * jnp.searchsorted(
        jnp.arange(5.), x.ravel()), False),
    'histogram': (lambda x: 1. * jnp.histogram(x, bins=4)[0], False),
    'eigh_tridiagonal': (lambda x: jsp.linalg.eigh_tridiagonal(
        x[0], x[0, 1:], eigvals_only=True), False),
    'piecewise': (lambda x: jnp.piecewise(
        x, [x < 0, x > 1], [jnp.sin, jnp.cos, 0.]), True),
    'fft': (lambda x: jnp.abs(jnp.fft.fft(x)), True),
    'reduce_window': (lambda x: lax.reduce_window(
        x, -jnp.inf, lax.max, (2, 2), (1, 1), 'VALID'), True),
    'cholesky': (lambda x: jnp.linalg.cholesky(spd(x)), True),
    'svd': (lambda x: jnp.linalg.svd(x, compute_uv=False), True),
    'qr': (lambda x: jnp.linalg.qr(x[:, :2])[1], True),
    'gelu': (jax.nn.gelu, True),
    'sort': (lambda x: lax.sort((x, x * 2), num_keys=1)[1], True),
    'top_k': (lambda x: lax.top_k(x, 2)[0], True),
    'pure_callback': (lambda x: jax.pure_callback(
        lambda a: np.asarray(a) * 2, jax.ShapeDtypeStruct(x.shape, x.dtype), x),
        False),
}


# What some of them are by another way, which compiles faster or not at all;
# the others are compared with themselves.
ANOTHER_WAY = {
    'expm': lambda x: lax.scan(
        lambda c, k: ((c[0] + c[1], .1 * c[1] @ x[:, :2] / k), None),
        (jnp.zeros((2, 2)), jnp.eye(2)), jnp.arange(1., 12.))[0][0],
    'sqrtm': lambda x: scipy.linalg.sqrtm(spd(x)),
    'polar': lambda x: scipy.linalg.polar(spd(x))[0],
    'exp1': lambda x: scipy.special.exp1(np.abs(x) + .1),
    'hyp1f1': lambda x: scipy.special.hyp1f1(1.5, 2., np.abs(x)),
    'searchsorted': lambda x: np.searchsorted(np.arange(5.), x.ravel()),
    'histogram': lambda x: np.histogram(x, bins=4)[0],
    'eigh_tridiagonal': lambda x: scipy.linalg.eigvalsh_tridiagonal(
        x[0], x[0, 1:]),
    'odeint': lambda x, r: r[:1] * jnp.exp(
        -x[:1] * jnp.linspace(0., 1., 3)[:, None]),
    'cg': lambda x, r: jnp.linalg.solve(spd(r), x[0]),
}


def spd(x):
  return x @ x.T + 2 * np.eye(len(x), dtype='f')


def halves(x):
  return x.reshape(2, -1, *x.shape[1:])


def unchecked():
  """Without JAX's internal checks, which are slow for deep library functions.

  Those of the rules are part of tracing.
  """
  return jax.enable_checks(False)


def positive(x):
  return jnp.abs(x) + .5


# Of a device's part of x, which varies, and of r, which doesn't, both 4x4.
MIXED = {
    'odeint': lambda x, r: odeint(
        lambda y, t, c: -y * c, r[0], jnp.linspace(0., 1., 3), x[0]),
    'bcoo': lambda x, r: bcoo(x) @ r,
    'bcoo_sampled': lambda x, r: sparse.bcoo_dot_general_sampled(
        x, r, bcoo(r).indices,
        dimension_numbers=(((1,), (0,)), ((), ()))),
}
MIXED_BEFORE = {
    'gamma': lambda x, r: jax.random.gamma(
        jax.random.key(r[0, 0].astype('int32')), positive(x)),
    'cg': lambda x, r: sparse_linalg.cg(lambda v: spd(r) @ v, x[0])[0],
    'solve': lambda x, r: jnp.linalg.solve(spd(r), x),
    'solve_for_r': lambda x, r: jsp.linalg.cho_solve(
        jsp.linalg.cho_factor(spd(x)), r),
    'betaln': lambda x, r: jsp.special.betaln(positive(x), positive(r)),
    'sort': lambda x, r: lax.sort((x, r, x * r), num_keys=2)[2],
    'scatter': lambda x, r: r.at[jnp.argsort(x[0])].add(x),
    'where': lambda x, r: jnp.where(x > 0, r, x * r),
}


@jtu.with_config(jax_numpy_dtype_promotion='standard')
class FunctionsTest(jtu.JaxTestCase):

  def compare(self, f, x, r, derivative=True, other=None):
    """Compares with each device's part of x in turn: one program, for time."""
    g = smap((P('i'), P()), P('i'))(f)
    def single(x, r):
      y = lax.map(lambda part: (other or f)(part, r), halves(x))
      return y.reshape(-1, *y.shape[2:])
    def weighted(y):
      w = jnp.cos(jnp.arange(y.size, dtype=y.dtype)).reshape(y.shape)
      return jnp.sum(jnp.sin(y) * w), y
    def measured(f):
      if not derivative:
        return f
      return jax.value_and_grad(lambda *a: weighted(f(*a)), (0, 1), True)
    if other and not derivative:
      got = jax.jit(g)(x, r)
      want = np.concatenate([other(part, r) for part in halves(x)])
    else:
      got, want = jax.jit(
          lambda *a: [measured(k)(*a) for k in (g, single)])(x, r)
    self.assertAllClose(got, want, rtol=1e-3, atol=1e-3 if derivative else 2e-5,
                        check_dtypes=False)

  def check(self, f, derivative=True, other=None):
    x = np.random.RandomState(0).randn(4, 4).astype(np.float32)
    scaled = lambda f: f and (lambda x, w: f(x * w))
    self.compare(scaled(f), x, np.float32(1.25), derivative, scaled(other))

  @red(NO_RULE)
  @parameterized.named_parameters(*[(f'_{k}', k) for k in sorted(FUNCTIONS)])
  def test_new(self, name):
    self.check(FUNCTIONS[name])

  @red('^Exception: The branches of cond produced mismatched replication '
       r'types\. Please open an issue at', cases=['expm'])
  @red(r'^NotImplementedError: No replication rule for while\. As a '
       'workaround, pass the `check_rep=False` argument',
       cases=['binomial', 'eigh_tridiagonal', 'exp1', 'hyp1f1', 'polar',
              'sqrtm'])
  @parameterized.named_parameters(*[(f'_{k}', k) for k in sorted(LIBRARY)])
  def test_library(self, name):
    with unchecked():
      self.check(*LIBRARY[name], ANOTHER_WAY.get(name))

  def check_mixed(self, f, other=None):
    rng = np.random.RandomState(0)
    self.compare(f, rng.randn(8, 4).astype('f'), rng.randn(4, 4).astype('f'),
                 other=other)

  @red(NO_RULE)
  @parameterized.named_parameters(*[(f'_{k}', k) for k in sorted(MIXED)])
  def test_new_mixed(self, name):
    with jax.enable_checks(name != 'odeint'):
      self.check_mixed(MIXED[name], ANOTHER_WAY.get(name))

  @parameterized.named_parameters(
      *[(f'_{k}', k) for k in sorted(MIXED_BEFORE)])
  def test_mixed(self, name):
    with unchecked():
      self.check_mixed(MIXED_BEFORE[name], ANOTHER_WAY.get(name))

  @red(NO_RULE)
  def test_custom_vmap(self):
    self.check(custom_vmapped, derivative=False)  # it has no transpose

  @red(NO_RULE)
  def test_sparse_is_varying_where_its_operands_are(self):
    f = smap(P('i'), P())(product(bcoo))
    with self.assertRaisesRegex(ValueError, 'out_specs'):
      jax.make_jaxpr(f)(np.ones((4, 4), np.float32))


# Of a device's part of x and of r, evaluated without jit.
EAGER = {
    'reduce_window': lambda x, r: lax.reduce_window(
        x * r[0], 0., lax.add, (1, 2), (1, 1), 'VALID'),
}
EAGER_NEW = {
    'device_put': lambda x, r: x * jax.device_put(r[0]),
    'bcoo': lambda x, r: bcoo(x) @ r[0],
    'while': lambda x, r: x * lax.while_loop(
        lambda c: jnp.sum(c) < 9., lambda c: 2. * c,
        lax.stop_gradient(positive(r[0]))),
}


@jtu.with_config(jax_numpy_rank_promotion='allow')
class EagerTest(jtu.JaxTestCase):

  def check(self, f):
    rng = np.random.RandomState(0)
    x, r = rng.randn(4, 4).astype('f'), rng.randn(2, 4).astype('f')
    g = smap((P('i'), P()), P('i'))(f)
    single = lambda x, r: jnp.concatenate([f(part, r) for part in halves(x)])
    with unchecked():
      got = jax.value_and_grad(
          lambda *a: jnp.sum(jnp.sin(g(*a))), (0, 1))(x, r)
    want = jax.jit(jax.value_and_grad(
        lambda *a: jnp.sum(jnp.sin(single(*a))), (0, 1)))(x, r)
    self.assertAllClose(got, want, rtol=1e-4, atol=1e-4)

  @parameterized.named_parameters(*[(f'_{k}', k) for k in sorted(EAGER)])
  def test_guard(self, name):
    self.check(EAGER[name])

  @red('^ValueError: device_put with explicit device not allowed within '
       'shard_map-decorated functions,', cases=['device_put'])
  @red(NO_RULE)
  @parameterized.named_parameters(*[(f'_{k}', k) for k in sorted(EAGER_NEW)])
  def test_new(self, name):
    self.check(EAGER_NEW[name])

  def test_device_put_elsewhere_is_refused(self):
    f = smap(P(), P())(lambda x: jax.device_put(x, jax.devices()[1]))
    with self.assertRaisesRegex(ValueError, 'explicit device not allowed'):
      f(np.ones(2, np.float32))


told_nothing_p = core.Primitive('told_nothing')
told_nothing_p.def_impl(lambda: jnp.zeros(2))
told_nothing_p.def_abstract_eval(lambda: core.ShapedArray((2,), np.float32))


class EffectsTest(jtu.JaxTestCase):

  @parameterized.named_parameters(
      ('_eager', lambda f: f(), told_nothing_p.bind),
      ('_jit', lambda f: jax.jit(f)(), told_nothing_p.bind),
      ('_in_a_loop', lambda f: jax.jit(f)(), lambda: lax.scan(
          lambda c, _: (c + told_nothing_p.bind(), None), jnp.zeros(2), None,
          length=2)[0]))
  def test_guard_primitive_that_is_told_nothing_is_refused(self, run, f):
    with self.assertRaisesRegex(NotImplementedError, 'rule for told_nothing'):
      run(smap((), P())(f))

  @red("^ValueError: shard_map applied to the function '<lambda>' was given "
       'out_specs which require')
  def test_pure_callback_of_replicated_operands_is_replicated(self):
    f = smap(P(), P())(lambda x: jax.pure_callback(
        lambda a: np.asarray(a) * 2, jax.ShapeDtypeStruct(x.shape, x.dtype), x))
    self.assertAllClose(jax.jit(f)(np.ones(2, np.float32)), np.full(2, 2.),
                        check_dtypes=False)

  @red(NOT_REFUSED)
  def test_rng_uniform_varies(self):
    f = smap((), P())(lambda: lax.rng_uniform(0., 1., (2,)))
    with self.assertRaisesRegex(ValueError, 'out_specs'):
      jax.jit(f)()

  @red("^TypeError: 'NoneType' object is not iterable, raised by "
       r'shard_map\._check_rep')
  def test_infeed_varies(self):
    shape = core.ShapedArray((2,), np.float32)
    f = smap(P(), P())(lambda x: x + lax.infeed(
        lax.create_token(x), shape=(shape,))[0][0])
    with self.assertRaisesRegex(ValueError, 'out_specs'):
      jax.make_jaxpr(f)(np.ones(2, np.float32))

  @red(NOT_REFUSED)
  @parameterized.named_parameters(
      ('', lambda call: call()),
      ('_in_a_loop', lambda call: lax.scan(
          lambda c, _: (c + call(), None), jnp.zeros(2), None, length=2)[0]))
  def test_ffi_call_that_nothing_tells_the_devices_from_varies(self, f):
    result = jax.ShapeDtypeStruct((2,), np.float32)
    random = jax.ffi.ffi_call('not_called', result, has_side_effect=True)
    same = jax.ffi.ffi_call('not_called', result)
    jax.make_jaxpr(smap((), P())(lambda: f(same)))()
    jax.make_jaxpr(smap((), P('i'))(lambda: f(random)))()
    with self.assertRaisesRegex(ValueError, 'out_specs'):
      jax.make_jaxpr(smap((), P())(lambda: f(random)))()

  @red(NO_RULE)
  def test_pgather(self):
    f = smap(P('i'), P('i'))(
        lambda x: parallel.pgather(x, jnp.array([1, 0]), ('i',)))
    # The CPU has no lowering for it; the type is what is tested.
    jax.make_jaxpr(f)(np.arange(4.))


class GuardTest(jtu.JaxTestCase):

  def test_io_callback_varies(self):
    f = smap(P(), P())(lambda x: io_callback(
        lambda a: a, jax.ShapeDtypeStruct(x.shape, x.dtype), x))
    with self.assertRaisesRegex(ValueError, 'out_specs'):
      jax.make_jaxpr(f)(np.ones(2, np.float32))

  def test_pure_callback_of_varying_operands_varies(self):
    f = smap(P('i'), P())(lambda x: jax.pure_callback(
        lambda a: a, jax.ShapeDtypeStruct(x.shape, x.dtype), x))
    with self.assertRaisesRegex(ValueError, 'out_specs'):
      jax.make_jaxpr(f)(np.ones(2, np.float32))
