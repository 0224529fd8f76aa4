# SPDX-License-Identifier: Apache-2.0
"""Searches in exported tables of a symbolic size (jax#36766, jax#22489)."""
from absl.testing import parameterized
import jax
from jax import export
from jax._src import core
from jax._src import test_util as jtu
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
import numpy as np
from testing.red import red
from testing.sharding import eight_devices, shard_map

jax.config.parse_flags_with_absl()
eight_devices()

# What pristine JAX says.
INCONCLUSIVE = ('^InconclusiveDimensionOperation: Symbolic dimension '
                "comparison '.*' <= '2147483647' is inconclusive")
NOT_CONSTANT = ("^InconclusiveDimensionOperation: Symbolic dimension '.*' "
                'used in a context that requires a constant')
INCONCLUSIVE_BY_RELEASE = {
    '<0.7.2': INCONCLUSIVE,
    '>=0.7.2,<0.9.2':
        "^TypeError: '_DimExpr' object cannot be interpreted as an integer",
    '>=0.9.2': NOT_CONSTANT,
}

SIZES = [(1, 1), (7, 4), (8, 8)]
SIDES = ['left', 'right']


def exported(f, *shapes, dtype=np.float32, **options):
  """What `f` is after it has been stored, for shapes such as 'a, 2'."""
  scope = export.SymbolicScope()
  specs = [jax.ShapeDtypeStruct(
      export.symbolic_shape(shape, scope=scope), dtype) for shape in shapes]
  exp = export.export(jax.jit(f), **options)(*specs)
  return export.deserialize(exp.serialize(vjp_order=1)).call


def numbers(n, seed=0, dtype=np.float32):
  """Numbers of which some are equal."""
  rng = np.random.RandomState(seed)
  return rng.randint(-n, n + 1, n).astype(dtype)


def table_of(n, dtype=np.float32):
  return np.sort(numbers(n, 1, dtype))


