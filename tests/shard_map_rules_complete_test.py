# Copyright 2026 The Mend Authors.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     https://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""Every primitive has a replication rule or a reason, check_rep=True."""
import gc
import importlib

from absl.testing import absltest
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
from jax.experimental.shard_map import shard_map
import jax.export
import jax.numpy as jnp
import jax.scipy as jsp
from jax.scipy.sparse import linalg as sparse_linalg
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
import numpy as np

jax.config.parse_flags_with_absl()
if hasattr(jtu, 'request_cpu_devices'):
  jtu.request_cpu_devices(8)


def smap(in_specs, out_specs):
  mesh = Mesh(np.array(jax.devices()[:2]), ('i',))
  return lambda f: shard_map(f, mesh=mesh, in_specs=in_specs,
                             out_specs=out_specs)


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
  return {o for o in gc.get_objects() if isinstance(o, core.Primitive)}


REGISTERED = primitives()  # some of the modules define options of jax.config


class EveryPrimitiveTest(jtu.JaxTestCase):

  def test_each_has_both_rules_or_a_reason(self):
    registered = REGISTERED
    self.assertGreater(len(registered), 250)
    # One that nobody knows makes the tables complete, then is refused.
    x = core.Primitive('unknown_to_shard_map')
    x.def_abstract_eval(lambda a: a)
    with self.assertRaisesRegex(NotImplementedError, 'unknown_to_shard_map'):
      jax.make_jaxpr(smap(P('i'), P('i'))(x.bind))(np.ones(2))
    try:
      from jax._src.shard_map_rules import lookup
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


# From modules that need hardware or packages to be imported.
OPTIONAL = {
    'debug_barrier_p', 'elementwise_inline_asm_p', 'approx_tanh'}

EXPORTED = jax.export.deserialize(jax.export.export(jax.jit(jnp.sin))(
    jax.ShapeDtypeStruct((2, 4), jnp.float32)).serialize(vjp_order=1))


@jax.custom_batching.custom_vmap
def custom_vmapped(x):
  return jnp.sin(x)


@custom_vmapped.def_vmap
def _(axis_size, in_batched, x):
  return jnp.sin(x), in_batched[0]


SPARSE = lambda kind: lambda x: kind.fromdense(x, nse=8) @ jnp.sin(x[0])

# Functions of a device's part of x, which varies.
FUNCTIONS = {
    'bcoo': SPARSE(sparse.BCOO),
    'bcsr': SPARSE(sparse.BCSR),
    'coo': SPARSE(sparse.COO),
    'csr': SPARSE(sparse.CSR),
    'bcoo_transpose': lambda x: sparse.BCOO.fromdense(x, nse=8).T.todense(),
    'bcoo_sum': lambda x: sparse.BCOO.fromdense(x, nse=8).sum(0).todense(),
    'sparsify': lambda x: sparse.sparsify(lambda a, b: (a * 2) @ b)(
        sparse.BCOO.fromdense(x, nse=8), x[0]),
    'checkpoint_name': jax.checkpoint(
        lambda x: jnp.sin(checkpoint_name(jnp.sin(x), 'a')),
        policy=jax.checkpoint_policies.save_only_these_names('a')),
    'export': EXPORTED.call,
}

