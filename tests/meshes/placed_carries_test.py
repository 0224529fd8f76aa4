# SPDX-License-Identifier: Apache-2.0
"""Scans whose carry comes to lie on an Explicit axis in their body."""
from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax import lax
from jax._src import config
from jax._src import test_util as jtu
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P
import numpy as np
from testing.oracle import OracleTestCase
from testing.oracle import explicit_mesh
from testing.red import red
from testing.sharding import eight_devices
from testing.sharding import partly_manual
from testing.sharding import shard_map
from testing.sharding import UNCHECKED

jax.config.parse_flags_with_absl()
eight_devices()

# What pristine JAX says.
UNEQUAL_CARRY = '^TypeError: scan .*carry input and carry output must have'
UNEQUAL_TYPES = '^JaxprTypeError: Value for variable .* inconsistently typed'
NO_AXIS = '^ValueError: Resource axis: x of .* is not found in mesh'


def zeros():
  return np.zeros(4, np.float32)


def decayed(a):
  return lax.scan(lambda c, r: (c * jnp.cos(r) + r, None), zeros(), a)[0]


# Each takes rows whose second dimension is spread.
CALLS = {
    'scan': lambda a: lax.scan(lambda c, r: (c + r, c), zeros(), a),
    'chain': lambda a: lax.scan(
        lambda c, r: ((c[0] + c[1], c[1] + r), c[0]), (zeros(), zeros()), a),
    'fori': lambda a: lax.fori_loop(0, 3, lambda i, c: c + a[0] * i, zeros()),
    'reverse': lambda a: lax.scan(
        lambda c, r: (c + r, c), zeros(), a, reverse=True),
    'nested': lambda a: lax.scan(
        lambda c, r: (lax.fori_loop(0, 2, lambda i, d: d + r, c), c),
        zeros(), a),
    'jvp': lambda a: jax.jvp(decayed, (a,), (a,)),
}


if jax.__version_info__ >= (0, 11):  # before, the steps are not concatenated
  CALLS['unroll'] = lambda a: lax.scan(
      lambda c, r: (c + r, c), zeros(), a, unroll=3)


def gradient(a):
  return jax.grad(lambda a: (decayed(a) ** 2).sum())(a)


def gradient_of_steps(a):
  return jax.grad(lambda a: (lax.scan(
      lambda c, r: (c * jnp.cos(r) + r, c * r), zeros(), a)[1] ** 2).sum())(a)


def rows():
  return np.arange(32, dtype=np.float32).reshape(8, 4) / 9


def mapped(f, mesh, **options):
  return shard_map(
      lambda a: jax.tree.map(lambda x: jnp.asarray(x)[None], f(a)), mesh=mesh,
      in_specs=P('x'), out_specs=P('x'), **partly_manual('y', of='xy'),
      **options)


def parts(f, x, number):
  """What each device's part of the rows gives, stacked."""
  return jax.tree.map(lambda *ys: np.stack(ys),
                      *map(f, np.split(x, number)))


class PlacedCarriesTest(OracleTestCase):

  def check(self, f, x, spec, want, sizes=(2, 2), jit=True):
    mesh = explicit_mesh(*sizes)
    return self.same(f(mesh), [x], [spec], mesh=mesh, want=want, jit=jit,
                     rtol=1e-5)

  @red(UNEQUAL_CARRY)
  @parameterized.product(name=list(CALLS), sizes=[(2, 2), (2, 1)])
  def test_varying_carry(self, name, sizes):
    f = CALLS[name]
    self.check(lambda mesh: mapped(f, mesh), rows(), P('x', 'y'),
               parts(f, rows(), 2), sizes)

  if jax.__version_info__ >= (0, 9):  # before, jit is needed

    @red(UNEQUAL_CARRY, bases='>=0.9', cases={'checked': True})
    @red(UNEQUAL_TYPES, bases='>=0.12')
    # Before 0.12, out_specs refuse the axes if the check is off.
    @parameterized.product(
        name=list(CALLS),
        checked=[True, False] if jax.__version_info__ >= (0, 12) else [True])
    def test_without_jit(self, name, checked):
      f, options = CALLS[name], {} if checked else UNCHECKED
      self.check(lambda mesh: mapped(f, mesh, **options), rows(), P('x', 'y'),
                 parts(f, rows(), 2), jit=False)

  @red(NO_AXIS)
  @parameterized.product(name=list(CALLS), jit=[True, False],
                         sizes=[(2, 2), (1, 2)])
  def test_vmap(self, name, jit, sizes):
    f = jax.vmap(CALLS[name])
    x = np.stack([rows(), 2 * rows()])
    self.check(lambda _: f, x, P('x', None, 'y'), f(x), sizes, jit)

  @red(UNEQUAL_CARRY)
  @parameterized.product(f=[gradient, gradient_of_steps],
                         sizes=[(2, 2), (2, 1)])
  def test_gradient(self, f, sizes):
    # From 0.10 on, the linear part is checked before it becomes an equation.
    checks = config.enable_checks.value and jax.__version_info__ < (0, 10)
    with config.enable_checks(checks):
      self.check(lambda mesh: mapped(f, mesh), rows(), P('x', 'y'),
                 parts(f, rows(), 2), sizes)

  @red(UNEQUAL_CARRY)
  def test_spec(self):
    got = self.check(lambda mesh: mapped(CALLS['scan'], mesh), rows(),
                     P('x', 'y'), parts(CALLS['scan'], rows(), 2))
    self.assertEqual(got[0].sharding.spec, P('x', 'y'))


class PlacedCarriesUnchangedTest(jtu.JaxTestCase):

  @parameterized.product(name=list(CALLS), where=['outside', 'unchecked'])
  def test_accepted_before(self, name, where):
    mesh = explicit_mesh(2, 2)
    f = CALLS[name]
    if where == 'outside':
      x, want = jax.device_put(rows(), NamedSharding(mesh, P(None, 'y'))), f(
          rows())
    else:
      x = jax.device_put(rows(), NamedSharding(mesh, P('x', 'y')))
      want, f = parts(f, rows(), 2), mapped(f, mesh, **UNCHECKED)
    for g, w in zip(jax.tree.leaves(jax.jit(f)(x)), jax.tree.leaves(want)):
      self.assertAllClose(np.asarray(g), np.asarray(w), rtol=1e-5)


if __name__ == '__main__':
  absltest.main(testLoader=jtu.JaxTestLoader())
