# SPDX-License-Identifier: Apache-2.0
"""Pallas kernels and functions of references in shard_map, check_rep=True."""
from absl.testing import parameterized
import jax
from jax import lax
from jax._src import core
from jax._src import test_util as jtu
from jax._src.lax.control_flow import for_loop
from jax._src.state import discharge
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.shard_map import shard_map
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
import numpy as np
from testing.red import red
from testing.sharding import eight_devices
from varying.testing.common import equations

jax.config.parse_flags_with_absl()
eight_devices()

# What pristine JAX says.
NO_RULE = '^NotImplementedError: No replication rule for'

X = np.linspace(.5, 1.5, 8, dtype=np.float32).reshape(4, 2)
W = np.array([.75, 1.25], np.float32)


def smap(f, in_specs, out_specs):
  mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ('i', 'j'))
  return shard_map(f, mesh=mesh, in_specs=in_specs, out_specs=out_specs)


def kernel(body, **params):
  return lambda *args: pl.pallas_call(
      body, out_shape=jax.ShapeDtypeStruct(args[0].shape, args[0].dtype),
      interpret=True, **params)(*args)


def times(x_ref, w_ref, o_ref):
  o_ref[...] = x_ref[...] * w_ref[...]


def by_rows(x_ref, o_ref):
  row = pl.program_id(0)
  o_ref[...] = jnp.where(row > 0, jnp.sin(x_ref[...]), -x_ref[...])


def doubled(x_ref, o_ref):
  def body(i, _):
    o_ref[i] = lax.while_loop(lambda c: c < 4., lambda c: 2. * c, x_ref[i])
  lax.fori_loop(0, 2, body, None)


def with_index(x_ref, o_ref):
  o_ref[...] = x_ref[...] + lax.axis_index('i').astype(x_ref.dtype)


def scoped(x_ref, o_ref):
  def body(ref):
    ref[...] = x_ref[...]
    o_ref[...] = ref[...]
  pl.run_scoped(body, pltpu.VMEM(x_ref.shape, x_ref.dtype))


def printing(x_ref, o_ref):
  pl.debug_print('{}', x_ref[0, 0])
  o_ref[...] = x_ref[...]


foreign_p = core.Primitive('foreign')
foreign_p.def_abstract_eval(lambda x: x)


def number(x):
  return x.astype(np.float32)


def of(f):
  def kernel(x_ref, o_ref):
    o_ref[...] = f(x_ref)
  return kernel


# What exists in kernels only, and tells devices no more apart than they are.
OF_KERNELS = {
    'program_id': of(lambda x: x[...] + number(pl.program_id(0))),
    'num_programs': of(lambda x: x[...] + number(pl.num_programs(0))),
    'masked_load': of(lambda x: pl.load(x, (slice(None),))),
    'masked_swap': lambda x, o: pl.store(o, (slice(None),), x[...]),
    'multiple_of': of(
        lambda x: x[...] + number(pl.multiple_of(pl.program_id(0), 2))),
    'max_contiguous': of(
        lambda x: x[...] + number(pl.max_contiguous(pl.program_id(0), 2))),
    'repeat': of(lambda x: pltpu.repeat(x[...], 2, 0)[:4]),
    'roll': of(lambda x: pltpu.roll(x[...], 1, 0)),
    **({'reciprocal': of(lambda x: pl.reciprocal(x[...]))}
       if hasattr(pl, 'reciprocal') else {}),  # since 0.5.3
    'bitcast': of(lambda x: number(pltpu.bitcast(x[...], np.int32))),
    'run_scoped': scoped,
    'debug_print': printing,
}


@jax.custom_vjp
def product(x, w):
  return kernel(times)(x, jnp.broadcast_to(w, x.shape))


product.defvjp(lambda x, w: (product(x, w), (x, w)),
               lambda r, g: (product(g, r[1]), jnp.sum(product(g, 1.) * r[0],
                                                       0)))


def names_in(jaxpr):
  return {eqn.primitive.name for eqn in equations(jaxpr)}


