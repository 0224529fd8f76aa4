# SPDX-License-Identifier: Apache-2.0
"""Exported shardings on a mesh with other axis names (jax#21314, jax#24143)."""

from absl.testing import parameterized
import jax
from jax import export
from jax._src import test_util as jtu
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P
import numpy as np
from testing.red import red
from testing.sharding import eight_devices

jax.config.parse_flags_with_absl()
eight_devices()

# What pristine JAX says.
OTHER_MESH = ('^ValueError: NamedSharding new mesh .* does not match the mesh '
              'used for export')

SHAPES = {
    'one': ((8,), 'x', 'a'), 'two': ((4, 2), 'xy', 'ab'),
    'swapped': ((4, 2), 'xy', 'yx'), 'square': ((2, 2), 'xy', 'yx'),
    'size_1': ((1, 4), 'xy', 'ab'), 'three': ((2, 2, 2), 'xyz', 'abc'),
}


def mesh_of(shape, names, reverse=False, **options):
  devices = np.array(jax.devices()[:np.prod(shape)])
  return Mesh((devices[::-1] if reverse else devices).reshape(shape),
              tuple(names), **options)


def specs_of(names):
  yield P(names[0])
  yield P(None, tuple(names))
  yield P(tuple(names)[::-1])
  yield P(*names[:2])
  yield P()


class ExportedMeshesTest(jtu.JaxTestCase):

  def exported(self, mesh, spec, serialized):
    sharding = NamedSharding(mesh, spec)
    x = np.arange(64, dtype=np.float32).reshape(8, 8)
    exp = export.export(jax.jit(
        lambda x: x * 2, in_shardings=sharding, out_shardings=sharding))(x)
    return export.deserialize(exp.serialize()) if serialized else exp

  @red(OTHER_MESH)
  @parameterized.product(kind=[*SHAPES], serialized=[False, True])
  def test_other_names(self, kind, serialized):
    shape, old, new = SHAPES[kind]
    run = mesh_of(shape, new, reverse=True)
    x = np.arange(64, dtype=np.float32).reshape(8, 8)
    for spec, other in zip(specs_of(old), specs_of(new)):
      exp = self.exported(mesh_of(shape, old), spec, serialized)
      expected = NamedSharding(run, other)
      for got in exp.in_shardings_jax(run), exp.out_shardings_jax(run):
        self.assertLen(got, 1)
        self.assertTrue(got[0].is_equivalent_to(expected, 2), (got, expected))
        self.assertEqual(got[0].mesh, run)
      placed = jax.device_put(x, exp.in_shardings_jax(run)[0])
      self.assertTrue(placed.sharding.is_equivalent_to(expected, 2))
      self.assertArraysEqual(exp.call(placed), 2 * x)

  @red(OTHER_MESH)
  def test_abstract_mesh(self):
    exp = self.exported(mesh_of((4, 2), 'xy'), P('x', 'y'), False)
    run = mesh_of((4, 2), 'ab').abstract_mesh
    got, = exp.in_shardings_jax(run)
    self.assertEqual((got.mesh, got.spec), (run, P('a', 'b')))

  def test_same_names(self):
    exp = self.exported(mesh_of((4, 2), 'xy'), P('x', 'y'), False)
    run = mesh_of((4, 2), 'xy', reverse=True)
    self.assertEqual(exp.in_shardings_jax(run)[0],
                     NamedSharding(run, P('x', 'y')))
    self.assertEqual(exp.in_shardings_jax(None)[0].spec, P('x', 'y'))

  def test_refused(self):
    exp = self.exported(mesh_of((4, 2), 'xy'), P('x', 'y'), False)
    for run in (mesh_of((2, 4), 'ab'), mesh_of((8,), 'x'),
                mesh_of((4, 2), 'ab', axis_types=(AxisType.Explicit,) * 2)):
      with self.assertRaisesRegex(ValueError, 'does not match the mesh'):
        exp.in_shardings_jax(run)

  def test_unspecified(self):
    exp = export.export(jax.jit(lambda x: x))(np.ones(8, np.float32))
    self.assertEqual(exp.in_shardings_jax(mesh_of((8,), 'q')), (None,))

  @red(OTHER_MESH)
  def test_derivative(self):
    mesh, run = mesh_of((8,), 'x'), mesh_of((8,), 'a')
    sharding = NamedSharding(mesh, P('x'))
    x = np.arange(8, dtype=np.float32)
    exp = export.deserialize(export.export(jax.jit(
        lambda x: x * x, in_shardings=sharding, out_shardings=sharding))(
            x).serialize(vjp_order=1))
    placed = jax.device_put(x, exp.in_shardings_jax(run)[0])
    self.assertArraysEqual(
        jax.grad(lambda x: exp.call(x).sum())(placed), 2 * x)
