# SPDX-License-Identifier: Apache-2.0
"""Keyword arguments of shard_map, smap, auto_axes and explicit_axes."""
import functools
import inspect
import unittest

from absl.testing import parameterized
import jax
from jax import lax
from jax._src import config
from jax._src import pjit
from jax._src import test_util as jtu
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
import numpy as np
from testing.red import red
from testing.sharding import AxisType, partly_manual, shard_map, typed_mesh
from varying.testing import common

config.parse_flags_with_absl()

# What pristine JAX says.
UNKNOWN_KEYWORD = ('^AssertionError: ".*" does not match '
                   r'"_shard_map\.<locals>\.wrapped\(\) got an unexpected keyw')
NO_TREE_PREFIX = '^ValueError: .*specification must be a tree prefix of the'

X = np.arange(8., dtype=np.float32)
W = np.linspace(1., 2., 8, dtype=np.float32)
HAS_SMAP = hasattr(jax, 'smap')
auto_axes = pjit.auto_axes
explicit_axes = pjit.explicit_axes
# Before 0.6.1 these were plural.
_suffix = '' if hasattr(jax, 'shard_map') else 's'
set_mesh = getattr(jax, 'set_mesh', None) or jax.sharding.use_mesh


def make_mesh(axis_type):
  return typed_mesh((4,), ('x',), (axis_type,))


def weighted(x, w, *, scale=1., **more):
  total = lax.psum(jnp.sum(x * w), 'x')
  return x * scale + total + sum(jnp.sum(v) for v in more.values())


def injecting(f):
  """A decorator whose function takes one argument less than `f`."""
  @functools.wraps(f)
  def wrapped(*args, **kwargs):
    return f(np.float32(1.), *args, **kwargs)
  return wrapped


def scaled(scale, x, w):
  return scale * weighted(x, w)


def by_hand(scale, x, w):
  return scaled(scale, x, w)


by_hand.__signature__ = inspect.signature(scaled)


class Holder:
  """Functions of `x` and `w`, in the ways that classes have them."""

  def __call__(self, x, w):
    return weighted(x, w)

  def method(self, x, w):
    return weighted(x, w)

  @staticmethod
  def static(x, w):
    return weighted(x, w)

  @injecting
  def injected(scale, self, x, w):  # pylint: disable=no-self-argument
    return scaled(scale, x, w)


def _custom(kind):
  f = kind(lambda x, w: weighted(x, w))
  if kind is jax.custom_jvp:
    f.defjvp(lambda xs, ts: (weighted(*xs), ts[0]))
  else:
    f.defvjp(lambda x, w: (weighted(x, w), (x, w)), lambda res, ct: res)
  return f


KNOWN = {
    'function': lambda: weighted,
    'partial': lambda: functools.partial(scaled, np.float32(1.)),
    'updated_partial': lambda: functools.update_wrapper(
        functools.partial(scaled, np.float32(1.)), scaled),
    'partial_of_jit': lambda: functools.partial(
        jax.jit(scaled), np.float32(1.)),
    'method': lambda: Holder().method,
    'object': Holder,
    'static': lambda: Holder.static,
    'jit': lambda: jax.jit(weighted),
    'jit_of_jit': lambda: jax.jit(jax.jit(weighted)),
    'checkpoint': lambda: jax.checkpoint(weighted),
    'jit_of_checkpoint': lambda: jax.jit(jax.checkpoint(weighted)),
    'custom_jvp': lambda: _custom(jax.custom_jvp),
    'custom_vjp': lambda: _custom(jax.custom_vjp),
    'skipped_default': lambda: lambda x, w, s=1.: weighted(x, w),
}
# What isn't called by the names of the function that it wraps.
UNKNOWN = {
    'injecting': lambda: injecting(scaled),
    'injecting_jit': lambda: injecting(jax.jit(scaled)),
    'jit_of_injecting': lambda: jax.jit(injecting(scaled)),
    'checkpoint_of_injecting': lambda: jax.checkpoint(injecting(scaled)),
    'custom_of_injecting': lambda: jax.custom_jvp(injecting(scaled)),
    'partial_of_injecting': lambda: functools.partial(
        injecting(lambda a, b, x, w: scaled(a * b, x, w)), np.float32(1.)),
    'renamed_jit': lambda: functools.wraps(scaled)(
        jax.jit(functools.partial(scaled, np.float32(1.)))),
    'renamed_checkpoint': lambda: functools.wraps(scaled)(
        jax.checkpoint(functools.partial(scaled, np.float32(1.)))),
    'copied_signature': lambda: injecting(by_hand),
    'jit_of_copied_signature': lambda: jax.jit(injecting(by_hand)),
    'method': lambda: Holder().injected,
    'keyword_only': lambda: lambda x, *, w: weighted(x, w),
    'positional_only': lambda: lambda x, w, /, **more: weighted(x, more['w']),
    'any': lambda: lambda *args, **kwargs: weighted(*args, **kwargs),
}


