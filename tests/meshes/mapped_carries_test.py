# SPDX-License-Identifier: Apache-2.0
"""Loops and branches batched over an Explicit axis (jax#29637)."""

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax import lax
from jax._src import test_util as jtu
from jax.extend.core import jaxpr_as_fun
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P
import numpy as np
from testing.oracle import OracleTestCase
from testing.oracle import explicit_mesh
from testing.red import red
from testing.sharding import AxisType
from testing.sharding import eight_devices
from testing.sharding import partly_manual
from testing.sharding import shard_map
from testing.sharding import typed_mesh
from testing.sharding import UNCHECKED

jax.config.parse_flags_with_absl()
eight_devices()

# What pristine JAX says.
NO_AXIS = '^ValueError: Resource axis: x of .* is not found in mesh'


def row_sum(r):
  return lax.scan(lambda c, a: (c + a, c), 0., r)


def powers(k, r):
  return lax.scan(lambda c, a: (c * k + a, None), 0., r)[0]


def of_pairs(r):
  pair, steps = lax.scan(
      lambda c, a: ((jnp.sin(c[0]) + a, c[1] + c[0]), c[1]), (0., 0.), r)
  return sum(jnp.sum(jnp.sin(x)) for x in (*pair, steps))


# Each takes a row, and begins with values that aren't mapped.
CALLS = {
    'scan': row_sum,
    'scan_of_zeros': lambda r: lax.scan(
        lambda c, a: (c + a * r, c), jnp.zeros(4), r),
    'while': lambda r: lax.while_loop(
        lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] + r.sum()), (0, 0.)),
    'while_of_zeros': lambda r: lax.while_loop(
        lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] + r), (0, jnp.zeros(4))),
    'while_mapped': lambda r: lax.while_loop(
        lambda c: c[0] < r[1], lambda c: (c[0] + 1., c[1] + 1),
        (0., jnp.zeros(4))),
    'fori': lambda r: lax.fori_loop(0, 3, lambda i, c: c + r, jnp.zeros(4)),
    'fori_mapped': lambda r: lax.fori_loop(
        0, r[1].astype(int), lambda i, c: c + r, jnp.zeros(4)),
    'cond': lambda r: lax.cond(
        r[1] > 2, lambda s: s + 1., lambda s: s * 2, 3.),
    'cond_of_ones': lambda r: lax.cond(
        r[1] > 2, lambda s: s + 1., lambda s: s * r, jnp.ones(4)),
    'switch': lambda r: lax.switch(
        r[1].astype(int) % 3,
        [lambda s: s + 1., lambda s: s * 2, lambda s: s + r.sum()], 3.),
    'solve': lambda r: lax.custom_linear_solve(
        lambda v: (r[1] + 1.) * v, jnp.ones(4), lambda _, b: b / (r[1] + 1.),
        lambda _, b: b / (r[1] + 1.)),
    'nested': lambda r: lax.scan(
        lambda c, a: (lax.fori_loop(0, 2, lambda _, d: d + a, c), None),
        0., r)[0],
    'jit_inside': lambda r: lax.scan(
        lambda c, a: (jax.jit(lambda c: c * 2)(c) + a, None), 0., r)[0],
    'gradient_by_scalar': lambda r: jax.grad(powers)(2., r),
    'gradient_by_row': lambda r: jax.grad(powers, 1)(2., r),
    'jvp': lambda r: jax.jvp(lambda k: lax.while_loop(
        lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * k + r.sum()),
        (0, 0.))[1], (2.,), (1.,)),
    'second_derivative': lambda r: jax.jvp(jax.grad(of_pairs), (r,), (r,)),
    'gradient_of_cond': lambda r: jax.grad(lambda k: lax.cond(
        r[1] > 2, lambda s: s * k, lambda s: s * 2 * k, 3.))(2.),
}


def steep(r):
  return jnp.sin(r) * r


# Each calls a jitted function that was traced for an array over no mesh.
TRACED = {
    'linearized': lambda r: jax.linearize(jax.jit(steep), jnp.ones(4))[1](r),
    'jaxpr': lambda r: jaxpr_as_fun(
        jax.make_jaxpr(jax.jit(steep))(jnp.ones(4)))(r)[0],
    'closed_over': lambda r: jax.closure_convert(
        jax.jit(steep), jnp.ones(4))[0](r),
}


def rows():
  return np.arange(32, dtype=np.float32).reshape(8, 4) / 7