# Built from loops and conds; the derivative is left out where there is none.
LIBRARY = {
    'expm': (lambda x: jsp.linalg.expm(.1 * x[:, :2]), True),
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


def spd(x):
  return x @ x.T + 2 * jnp.eye(len(x))


def positive(x):
  return jnp.abs(x) + .5


# Of a device's part of x, which varies, and of r, which doesn't, both 4x4.
MIXED = {
    'odeint': lambda x, r: odeint(
        lambda y, t, c: -y * c, r[0], jnp.linspace(0., 1., 3), x[0]),
    'bcoo': lambda x, r: sparse.BCOO.fromdense(x, nse=16) @ r,
    'bcoo_sampled': lambda x, r: sparse.bcoo_dot_general_sampled(
        x, r, sparse.BCOO.fromdense(r, nse=16).indices,
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

  def check(self, f, derivative=True):
    x = np.random.RandomState(0).randn(4, 4).astype(np.float32)
    h = lambda x, w: f(x * w)
    g = smap((P('i'), P()), P('i'))(h)
    single = lambda x, w: jnp.concatenate([h(x[:2], w), h(x[2:], w)])
    w = np.float32(1.25)
    self.assertAllClose(jax.jit(g)(x, w), single(x, w), rtol=2e-4, atol=2e-5,
                        check_dtypes=False)
    if derivative:
      got, want = [jax.jit(jax.grad(lambda x, w: jnp.sum(jnp.sin(k(x, w))),
                                    (0, 1)))(x, w) for k in (g, single)]
      self.assertAllClose(got, want, rtol=1e-3, atol=1e-3, check_dtypes=False)

  @parameterized.named_parameters(*[(f'_{k}', k) for k in sorted(FUNCTIONS)])
  def test_new(self, name):
    self.check(FUNCTIONS[name])

  @parameterized.named_parameters(*[(f'_{k}', k) for k in sorted(LIBRARY)])
  def test_library(self, name):
    self.check(*LIBRARY[name])

  def check_mixed(self, f):
    rng = np.random.RandomState(0)
    x, r = rng.randn(8, 4).astype('f'), rng.randn(4, 4).astype('f')
    g = smap((P('i'), P()), P('i'))(f)
    single = lambda x, r: jnp.concatenate([f(x[:4], r), f(x[4:], r)])
    weighted = lambda y: jnp.sum(
        jnp.sin(y) * np.cos(np.arange(y.size)).reshape(y.shape))
    got, want = [jax.jit(jax.value_and_grad(
        lambda x, r: weighted(k(x, r)), (0, 1)))(x, r) for k in (g, single)]
    self.assertAllClose(got, want, rtol=1e-3, atol=1e-3, check_dtypes=False)

  @parameterized.named_parameters(*[(f'_{k}', k) for k in sorted(MIXED)])
  def test_new_mixed(self, name):
    self.check_mixed(MIXED[name])

  @parameterized.named_parameters(
      *[(f'_{k}', k) for k in sorted(MIXED_BEFORE)])
  def test_mixed(self, name):
    self.check_mixed(MIXED_BEFORE[name])

  def test_custom_vmap(self):
    self.check(custom_vmapped, derivative=False)  # it has no transpose

  def test_eager(self):
    x = np.random.RandomState(0).randn(4, 4).astype(np.float32)
    y = smap(P('i'), P('i'))(SPARSE(sparse.BCOO))(x)
    want = np.concatenate([p @ np.sin(p[0]) for p in (x[:2], x[2:])])
    self.assertAllClose(y, want, rtol=1e-4, check_dtypes=False)

  def test_sparse_is_varying_where_its_operands_are(self):
    f = smap(P('i'), P())(lambda x: SPARSE(sparse.BCOO)(x))
    with self.assertRaisesRegex(ValueError, 'out_specs'):
      jax.make_jaxpr(f)(np.ones((4, 4), np.float32))


class EffectsTest(jtu.JaxTestCase):

  def test_pure_callback_of_replicated_operands_is_replicated(self):
    f = smap(P(), P())(lambda x: jax.pure_callback(
        lambda a: np.asarray(a) * 2, jax.ShapeDtypeStruct(x.shape, x.dtype), x))
    self.assertAllClose(jax.jit(f)(np.ones(2, np.float32)), np.full(2, 2.),
                        check_dtypes=False)

  def test_rng_uniform_varies(self):
    f = smap((), P())(lambda: lax.rng_uniform(0., 1., (2,)))
    with self.assertRaisesRegex(ValueError, 'out_specs'):
      jax.jit(f)()

  def test_infeed_varies(self):
    shape = core.ShapedArray((2,), np.float32)
    f = smap(P(), P())(lambda x: x + lax.infeed(
        lax.create_token(x), shape=(shape,))[0][0])
    with self.assertRaisesRegex(ValueError, 'out_specs'):
      jax.make_jaxpr(f)(np.ones(2, np.float32))

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


if __name__ == '__main__':
  absltest.main(testLoader=jtu.JaxTestLoader())