@red(r'^TypeError: _shard_map\.<locals>\.wrapped\(\) got an unexpected '
     'keyword argument')
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

  @parameterized.product(name=list(KNOWN), mesh=[(4,), (4, 2)])
  def test_names_of(self, name, mesh):
    f = self.mapped(KNOWN[name](), (P('x'), P('x')), *mesh)
    self.check(f, X, w=W)
    self.check(f, w=W, x=X)

  @red(UNKNOWN_KEYWORD)
  @parameterized.product(name=list(UNKNOWN), specs=[2, 3])
  def test_no_names_of(self, name, specs):
    f = self.mapped(UNKNOWN[name](), (P(), P('x'), P('x'))[-specs:])
    for g in f, jax.jit(f):
      with self.assertRaisesRegex(TypeError, 'shard_map.*[Ee]xpected.*Got:'):
        g(X, w=W)

  def test_no_names_but_specs_by_name(self):
    f = self.mapped(injecting(scaled), {'x': P('x'), 'w': P('x')})
    self.check(f, x=X, w=W)
    with self.assertRaisesRegex(TypeError, 'Pass all arguments by keyword'):
      f(X, w=W)

  def test_other_order(self):
    @functools.wraps(weighted)
    def swapped(w, x):
      return weighted(x, w)
    f = self.mapped(swapped, (P(), P('x')))
    rows = np.float32(3.)
    self.check(f, rows, x=X, want=X + 3 * np.sum(X))
    self.check(f, w=rows, x=X, want=X + 3 * np.sum(X))

  @red(UNKNOWN_KEYWORD)
  def test_one_name_twice(self):
    f = self.mapped(lambda x, *more, **others: weighted(x, others['more']),
                    {'x': P('x'), 'more': P('x')})
    with self.assertRaisesRegex(TypeError, 'one argument of each name'):
      f(X, W, more=W)

  @red(UNKNOWN_KEYWORD)
  def test_keyword_without_a_spec(self):
    f = self.mapped(weighted, (P('x'), P('x')))
    with self.assertRaisesRegex(TypeError, "a spec for the parameter 'scale'"):
      f(X, W, scale=2.)

  @red(UNKNOWN_KEYWORD)
  @parameterized.parameters(
      ((P('x'), P('x')),), ({'x': P('x'), 'w': P('x')},))
  def test_keyword_of_no_parameter(self, specs):
    f = self.mapped(lambda x, w, /, y=1.: x * w * y, specs)
    with self.assertRaisesRegex(
        TypeError, r"no parameter for.*\['y'\].*Got: \['c', 'w'\]"):
      f(X, W, w=X, c=X)

  @red(UNKNOWN_KEYWORD)
  def test_name_of_no_parameter(self):
    f = self.mapped(lambda x, w: x * w, {'x': P('x'), 'v': P('x')})
    with self.assertRaisesRegex(TypeError, r"names of parameters.*\['v'\]"):
      f(X, w=W)

  def test_partly_manual(self):
    mesh = common.make_mesh(4, 2)
    some = partly_manual('y', of='xy')
    f = shard_map(weighted, mesh=mesh, in_specs={'x': P('x'), 'w': P('x')},
                  out_specs=P('x'), **some)
    got = jax.jit(f)(X, w=W)
    self.assertAllClose(np.asarray(got), X + np.sum(X * W), rtol=1e-5)


