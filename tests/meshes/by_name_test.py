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
"""Keyword arguments of shard_map, smap, auto_axes and explicit_axes."""
import unittest

from absl.testing import absltest
import jax
from jax import lax
from jax._src import config
from jax._src import pjit
from jax._src import test_util as jtu
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
import numpy as np
from varying.testing import common
from varying.testing.common import shard_map

config.parse_flags_with_absl()

X = np.arange(8., dtype=np.float32)
W = np.linspace(1., 2., 8, dtype=np.float32)
HAS_SMAP = hasattr(jax, 'smap')
auto_axes = pjit.auto_axes
explicit_axes = pjit.explicit_axes
# Before 0.7 these were plural.
_suffix = '' if HAS_SMAP else 's'
set_mesh = getattr(jax, 'set_mesh', None) or jax.sharding.use_mesh


def make_mesh(axis_type):
  return jax.sharding.Mesh(np.array(jax.devices()[:4]), ('x',),
                           axis_types=(axis_type,))


def weighted(x, w, *, scale=1., **more):
  total = lax.psum(jnp.sum(x * w), 'x')
  return x * scale + total + sum(jnp.sum(v) for v in more.values())


class ShardMapTest(jtu.JaxTestCase):

  def check(self, f, *args, want=None, **kwargs):
    want = X + np.sum(X * W) if want is None else want
    for g in f, jax.jit(f):
      self.assertAllClose(np.asarray(g(*args, **kwargs)), want, rtol=1e-5,
                          check_dtypes=False)

  def mapped(self, f, in_specs, *sizes):
    return shard_map(f, mesh=common.make_mesh(*(sizes or (4,))),
                     in_specs=in_specs, out_specs=P('x'))

  def test_by_position(self):
    self.check(self.mapped(weighted, (P('x'), P('x'))), X, w=W)

  def test_all_by_name(self):
    self.check(self.mapped(weighted, (P('x'), P('x'))), w=W, x=X)

  def test_dictionary(self):
    specs = {'x': P('x'), 'w': P('x'), 'scale': P(), 'more': P(), 'm': P()}
    f = self.mapped(weighted, specs, 4, 2)
    self.check(f, X, W, scale=2., m=np.float32([1, 2]),
               want=2 * X + np.sum(X * W) + 3)

  def test_one_spec(self):
    self.check(self.mapped(weighted, P('x')), X, w=W)

  def test_trees(self):
    f = self.mapped(lambda x, ws: weighted(x, ws['a']) + ws['b'],
                    (P('x'), {'a': P('x'), 'b': P()}))
    self.check(f, X, ws={'a': W, 'b': np.float32(3)},
               want=X + np.sum(X * W) + 3)

  def test_gradient(self):
    f = self.mapped(weighted, {'x': P('x'), 'w': P('x')})
    got = jax.grad(lambda w: jnp.sum(f(X, w=w)))(W)
    self.assertAllClose(got, 8 * X, rtol=1e-5)

  def test_keyword_without_a_spec(self):
    f = self.mapped(weighted, (P('x'), P('x')))
    with self.assertRaisesRegex(TypeError, "a spec for the parameter 'scale'"):
      f(X, W, scale=2.)

  def test_name_of_no_parameter(self):
    f = self.mapped(lambda x, w: x * w, {'x': P('x'), 'v': P('x')})
    with self.assertRaisesRegex(TypeError, r"names of parameters.*\['v'\]"):
      f(X, w=W)

  def test_partly_manual(self):
    mesh = common.make_mesh(4, 2)
    some = ({'axis_names': {'x'}} if HAS_SMAP else {'auto': frozenset({'y'})})
    f = shard_map(weighted, mesh=mesh, in_specs={'x': P('x'), 'w': P('x')},
                  out_specs=P('x'), **some)
    got = jax.jit(f)(X, w=W)
    self.assertAllClose(np.asarray(got), X + np.sum(X * W), rtol=1e-5)


@unittest.skipUnless(HAS_SMAP, 'jax.smap came later')
class SmapTest(jtu.JaxTestCase):

  @jtu.sample_product(axes=[(0, 0), 0, {'x': 0, 'w': 0}])
  def test_axes(self, axes):
    with jax.set_mesh(make_mesh(AxisType.Auto)):
      f = jax.smap(weighted, in_axes=axes, out_axes=0, axis_name='x')
      got = jax.jit(f)(X, w=W)
    self.assertAllClose(np.asarray(got), X + np.sum(X * W), rtol=1e-5)

  def test_inferred(self):
    mesh = make_mesh(AxisType.Explicit)
    with jax.set_mesh(mesh):
      x, w = (jax.device_put(a, NamedSharding(mesh, P('x'))) for a in (X, W))
      f = jax.smap(weighted, out_axes=0, axis_name='x')
      self.assertAllClose(np.asarray(f(x, w=w)), X + np.sum(X * W), rtol=1e-5)


class AxesTest(jtu.JaxTestCase):

  def test_auto(self):
    mesh = make_mesh(AxisType.Explicit)
    f = auto_axes(lambda a, b, mode=None: a + b['b'],
                  **{'out_sharding' + _suffix: P('x')})
    with set_mesh(mesh):
      x, w = (jax.device_put(a, NamedSharding(mesh, P('x'))) for a in (X, W))
      for g in f, jax.jit(f, static_argnames='mode'):
        out = g(x, b={'b': w}, mode='fast')
        self.assertAllClose(np.asarray(out), X + W)

  @jtu.sample_product(spec=['one', 'tuple', 'dict'])
  def test_explicit(self, spec):
    spec = {'one': P('x'), 'tuple': (P('x'), P('x')),
            'dict': {'a': P('x'), 'b': P('x')}}[spec]
    def f(a, b, mode=None):
      types = jax.typeof if HAS_SMAP else lambda x: x.aval
      self.assertEqual(types(b).sharding.spec, P('x'))
      return a + b
    f = explicit_axes(f, **{'in_sharding' + _suffix: spec})
    mesh = make_mesh(AxisType.Auto)
    with set_mesh(mesh):
      x, w = (jax.device_put(a, NamedSharding(mesh, P('x'))) for a in (X, W))
      out = jax.jit(f, static_argnames='mode')(x, b=w, mode='fast')
      self.assertAllClose(np.asarray(out), X + W)

  def test_numpy_stays(self):
    mesh = make_mesh(AxisType.Auto)
    f = explicit_axes(lambda a, b: a + b.sum(),
                      **{'in_sharding' + _suffix: P('x')})
    with set_mesh(mesh):
      x = jax.device_put(X, NamedSharding(mesh, P('x')))
      self.assertAllClose(np.asarray(f(x, b=W)), X + W.sum())


if __name__ == '__main__':
  absltest.main(testLoader=jtu.JaxTestLoader())
