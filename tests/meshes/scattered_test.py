# SPDX-License-Identifier: Apache-2.0
"""psum_scatter and all_gather over one axis of a mesh with Explicit axes.

The oracle is numpy on the stacked blocks of the devices.
"""
import functools
import inspect

from absl.testing import parameterized
import jax
from jax import lax
from jax._src import core
from jax._src import test_util as jtu
from jax._src.lax import parallel
import jax.numpy as jnp
from jax.sharding import AxisType
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
import numpy as np
from testing.red import red
from testing.sharding import eight_devices

jax.config.parse_flags_with_absl()
eight_devices()

# What pristine JAX says.
PARTITIONED_TWICE = ('^ValueError: Sharding spec .*implies that array axis 2 '
                     'is partitioned 2 times')
WRONG_AXES_OF_EACH = (r"^AssertionError: Lists differ: \[None, None, 'y', "
                      r"None\] != \[None, None, None, 'y'\]")
UNEQUAL_LENGTHS = '^AssertionError: .*raised by core._make_lengths_same'
SPEC_TOO_LONG = (r'^ValueError: Length of sharding\.spec \([0-9]\) must be '
                 'equal to aval')
OTHER_LENGTHS = {
    '<0.11.1': UNEQUAL_LENGTHS,
    '>=0.11.1': SPEC_TOO_LONG,
}

# Of two devices along 'x', each.
BLOCKS = np.random.RandomState(0).uniform(
    -1, 1, (2, 4, 2, 6)).astype(np.float32)


def run(f, x, jit=True):
  """`f` of each device's block; its last dimension is over 'y', Explicit."""
  mesh = jax.make_mesh((2, 2), ('x', 'y'),
                       axis_types=(AxisType.Auto, AxisType.Explicit))
  g = jax.shard_map(lambda x: f(x[0])[None], mesh=mesh, axis_names={'x'},
                    in_specs=P('x'), out_specs=P('x'))
  with jax.set_mesh(mesh):
    x = jax.device_put(x, NamedSharding(mesh, P(None, None, None, 'y')))
    return (jax.jit(g) if jit else g)(x)


class ScatteredTest(jtu.JaxTestCase):

  # Without jit, 0.10.0 to 0.11.0 don't mind a sharding of another rank.
  @red(SPEC_TOO_LONG, bases='>=0.11.1', cases=[False])
  @red(UNEQUAL_LENGTHS, bases='<0.10', cases=[False])
  @red(OTHER_LENGTHS, cases=[True])
  @parameterized.parameters(False, True)
  def test_untiled(self, jit):
    got = run(lambda x: lax.psum_scatter(x, 'x', scatter_dimension=1),
              BLOCKS, jit)
    np.testing.assert_allclose(
        got, np.moveaxis(BLOCKS.sum(0), 1, 0), rtol=1e-5)

  @red(UNEQUAL_LENGTHS, bases='>=0.8.2,<0.11.1')
  @red(SPEC_TOO_LONG, bases='>=0.11.1')
  def test_unreduced(self):
    if not hasattr(lax, 'pcast'):
      self.skipTest('no cast to unreduced')
    types = []
    def f(x):
      x = lax.pcast(x, 'x', to='unreduced')
      y = lax.psum_scatter(x, 'x', scatter_dimension=1)
      types.append(jax.typeof(y).sharding.spec)
      return y
    got = run(f, BLOCKS)
    np.testing.assert_allclose(
        got, np.moveaxis(BLOCKS.sum(0), 1, 0), rtol=1e-5)
    self.assertEqual(types[0], P(None, 'y'))

  @red(PARTITIONED_TWICE, bases='>=0.8.2', cases={'axis': 2})
  @red(WRONG_AXES_OF_EACH, bases='>=0.8.2')
  @parameterized.product(to=['invarying', 'reduced'], axis=[0, 1, 2])
  def test_gathered_and_the_same_everywhere(self, to, axis):
    if not hasattr(lax, 'pcast'):
      self.skipTest('no cast from reduced')
    gather = functools.partial(lax.all_gather, to=to)
    if to == 'invarying' and jax.__version_info__ < (0, 10):
      gather = parallel.all_gather_invariant
    types = []
    def f(x):
      y = gather(x, 'x', axis=axis)
      types.append(jax.typeof(y).sharding.spec)
      return lax.pcast(y, 'x', to='varying')
    got = run(f, BLOCKS)
    np.testing.assert_array_equal(got, [np.stack(BLOCKS, axis)] * 2)
    self.assertEqual(list(types[0]), [None, None, None, 'y'])

  @red(OTHER_LENGTHS)
  def test_the_sharding_of_the_others_stays(self):
    types = []
    def f(x):
      y = lax.psum_scatter(x, 'x', scatter_dimension=1)
      types.append(jax.typeof(y).sharding.spec)
      return y
    run(f, BLOCKS)
    self.assertEqual(types[0], P(None, 'y'))

  @parameterized.parameters('gather', 'scatter')
  def test_guard_what_awaits_a_reduction(self, kind):
    # Over another axis than the collective's own.
    check = getattr(core, 'check_unreduced_args', len)
    if len(inspect.signature(check).parameters) < 3:
      self.skipTest('what is unreduced over any axis is refused before 0.9.1')
    types = []
    def f(x):
      y = jnp.einsum('ajk,bjk->ab', x, x, out_sharding=P(unreduced={'y'}))
      z = (lax.all_gather(y, 'x', tiled=True) if kind == 'gather' else
           lax.psum_scatter(y, 'x', tiled=True))
      types.extend(jax.typeof(v).sharding.spec for v in (y, z))
      return x
    run(f, BLOCKS)
    self.assertEqual(types, [P(None, None, unreduced={'y'})] * 2)

  @red(OTHER_LENGTHS)
  @parameterized.parameters(0, 1)
  def test_tiled(self, dimension):
    got = run(lambda x: lax.psum_scatter(
        x, 'x', scatter_dimension=dimension, tiled=True), BLOCKS)
    np.testing.assert_allclose(
        got, np.stack(np.split(BLOCKS.sum(0), 2, dimension)), rtol=1e-5)

  @red(OTHER_LENGTHS)
  @parameterized.parameters(True, False)
  def test_gradient_of_all_gather(self, tiled):
    w = np.cos(np.arange(8 * 2 * 6, dtype=np.float32).reshape(
        (8, 2, 6) if tiled else (2, 4, 2, 6)))
    def f(x):
      return jax.grad(lambda x: jnp.sum(
          lax.all_gather(x, 'x', tiled=tiled) * w))(x)
    # Each device's loss has both blocks.
    np.testing.assert_allclose(run(f, BLOCKS), 2 * w.reshape(BLOCKS.shape),
                               rtol=1e-5)

  @red(OTHER_LENGTHS)
  def test_gradient_of_psum_scatter(self):
    def f(x):
      return jax.grad(lambda x: jnp.sum(lax.psum_scatter(
          x, 'x', scatter_dimension=1) ** 2) / 2)(x)
    np.testing.assert_allclose(run(f, BLOCKS), [BLOCKS.sum(0)] * 2, rtol=1e-5)