@red(r'^TypeError: _shard_map\.<locals>\.wrapped\(\) got an unexpected '
     "keyword argument 'w'", bases='>=0.7')
@unittest.skipUnless(HAS_SMAP, 'jax.smap came later')
class SmapTest(jtu.JaxTestCase):

  @red('^TypeError: smap in_axes must be an int, None, '
       r'jax\.sharding\.Infer, or a tuple of entries', bases='>=0.7',
       cases={'axes': {'x': 0, 'w': 0}})
  @jtu.sample_product(axes=[(0, 0), 0, {'x': 0, 'w': 0}])
  def test_axes(self, axes):
    with set_mesh(make_mesh(AxisType.Auto)):
      f = jax.smap(weighted, in_axes=axes, out_axes=0, axis_name='x')
      got = jax.jit(f)(X, w=W)
    self.assertAllClose(np.asarray(got), X + np.sum(X * W), rtol=1e-5)

  @red(UNKNOWN_KEYWORD, bases='>=0.7')
  def test_no_names_of(self):
    with set_mesh(make_mesh(AxisType.Auto)):
      f = jax.smap(injecting(scaled), in_axes=(0, None), out_axes=0,
                   axis_name='x')
      with self.assertRaisesRegex(TypeError, "Expected: a spec.*'w'"):
        f(X, w=W)

  def test_inferred(self):
    mesh = make_mesh(AxisType.Explicit)
    with set_mesh(mesh):
      x, w = (jax.device_put(a, NamedSharding(mesh, P('x'))) for a in (X, W))
      f = jax.smap(weighted, out_axes=0, axis_name='x')
      self.assertAllClose(np.asarray(f(x, w=w)), X + np.sum(X * W), rtol=1e-5)


class AxesTest(jtu.JaxTestCase):

  @red('^ValueError: For primitive add, context mesh')
  def test_auto(self):
    mesh = make_mesh(AxisType.Explicit)
    f = auto_axes(lambda a, b, mode=None: a + b['b'],
                  **{'out_sharding' + _suffix: P('x')})
    with set_mesh(mesh):
      x, w = (jax.device_put(a, NamedSharding(mesh, P('x'))) for a in (X, W))
      for g in f, jax.jit(f, static_argnames='mode'):
        out = g(x, b={'b': w}, mode='fast')
        self.assertAllClose(np.asarray(out), X + W)

  @red({
      '<0.9.1':
          r"^AssertionError: PartitionSpec\(None,\) != PartitionSpec\('x',\)",
      '>=0.9.1': r"^AssertionError: P\(None,\) != P\('x',\)",
  }, cases=['one'])
  @red(NO_TREE_PREFIX)
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

  @red(NO_TREE_PREFIX)
  def test_explicit_no_names_of(self):
    f = explicit_axes(injecting(lambda scale, a, b: scale * a + b),
                      **{'in_sharding' + _suffix: (P('x'), P())})
    mesh = make_mesh(AxisType.Auto)
    with set_mesh(mesh):
      x, w = (jax.device_put(a, NamedSharding(mesh, P('x'))) for a in (X, W))
      with self.assertRaisesRegex(TypeError, "Expected: a spec.*'b'"):
        jax.jit(f)(x, b=w)

  def test_numpy_stays(self):
    mesh = make_mesh(AxisType.Auto)
    f = explicit_axes(lambda a, b: a + b.sum(),
                      **{'in_sharding' + _suffix: P('x')})
    with set_mesh(mesh):
      x = jax.device_put(X, NamedSharding(mesh, P('x')))
      self.assertAllClose(np.asarray(f(x, b=W)), X + W.sum())
