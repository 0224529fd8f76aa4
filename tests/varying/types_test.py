# SPDX-License-Identifier: Apache-2.0
"""The helpers that read and change what a type varies over."""
import jax
from jax import lax
from jax._src import core
from jax._src import test_util as jtu
from jax._src.varying import types as vt
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
import numpy as np
from testing.sharding import eight_devices, shard_map

jax.config.parse_flags_with_absl()
eight_devices()

X, XY, NONE = map(frozenset, ['x', 'xy', ''])


def inside(f, *args, names=('x', 'y')):
  """The result of ``f`` when it is traced inside a shard_map."""
  mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), names)
  found = []
  def g(*args):
    found.append(f(*args))
    return args
  specs = (P('x'),) * len(args)
  jax.make_jaxpr(shard_map(g, mesh=mesh, in_specs=specs, out_specs=specs))(
      *args)
  return found[0]


class VaryingTypesTest(jtu.JaxTestCase):

  def test_types_of_values(self):
    def f(x):
      self.assertTrue(vt.checking())
      return [vt.varying(vt.typeof(v)) for v in (
          x, x * 2, 1., np.ones(3), lax.axis_index('y'), lax.psum(x, 'x'))]
    self.assertEqual(inside(f, np.ones(4)),
                     [X, X, NONE, NONE, frozenset('y'), NONE])

  def test_outside_nothing_varies(self):
    self.assertFalse(vt.checking())
    self.assertFalse(vt.promoting())
    self.assertEqual(vt.varying(vt.typeof(jnp.ones(3))), NONE)
    self.assertEqual(vt.varying(core.abstract_token), NONE)

  def test_change_and_back(self):
    def f(x):
      old = vt.typeof(x)
      new = vt.with_varying(old, XY)
      return (vt.varying(new), vt.with_varying(new, X) == old,
              vt.with_varying(old, X) is old,
              vt.promotable(old, XY), vt.promotable(new, X))
    self.assertEqual(inside(f, np.ones(4)), (XY, True, True, True, False))

  def test_cast(self):
    def f(x):
      y = vt.cast(x, XY)
      return (vt.varying(vt.typeof(y)), vt.cast(y, X) is y, vt.cast(x, X) is x)
    self.assertEqual(inside(f, np.ones(4)), (XY, True, True))

  def test_axes_are_in_the_order_of_the_mesh(self):
    for names in ('x', 'y'), ('y', 'x'):
      got = inside(lambda x: vt.ordered(frozenset('yxa')), np.ones(4),
                   names=names)
      self.assertEqual(got, (*names, 'a'))

  def test_option_is_part_of_the_tracing_cache_key(self):
    # Traced afresh when it changes, and only then.
    traces = []
    @jax.jit
    def f(x):
      traces.append(vt.promote_carries.value)
      return x
    for value in (True, True, False, False):
      with vt.promote_carries(value):
        f(1.)
    self.assertEqual(traces, [True, False])
