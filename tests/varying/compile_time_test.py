# SPDX-License-Identifier: Apache-2.0
"""jax.ensure_compile_time_eval inside shard_map.

The oracle is the same evaluation outside of shard_map.
"""
import contextlib
import itertools

from absl.testing import parameterized
import jax
from jax import lax
from jax._src import mesh as mesh_lib
from jax._src import test_util as jtu
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
import numpy as np
from testing.red import red
from testing.sharding import (
    AxisType, CHECK, partly_manual, shard_map, typed_mesh)
from varying.testing.common import MESHES
from varying.testing.common import make_mesh
from varying.testing.common import maybe_jit
from varying.testing.common import RUNS_PARTLY_MANUAL

jax.config.parse_flags_with_absl()

# What pristine JAX says.
PLATFORM_NOT_GIVEN = ('^ValueError: Passing lowering_platforms via '
                      r'jax\.export or')
ABSTRACT_TRACER = ('^ConcretizationTypeError: Abstract tracer value '
                   'encountered where concrete value is expected: traced array')
NO_WAYS = r'^AssertionError: raised by op_shardings\.get_num_ways_dim_sharded'
ONE_DEVICE_ONLY = {
    '<0.10': r'^ValueError: cannot reshape array of size 1 into shape \(2,2\)',
    '>=0.10,<0.10.1': PLATFORM_NOT_GIVEN,
    '>=0.10.1,<0.10.2':
        '^RuntimeError: device_assignment cannot be `None` during compilation',
    '>=0.10.2': PLATFORM_NOT_GIVEN,
}
NO_SHARD_SHAPE = {
    '<0.8':
        '^ZeroDivisionError: integer division or modulo by zero, raised by '
        r'sharding\._common_shard_shape',
    '>=0.8': NO_WAYS,
}
NO_SHARD_SHAPE_OF_NONE = {
    '<0.8':
        r'^AssertionError: \(1, 0\), raised by sharding\._common_shard_shape',
    '>=0.8': NO_WAYS,
}

V = np.array([1., 3., 2.], np.float32)
X = np.arange(4, dtype=np.float32)
set_mesh = getattr(jax, 'set_mesh', None) or jax.sharding.use_mesh

# What is evaluated: three numbers each.
CONSTANTS = {
    'zeros': lambda: jnp.zeros(3),
    'full_like': lambda: jnp.full_like(V, 2.),
    'arange': lambda: jnp.arange(3.),
    'array': lambda: jnp.array([1., 2., 3.]),
    'asarray': lambda: jnp.asarray(V),
    'arithmetic': lambda: jnp.sin(V) + 1,
    'iota': lambda: lax.iota(np.float32, 3),
    'eye': lambda: jnp.eye(3)[1],
    'random': lambda: jax.random.normal(jax.random.key(0), (3,)),
    'sort': lambda: jnp.sort(V),
    'loop': lambda: lax.fori_loop(0, 3, lambda i, c: c * 2., jnp.array(V)),
    'cond': lambda: lax.cond(True, lambda: jnp.ones(3), lambda: jnp.zeros(3)),
    'jit': lambda: jax.jit(lambda x: x + 1)(V),
    'grad': lambda: jax.grad(lambda x: jnp.sum(x ** 3))(jnp.array(V)),
    'dot': lambda: jnp.dot(np.eye(3, dtype=np.float32), V),
    'device_put': lambda: jax.device_put(V),
}
# With the check, or under a mesh, every other one.
EITHER = list(zip(CONSTANTS, itertools.cycle([True, False])))


def run(f, use_mesh, jit, check=True, kind='1d'):
  """`f` of each device's element of X."""
  mesh = make_mesh(*MESHES[kind])
  spec = P(mesh.axis_names)
  g = shard_map(f, mesh=mesh, in_specs=spec, out_specs=spec, **{CHECK: check})
  with set_mesh(mesh) if use_mesh else contextlib.nullcontext():
    return maybe_jit(jit)(g)(X)