@red(NO_RULE)
class KernelTest(jtu.JaxTestCase):

  @parameterized.named_parameters(
      ('_grid', kernel(by_rows, grid=(2,), in_specs=[pl.BlockSpec(
          (1,), lambda i: (i,))], out_specs=pl.BlockSpec((1,), lambda i: (i,))),
       np.array([-W[0], np.sin(W[1])])),
      ('_loops', kernel(doubled), np.array([6., 5.], np.float32)),
      ('_in_a_loop', lambda w: lax.while_loop(
          lambda c: c.sum() < 50., lambda c: kernel(times)(c, 0. * c + 2.), w),
       32. * W))
  def test_replicated_result(self, f, want):
    g = smap(f, P(), P())
    self.assertAllClose(jax.jit(g)(W), want, rtol=1e-5)
    self.assertAllClose(g(W), want, rtol=1e-5)

  @parameterized.parameters(*OF_KERNELS)
  def test_primitive_of_kernels(self, name):
    def f(x):
      return kernel(OF_KERNELS[name], grid=(x[0, 0].astype(np.int32),))(x)
    jaxpr = jax.make_jaxpr(smap(f, P(), P()))(X)
    self.assertIn(name, names_in(jaxpr.jaxpr))

  def test_primitive_of_another_library(self):
    f = kernel(of(lambda x: foreign_p.bind(x[...])))
    jaxpr = jax.make_jaxpr(smap(f, P(), P()))(W)
    self.assertIn('foreign', names_in(jaxpr.jaxpr))

  def test_gradient(self):
    g = smap(product, (P('i', 'j'), P('j')), P('i', 'j'))
    self.assertAllClose(jax.jit(g)(X, W), X * W, rtol=1e-5)
    loss = lambda f: lambda x, w: jnp.sum(jnp.sin(f(x, w)))
    want = jax.grad(loss(lambda x, w: x * w[None]), (0, 1))(X, W)
    self.assertAllClose(jax.jit(jax.grad(loss(g), (0, 1)))(X, W), want,
                        rtol=1e-5)

  def test_forward_derivative_of_replicated(self):
    g = smap(lambda w: kernel(times)(w, w), P(), P())
    _, t = jax.jit(lambda w: jax.jvp(g, (w,), (w,)))(W)
    self.assertAllClose(t, 2 * W * W, rtol=1e-5)

  def test_that_asks_where_it_is(self):
    with self.assertRaisesRegex(ValueError, 'out_specs'):
      jax.jit(smap(kernel(with_index), P(), P()))(W)
    g = smap(lambda w: lax.pmax(kernel(times)(w, w), 'i'), P('i'), P())
    self.assertAllClose(jax.jit(g)(W), W[1:]**2, rtol=1e-5)


def twice(w):
  def body(refs):
    x, y = refs
    y[...] = x[...] * 2.
  return discharge.run_state(body)((w, jnp.zeros_like(w)))[1]


def powers(w):
  def body(i, refs):
    x, y = refs
    y[...] = y[...] * x[...]
  return for_loop.for_loop(3, body, (w, jnp.ones_like(w)))[1]


def mixed(w):
  """References that come to vary one after another."""
  def body(i, refs):
    x, y, z = refs
    z[...] = z[...] + y[...]
    y[...] = y[...] + x[...]
  r = jnp.ones_like(w)
  return for_loop.for_loop(3, body, (w, r, r))


@red(NO_RULE)
class RefsTest(jtu.JaxTestCase):

  @parameterized.named_parameters(
      ('_run_state', twice, lambda w: 2 * w), ('_for', powers, lambda w: w**3))
  def test_types_and_values(self, f, want):
    for spec in P(), P('i'):
      g = smap(f, spec, spec)
      self.assertAllClose(jax.jit(g)(W), want(W), rtol=1e-5)
      self.assertAllClose(g(W), want(W), rtol=1e-5)
    with self.assertRaisesRegex(ValueError, 'out_specs'):
      jax.jit(smap(f, P('i'), P()))(W)

  def test_gradient_of_loop(self):
    got = jax.jit(jax.grad(lambda w: smap(powers, P(), P('i'))(w).sum()))(W)
    self.assertAllClose(got, 6 * W**2, rtol=1e-5)

  def test_fixpoint_of_loop(self):
    g = smap(lambda w: mixed(w)[2], P('i'), P('i'))
    self.assertAllClose(jax.jit(g)(W), 4 + 3 * W, rtol=1e-5)
    with self.assertRaisesRegex(ValueError, 'out_specs'):
      jax.jit(smap(lambda w: mixed(w)[2], P('i'), P()))(W)