class SymbolicTablesTest(jtu.JaxTestCase):

  def check(self, side, method):
    f = exported(lambda a, v: jnp.searchsorted(a, v, side, method=method),
                 'a', 'b')
    special = np.array([np.nan, np.inf, -0.], np.float32)
    for n, m in SIZES:
      table, queries = table_of(n), numbers(m)
      self.assertArraysEqual(
          f(table, queries), np.searchsorted(table, queries, side),
          check_dtypes=False)
    table[-1] = np.nan
    self.assertArraysEqual(
        f(table, special), np.searchsorted(table, special, side),
        check_dtypes=False)

  @red(INCONCLUSIVE_BY_RELEASE)
  @parameterized.product(side=SIDES, method=['scan', 'scan_unrolled'])
  def test_halved(self, side, method):
    self.check(side, method)

  @red(INCONCLUSIVE, bases='<0.7.2')
  @red(NOT_CONSTANT, bases='>=0.9.2')
  @parameterized.product(side=SIDES, method=['sort', 'compare_all'])
  def test_compared(self, side, method):
    self.check(side, method)

  @red(INCONCLUSIVE_BY_RELEASE)
  @parameterized.parameters(np.int32, np.uint8, np.complex64, np.bool_)
  def test_halved_of_dtype(self, dtype):
    f = exported(jnp.searchsorted, 'a', '3', dtype=dtype)
    for n in (1, 6):
      table = table_of(n, dtype)
      queries = np.array([table[0], table[-1], 3], dtype)
      self.assertArraysEqual(f(table, queries), np.searchsorted(
          table, queries), check_dtypes=False)

  @red(INCONCLUSIVE_BY_RELEASE)
  def test_halved_by_a_sorter(self):
    f = exported(lambda a, v: jnp.searchsorted(a, v, sorter=jnp.argsort(a)),
                 'a', '2, b')
    for n, m in SIZES:
      table, queries = numbers(n), numbers(2 * m).reshape(2, m)
      self.assertArraysEqual(f(table, queries), np.searchsorted(
          np.sort(table), queries), check_dtypes=False)

  @red(INCONCLUSIVE_BY_RELEASE)
  def test_halved_and_empty(self):
    f = exported(lambda a, v: jnp.searchsorted(a[1:], v), 'a', 'b')
    self.assertArraysEqual(f(table_of(1), numbers(3)), np.zeros(3, np.int32),
                           check_dtypes=False)
    self.assertArraysEqual(f(np.float32([5, 0, 2]), np.float32([1, 2, 3])),
                           [1, 1, 2], check_dtypes=False)

  @red(INCONCLUSIVE_BY_RELEASE)
  def test_halved_scalar(self):
    f = exported(lambda a, v: jnp.searchsorted(a, v[0]), 'a', '1')
    for n, _ in SIZES:
      query = table_of(n)[n // 2:][:1]
      self.assertEqual(f(table_of(n), query),
                       np.searchsorted(table_of(n), query[0]))

  @red(INCONCLUSIVE_BY_RELEASE)
  def test_halved_in_a_batch(self):
    f = exported(jax.vmap(jnp.searchsorted), 'c, a', 'c, b')
    for n, m in SIZES:
      tables = np.stack([table_of(n), 2 * table_of(n)])
      queries = np.stack([numbers(m), numbers(m, 2)])
      self.assertArraysEqual(f(tables, queries), np.stack([
          np.searchsorted(a, v) for a, v in zip(tables, queries)]),
                             check_dtypes=False)

  @red(INCONCLUSIVE_BY_RELEASE)
  @parameterized.product(right=[False, True])
  def test_halved_by_digitize(self, right):
    f = exported(lambda x, bins: jnp.digitize(x, bins, right), 'b', 'a')
    for n, m in SIZES:
      for bins in (np.unique(table_of(n)), np.unique(table_of(n))[::-1]):
        x = numbers(m)
        self.assertArraysEqual(f(x, bins), np.digitize(x, bins, right),
                               check_dtypes=False)

  @red(INCONCLUSIVE_BY_RELEASE)
  @parameterized.parameters(
      {}, {'left': -5., 'right': 7.}, {'period': 2.5})
  def test_halved_by_interp(self, **options):
    f = exported(lambda x, xp, fp: jnp.interp(x, xp, fp, **options),
                 'b', 'a', 'a')
    for n, m in SIZES:
      xp = np.cumsum(.1 + np.abs(numbers(n, 3))).astype(np.float32) / n
      fp, x = numbers(n, 4), np.linspace(-1, 4, m, dtype=np.float32)
      self.assertAllClose(f(x, xp, fp), np.interp(x, xp, fp, **options),
                          check_dtypes=False, rtol=1e-4, atol=1e-4)

  @red(INCONCLUSIVE_BY_RELEASE)
  def test_halved_by_interp_beyond(self):
    f = exported(lambda x, xp, fp: jnp.interp(
        x, xp, fp, left='extrapolate', right='extrapolate'), 'b', 'a', 'a')
    xp, x = np.float32([0, 1, 3]), np.float32([-1, .5, 2, 5])
    self.assertAllClose(f(x, xp, 2 * xp), 2 * x)

  @red(INCONCLUSIVE_BY_RELEASE)
  def test_halved_gradient(self):
    f = exported(jnp.interp, 'b', 'a', 'a')
    for n in (2, 5):
      xp = np.arange(n, dtype=np.float32)
      fp, x = numbers(n, 4), np.float32([.25, n - 1.5])
      value, (dx, dfp) = jax.value_and_grad(
          lambda x, fp: f(x, xp, fp).sum(), argnums=(0, 1))(x, fp)
      self.assertAllClose(value, np.interp(x, xp, fp).sum(),
                          check_dtypes=False)
      left = x.astype(int)
      self.assertAllClose(dx, (fp[left + 1] - fp[left]))
      expected = np.zeros(n, np.float32)
      np.add.at(expected, left, 1 - (x - left))
      np.add.at(expected, left + 1, x - left)
      self.assertAllClose(dfp, expected)

  @red(INCONCLUSIVE_BY_RELEASE)
  @parameterized.parameters(((8,), 'x'), ((4, 2), ('x', 'y')), ((1,), 'x'))
  def test_halved_on_devices(self, shape, axes):
    devices = np.array(jax.devices()[:np.prod(shape)]).reshape(shape)
    mesh = Mesh(devices, ('x', 'y')[:len(shape)])
    spread, whole = NamedSharding(mesh, P(axes)), NamedSharding(mesh, P())
    scope = export.SymbolicScope()
    a, b = export.symbolic_shape('a, 8*b', scope=scope)
    search = jax.jit(jnp.searchsorted, in_shardings=(whole, spread))
    exp = export.export(search)(
        jax.ShapeDtypeStruct((a,), np.float32),
        jax.ShapeDtypeStruct((b,), np.float32))
    queries = jax.device_put(numbers(16), spread)
    for n in (1, 5):
      table = jax.device_put(table_of(n), whole)
      self.assertArraysEqual(
          exp.call(table, queries),
          np.searchsorted(table_of(n), numbers(16)), check_dtypes=False)

  @red(INCONCLUSIVE_BY_RELEASE)
  def test_halved_for_two_platforms(self):
    f = exported(jnp.searchsorted, 'a', 'b', platforms=['cpu', 'tpu'])
    self.assertArraysEqual(
        jax.jit(f)(table_of(5), numbers(3)),
        np.searchsorted(table_of(5), numbers(3)), check_dtypes=False)

  @parameterized.product(
      method=['scan', 'scan_unrolled', 'sort', 'compare_all'])
  def test_numbers(self, method):
    f = jax.jit(lambda a, v: jnp.searchsorted(a, v, method=method))
    table, queries = table_of(6), numbers(4)
    self.assertArraysEqual(f(table, queries), np.searchsorted(
        table, queries).astype(np.int32))
    text = f.lower(table, queries).as_text()
    self.assertEqual(text.count('stablehlo.while'), int(method == 'scan'))
    self.assertNotIn('count_leading_zeros', text)

  def test_symbolic_queries(self):
    f = exported(lambda v: jnp.searchsorted(table_of(5), v), 'b')
    for m in (1, 4):
      self.assertArraysEqual(
          f(numbers(m)), np.searchsorted(table_of(5), numbers(m)),
          check_dtypes=False)

  def test_guard_refused_in_shard_map(self):
    # From 0.7 on XLA can't call it, and 0.12 crashes on a loop there.
    mesh = Mesh(np.array(jax.devices()[:2]), ('x',))
    f = shard_map(jnp.searchsorted, mesh=mesh, in_specs=(P(), P('x')),
                  out_specs=P('x'))
    with self.assertRaises((core.InconclusiveDimensionOperation, TypeError)):
      exported(f, 'a', '2*b')

  def test_unknown(self):
    for options in ({'side': 'up'}, {'method': 'guess'}):
      with self.assertRaisesRegex(ValueError, 'left|scan'):
        exported(lambda a, v: jnp.searchsorted(a, v, **options), 'a', 'b')