class CompileTimeEvalTest(jtu.JaxTestCase):

  def check(self, name, use_mesh, jit, check=True, kind='1d'):
    want = np.asarray(CONSTANTS[name]())
    seen = []
    def f(x):
      with jax.ensure_compile_time_eval():
        y = CONSTANTS[name]()
        first = float(y[0])
      seen.append(np.asarray(y))
      return x * first + y[1]
    got = run(f, use_mesh, jit, check, kind)
    np.testing.assert_allclose(seen[0], want, rtol=1e-6)
    np.testing.assert_allclose(got, X * want[0] + want[1], rtol=1e-6)

  @red(r'^AssertionError: \(1, [02]\), raised by '
       r'sharding\._common_shard_shape', bases='>=0.7,<0.8',
       cases=['jit', 'dot', 'arange', 'iota', 'eye'])
  @red(NO_SHARD_SHAPE_OF_NONE,
       cases=['zeros', 'full_like', 'cond', 'array', 'eye', 'random', 'sort'])
  @red(NO_SHARD_SHAPE)
  @parameterized.parameters(*EITHER)
  def test_under_a_mesh(self, name, check):
    self.check(name, use_mesh=True, jit=True, check=check)

  @red(NO_SHARD_SHAPE_OF_NONE, cases=['zeros', 'random'])
  @red(NO_SHARD_SHAPE)
  @parameterized.product(name=['zeros', 'loop', 'random'])
  def test_under_a_mesh_of_two_axes(self, name):
    self.check(name, use_mesh=True, jit=True, kind='2d')

  @red({
      '<0.6':
          "^TypeError: 'NoneType' object is not iterable, raised by "
          r'shard_map\._check_rep',
      '>=0.6,<0.10': ABSTRACT_TRACER,
      '>=0.10': NO_WAYS,
  }, cases=['sort'])
  @red(NO_SHARD_SHAPE, cases=['arange', 'iota'])
  @red({
      '<0.10': ABSTRACT_TRACER,
      '>=0.10': NO_WAYS,
  }, cases=['eye'])
  @red(ABSTRACT_TRACER)
  @parameterized.parameters(*EITHER)
  def test_eager(self, name, use_mesh):
    self.check(name, use_mesh, jit=False)

  @red(ABSTRACT_TRACER)
  @parameterized.product(name=['zeros', 'loop', 'random'])
  def test_eager_without_the_check(self, name):
    self.check(name, use_mesh=False, jit=False, check=False)

  @parameterized.product(name=list(CONSTANTS))
  def test_what_was_right(self, name):
    self.check(name, use_mesh=False, jit=True, check=False)

  @parameterized.parameters(
      (True, True, '1d'), (True, False, '2d'), (False, True, '2d'),
      (False, False, '1d'))
  def test_what_depends_on_arguments_is_traced(self, jit, use_mesh, kind):
    def f(x):
      with jax.ensure_compile_time_eval():
        y = jax.jit(jnp.sin)(x) + lax.psum(x, 'x')
      return y
    sizes = MESHES[kind]
    sums = X.reshape(sizes).sum(0, keepdims=True)
    want = np.sin(X) + np.broadcast_to(sums, sizes).ravel()
    np.testing.assert_allclose(run(f, use_mesh, jit, kind=kind), want,
                               rtol=1e-6)

  @parameterized.product(jit=[True, False])
  def test_the_mesh_is_back_afterwards(self, jit):
    seen = []
    def f(x):
      before = mesh_lib.get_abstract_mesh()
      with jax.ensure_compile_time_eval():
        seen.append(mesh_lib.get_abstract_mesh() == before)
      seen.append(mesh_lib.get_abstract_mesh() == before)
      return x
    run(f, True, jit)
    self.assertTrue(all(seen) and seen)

  @red(ONE_DEVICE_ONLY, bases='>=0.8.2', cases=['zeros', 'full_like'])
  @red(ONE_DEVICE_ONLY, bases='>=0.7', cases=['arange', 'iota'])
  @parameterized.product(name=['zeros', 'full_like', 'arange', 'iota'],
                         check=[True, False])
  def test_another_axis_is_explicit(self, name, check):
    if jax.__version_info__ < (0, 6):
      self.skipTest('left as upstream has it in the frozen line 0.5')
    mesh = typed_mesh((2, 2), ('x', 'y'), (AxisType.Explicit,) * 2)
    make = CONSTANTS[name]
    def f(x):
      with jax.ensure_compile_time_eval():
        c = make()
        self.assertNotIsInstance(c, jax.core.Tracer)
      return x * c[1]
    g = jax.jit(shard_map(f, mesh=mesh, in_specs=P('x'), out_specs=P('x'),
                          **{CHECK: check}, **partly_manual('y', of='xy')))
    x = jax.device_put(X, NamedSharding(mesh, P('x')))
    np.testing.assert_allclose(np.asarray(g(x)), X * np.asarray(make())[1])

  def test_guard_another_axis_is_explicit(self):
    if not RUNS_PARTLY_MANUAL:
      self.skipTest('this release needs jit')
    # An eager shard_map computes there as if nothing had been asked for.
    mesh = typed_mesh((2, 2), ('x', 'y'), (AxisType.Explicit,) * 2)
    def f(x):
      with jax.ensure_compile_time_eval():
        c = jnp.sin(jnp.float32(2.))
      return x * c
    g = shard_map(f, mesh=mesh, in_specs=P('x'), out_specs=P('x'),
                  **partly_manual('y', of='xy'))
    x = jax.device_put(X, NamedSharding(mesh, P('x')))
    np.testing.assert_allclose(g(x), X * np.sin(np.float32(2.)), rtol=1e-6)