class MappedCarriesTest(OracleTestCase):

  def check(self, f, x, spec, sizes=(2, 2), context=False, jit=True):
    return self.same(f, [x], [spec], sizes, context=context, jit=jit,
                     rtol=1e-5)

  @red(NO_AXIS)
  @parameterized.product(name=list(CALLS), jit=[True, False],
                         sizes=[(2, 2), (1, 2), (4, 1)])
  def test_rows(self, name, jit, sizes):
    self.check(jax.vmap(CALLS[name]), rows(), P('x'), sizes, jit=jit)

  @red(NO_AXIS)
  @parameterized.product(name=list(TRACED), jit=[True, False])
  def test_traced_for_another_array(self, name, jit):
    self.check(jax.vmap(TRACED[name]), rows(), P('x'), jit=jit)

  @red(NO_AXIS)
  @parameterized.product(name=['scan', 'while_mapped', 'cond', 'nested'],
                         jit=[True, False])
  def test_columns(self, name, jit):
    self.check(jax.vmap(CALLS[name], in_axes=1), rows().T, P(None, 'x'),
               jit=jit)

  @red(NO_AXIS)
  @parameterized.product(name=['scan', 'while', 'cond', 'nested'],
                         jit=[True, False])
  def test_context(self, name, jit):
    self.check(jax.vmap(CALLS[name]), rows(), P('x'), context=True, jit=jit)

  @red(NO_AXIS, bases='<0.8.1', cases={'jit': True})
  @red('^ShardingTypeError: select ')
  @parameterized.product(order=[1, 2], jit=[True, False])
  def test_branches_of_which_one_has_zeros(self, order, jit):
    f = lambda r: lax.switch(
        r[1].astype(int) % 3,
        [lambda: r.sum(), lambda: (r ** 3).sum(), lambda: 1.])
    for _ in range(order):
      f = jax.grad(lambda r, f=f: f(r).sum())
    self.check(jax.vmap(f), rows(), P('x'), context=True, jit=jit)

  @red(NO_AXIS)
  @parameterized.parameters('scan', 'while_mapped', 'fori', 'cond_of_ones',
                            'solve')
  def test_type(self, name):
    mesh = explicit_mesh(2, 2)
    spread = jax.device_put(rows(), NamedSharding(mesh, P('x')))
    f = jax.jit(jax.vmap(CALLS[name]))
    for out in [*jax.tree.leaves(f(spread)), *jax.make_jaxpr(f)(
        spread).out_avals]:
      self.assertEqual(out.sharding.spec[0], 'x')

  @red(NO_AXIS)
  @parameterized.parameters('while', 'while_of_zeros', 'fori_mapped')
  def test_type_of_initial_values(self, name):
    mesh = explicit_mesh(2, 2)
    spread = jax.device_put(rows(), NamedSharding(mesh, P('x')))
    eqns = jax.make_jaxpr(jax.vmap(CALLS[name]))(spread).jaxpr.eqns
    loop = next(e for e in eqns if e.primitive.name == 'while')
    for out, init in zip(reversed(loop.outvars), reversed(loop.invars)):
      self.assertEqual(init.aval.sharding.spec, out.aval.sharding.spec)

  @red('^ValueError: Resource axis: [xy] of .* is not found in mesh')
  @parameterized.product(name=['scan', 'scan_of_zeros', 'while', 'cond'],
                         jit=[True, False])
  def test_nested_vmap(self, name, jit):
    x = np.arange(64, dtype=np.float32).reshape(4, 4, 4) / 9
    f = jax.vmap(jax.vmap(CALLS[name]))
    self.check(f, x, P('x', 'y'), jit=jit)
    self.check(f, x, P('x'), jit=jit)
    self.check(f, x, P(None, 'x'), jit=jit)

  @red(NO_AXIS)
  def test_gradient_outside(self):
    def by_rows(x):
      return jax.grad(lambda x: jax.vmap(row_sum)(x)[0].sum())(x)

    def by_factor(x):
      return jax.grad(lambda k: jax.vmap(
          lambda r: powers(k, r))(x).sum())(2.)
    for f in (by_rows, by_factor):
      for jit in (True, False):
        self.check(f, rows(), P('x'), jit=jit)

  @red(NO_AXIS)
  @parameterized.parameters('scan', 'while', 'cond')
  def test_in_a_partly_manual_shard_map(self, name):
    mesh = explicit_mesh(2, 2)
    x = np.arange(64, dtype=np.float32).reshape(2, 8, 4) / 9
    f = jax.vmap(CALLS[name])
    mapped = shard_map(lambda x: jax.tree.map(lambda y: y[None], f(x[0])),
                       mesh=mesh, in_specs=P('y'), out_specs=P('y'),
                       **partly_manual('x', of='xy'), **UNCHECKED)
    got = jax.jit(mapped)(jax.device_put(x, NamedSharding(mesh, P('y', 'x'))))
    want = jax.tree.map(lambda *ys: np.stack(ys), f(x[0]), f(x[1]))
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want)):
      self.assertAllClose(np.asarray(g), np.asarray(w), rtol=1e-5)

  @red(NO_AXIS)
  def test_one_jaxpr_over_two_meshes(self):
    f = jax.jit(jax.vmap(CALLS['while_mapped']))
    want = f(rows())
    for sizes in ((2, 2), (4, 2), (2, 4)):
      mesh = explicit_mesh(*sizes)
      got = f(jax.device_put(rows(), NamedSharding(mesh, P('x'))))
      for g, w in zip(got, want):
        self.assertEqual(g.sharding.mesh, mesh)
        self.assertAllClose(np.asarray(g), np.asarray(w))


class MappedCarriesUnchangedTest(jtu.JaxTestCase):

  @parameterized.parameters(AxisType.Auto, AxisType.Explicit)
  def test_mapped_from_the_start(self, kind):
    mesh = typed_mesh((2, 2), ('x', 'y'), (kind,) * 2)
    x = jax.device_put(rows(), NamedSharding(mesh, P('x')))
    f = jax.vmap(lambda r: lax.scan(lambda c, a: (c + a, None), r[0], r)[0])
    self.assertAllClose(np.asarray(jax.jit(f)(x)),
                        rows().sum(1) + rows()[:, 0])

  def test_over_automatic_axes(self):
    mesh = typed_mesh((2, 2), ('x', 'y'), (AxisType.Auto,) * 2)
    x = jax.device_put(rows(), NamedSharding(mesh, P('x')))
    for f in CALLS.values():
      for got, want in zip(jax.tree.leaves(jax.vmap(f)(x)),
                           jax.tree.leaves(jax.vmap(f)(rows()))):
        self.assertAllClose(np.asarray(got), np.asarray(want), rtol=1e-5)


if __name__ == '__main__':
  absltest.main(testLoader=jtu.JaxTestLoader())
