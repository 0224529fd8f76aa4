# SPDX-License-Identifier: Apache-2.0
"""custom_partitioning over Explicit axes, and in partly manual regions."""
import subprocess
import sys

import jax
from jax import lax
from jax._src import config
from jax._src import test_util as jtu
from jax.experimental.custom_partitioning import custom_partitioning
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
import numpy as np
from testing.red import red
from testing.sharding import AxisType, eight_devices, typed_mesh

config.parse_flags_with_absl()
eight_devices()

# What pristine JAX says.
MISMATCHED_RESULT = ('^XlaRuntimeError: INTERNAL: custom_partitioner: '
                     r'[\s\S]*Mismatch in result shapes')
NO_SHARDING_CALL = ('^JaxRuntimeError: NOT_FOUND: No registered '
                    'implementation for untyped custom call to Sharding')
OTHER_AXIS_TYPES = {
    '<0.5.3': r'^AssertionError: Mesh\(.*, axis_types=\{Auto: .*\}\) != Mesh',
    '>=0.5.3':
        r'^AssertionError: Mesh\(.*, axis_types=\(Auto, Auto\)\) != Mesh',
}

X = np.arange(32., dtype=np.float32).reshape(4, 8) / 10
use_mesh = getattr(jax, 'set_mesh', None) or jax.sharding.use_mesh
TYPES = {'explicit': (AxisType.Explicit,) * 2, 'auto': (AxisType.Auto,) * 2,
         'mixed': (AxisType.Explicit, AxisType.Auto)}


def mesh_of(types):
  return typed_mesh((2, 2), ('x', 'y'), TYPES[types])


def transposing(seen):
  """A transposition that says itself how it is partitioned."""
  def turned(mesh, sharding):
    return NamedSharding(mesh, P(*reversed(tuple(sharding.spec))))

  def partition(mesh, args, result):
    seen.append((mesh, args[0].sharding))
    return (mesh, jnp.transpose, result.sharding,
            (turned(mesh, result.sharding),))

  f = custom_partitioning(lambda x: x.T)
  f.def_partition(
      infer_sharding_from_operands=lambda m, a, r: turned(m, a[0].sharding),
      partition=partition, sharding_rule='i j -> j i')
  return f


def noise():
  # Traced as it is lowered, too.
  return lax.cumsum(jax.random.uniform(jax.random.key(0), (2,)))[1]


def normalizing():
  """A division by the sum of all devices' parts."""
  def part(x):
    total = lax.psum(jnp.sum(x), ('x', 'y'))
    return x * 2 / total + jnp.ones_like(x) * noise()
  f = custom_partitioning(
      lambda x: x * 2 / jnp.sum(x) + jnp.ones_like(x) * noise())
  f.def_partition(
      infer_sharding_from_operands=lambda m, a, r: a[0].sharding,
      partition=lambda m, a, r: (m, part, r.sharding, (r.sharding,)),
      sharding_rule='i j -> i j')
  return f


PARTLY_MANUAL = """
import contextlib
import jax
from jax._src import test_util as jtu
import jax.numpy as jnp
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
import numpy as np

if hasattr(jtu, 'request_cpu_devices'):  # by the environment up to 0.5.3
  jtu.request_cpu_devices(8)
mesh = jax.make_mesh((2, 2), ('x', 'y'), axis_types=(AxisType.Auto,) * 2)
x = np.arange(32., dtype=np.float32).reshape(4, 8)
sine = custom_partitioning(jnp.sin)
sine.def_partition(
    infer_sharding_from_operands=lambda m, a, r: a[0].sharding,
    partition=lambda m, a, r: (m, jnp.sin, a[0].sharding, (a[0].sharding,)),
    sharding_rule='i j -> i j')
for name, context in [('none', contextlib.nullcontext()), ('mesh', mesh)]:
  with context:
    f = jax.jit(jax.shard_map(sine, mesh=mesh, in_specs=P('x'),
                              out_specs=P('x'), axis_names={'x'}))
    out = f(jax.device_put(x, NamedSharding(mesh, P('x', 'y'))))
  np.testing.assert_allclose(out, np.sin(x), rtol=1e-5)
  print(name)
"""


class CustomPartitioningTest(jtu.JaxTestCase):

  def check_axis_types(self, types):
    mesh, seen = mesh_of(types), []
    f = transposing(seen)
    with use_mesh(mesh):
      spec = P('x') if types == 'mixed' else P('x', 'y')
      x = jax.device_put(X, NamedSharding(mesh, spec))
      out = jax.jit(lambda x: jnp.sin(f(x)))(x)
    self.assertAllClose(np.asarray(out), np.sin(X.T))
    for given, sharding in seen:
      self.assertEqual(given, mesh)
      self.assertEqual(sharding.mesh, mesh)
    self.assertNotEmpty(seen)

  @red(OTHER_AXIS_TYPES)
  def test_axis_types(self):
    self.check_axis_types('explicit')

  @red(OTHER_AXIS_TYPES)
  def test_mixed_axis_types(self):
    self.check_axis_types('mixed')

  @red(MISMATCHED_RESULT, bases='<0.5.3')
  def test_automatic_axes_stay(self):
    self.check_axis_types('auto')

  def check_operations(self, types):
    mesh, f = mesh_of(types), normalizing()
    with use_mesh(mesh):
      x = jax.device_put(X, NamedSharding(mesh, P('x', 'y')))
      out = jax.jit(lambda x: jnp.sin(f(x)))(x)
    want = 2 * X / X.sum() + np.float32(noise())
    self.assertAllClose(np.asarray(out), np.sin(want))

  @red(MISMATCHED_RESULT, bases='<0.5.3')
  @red(NO_SHARDING_CALL, bases='>=0.11')
  @red(NO_SHARDING_CALL, bases='>=0.8,<0.9.1')
  @red('^XlaRuntimeError: NOT_FOUND: No registered implementation for '
       'untyped custom call to Sharding', bases='>=0.6.1,<0.8')
  @red('^XlaRuntimeError: UNIMPLEMENTED: Unsupported reduction computation',
       bases='>=0.5.3,<0.6.1')
  def test_operations_of_one_device(self):
    self.check_operations('explicit')

  @red(MISMATCHED_RESULT, bases='<0.5.3')
  def test_operations_over_automatic_axes_stay(self):
    self.check_operations('auto')

  @red('^AssertionError: -6 != 0 : .*', bases='>=0.7')
  def test_partly_manual(self):
    # A process of its own, as what went wrong aborted it.
    if not jax.config.jax_use_shardy_partitioner:  # before 0.7
      self.skipTest('aborts the process there with or without a context')
    done = subprocess.run([sys.executable, '-c', PARTLY_MANUAL],
                          capture_output=True, text=True)
    self.assertEqual(done.returncode, 0, done.stderr[-300:])
    self.assertEqual(done.stdout.split(), ['none', 'mesh'])
