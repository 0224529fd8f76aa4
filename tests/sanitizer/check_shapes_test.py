# SPDX-License-Identifier: Apache-2.0
"""jax.debug.check_shapes: shapes, dtypes and varying axes while tracing."""

from absl.testing import parameterized
from sanitizer.testing.pages import run_docstrings
import jax
from jax._src import test_util as jtu
from jax.experimental import sparse
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec as P
import numpy as np
from testing.red import red
from testing.sharding import eight_devices, shard_map

jax.config.parse_flags_with_absl()
eight_devices()

sds = jax.ShapeDtypeStruct


@red(r"^AttributeError: module 'jax\.debug' has no attribute 'check_shapes'",
     api_missing=True)
class CheckShapesTest(jtu.JaxTestCase):

  @parameterized.parameters(
      'f32[4,8]', 'float32[4,8]', 'f32[4, 8]', 'f32[_,8]', 'f32[...]',
      'f32[...,8]', 'f32[4,...]', 'f32[4,...,8]', '_[4,8]', '_', '...',
      'f32[4,8]{}', 'f32[4,8]{...}')
  def test_accepts(self, spec):
    x = jnp.ones((4, 8))
    self.assertIs(jax.debug.check_shapes(x, spec), x)

  @parameterized.parameters(
      'f32[8,4]', 'f32[4]', 'f32[4,8,1]', 'i32[4,8]', 'f16[4,8]', 'f32[]',
      'f32[...,4]', 'f32[4,8,...,1]', '_[_]', 'bf16[4,8]', 'f32[4,8]{x}')
  def test_refuses(self, spec):
    with self.assertRaises(TypeError) as e:
      jax.debug.check_shapes(jnp.ones((4, 8)), spec)
    self.assertIn(f'tree: expected {spec}, got f32[4,8]', str(e.exception))

  @parameterized.parameters('f32', 'f32(4)', 'f32[4', '[4]', 'f32[a]',
                            'f32[...,...]', 'f32[-1]', 'f32[4]x', '')
  def test_unreadable(self, spec):
    with self.assertRaisesRegex(ValueError, "check_shapes: can't read"):
      jax.debug.check_shapes(jnp.ones((4, 8)), spec)

  def test_dtypes(self):
    for dtype, name in [(jnp.bfloat16, 'bf16'), (jnp.float16, 'f16'),
                        (jnp.int8, 'i8'), (jnp.uint32, 'u32'),
                        (jnp.bool_, 'bool'), (jnp.complex64, 'c64'),
                        (jnp.float8_e4m3fn, 'f8_e4m3fn')]:
      x = jnp.zeros((2,), dtype)
      jax.debug.check_shapes(x, f'{name}[2]')
      jax.debug.check_shapes(x, f'{np.dtype(dtype).name}[2]')
      jax.debug.check_shapes(x, sds((2,), dtype))
    jax.debug.check_shapes(jax.random.key(0), 'key<fry>[]')
    jax.debug.check_shapes(jnp.zeros((2,), jnp.int4), ' i4 [ 2 ] { } ')
    no_tangent = np.zeros(2, jax.dtypes.float0)
    jax.debug.check_shapes(no_tangent, 'float0[2]')
    jax.debug.check_shapes(no_tangent, sds((2,), jax.dtypes.float0))
    jax.debug.check_shapes((1.5, 2, True, np.ones(3, np.float32)),
                           ('f32[]', 'i32[]', 'bool[]', 'f32[3]'))

  def test_all_mismatches_at_once_with_paths(self):
    tree = {'w': jnp.ones((4, 8)), 'b': [jnp.ones(3), jnp.ones(3, int)],
            'ok': jnp.ones(2)}
    with self.assertRaises(TypeError) as e:
      jax.debug.check_shapes(
          tree, {'w': sds((8, 4), jnp.float32), 'b': ['f32[4]', 'f32[3]'],
                 'ok': '_[2]'})
    message = str(e.exception)
    self.assertIn('jax.debug.check_shapes: 3 mismatches:', message)
    self.assertIn("tree['w']: expected f32[8,4], got f32[4,8]", message)
    self.assertIn("tree['b'][0]: expected f32[4], got f32[3]", message)
    self.assertIn("tree['b'][1]: expected f32[3], got i32[3]", message)
    self.assertNotIn("'ok'", message)

  def test_prefix(self):
    tree = {'a': (jnp.ones(3), jnp.ones(3)), 'b': jnp.ones(2)}
    self.assertIs(
        jax.debug.check_shapes(tree, {'a': 'f32[3]', 'b': ...}), tree)
    jax.debug.check_shapes(tree, 'f32[_]')
    jax.debug.check_shapes(tree, ...)
    with self.assertRaisesRegex(TypeError, r"tree\['b'\]: expected f32\[3\]"):
      jax.debug.check_shapes(tree, 'f32[3]')

  def test_nodes_with_a_shape(self):
    matrix = sparse.BCOO.fromdense(jnp.eye(3))
    typeof = getattr(jax, 'typeof', None) or jax.core.get_aval
    jax.debug.check_shapes(matrix, jax.tree.map(typeof, matrix))
    jax.debug.check_shapes(jnp.eye(3), jnp.eye(3))
    with self.assertRaisesRegex(TypeError, r'expected i32\[3,2\], got i32\[9'):
      jax.debug.check_shapes(sparse.BCOO.fromdense(jnp.ones((3, 3))),
                             jax.tree.map(typeof, matrix))

  def test_structure(self):
    tree = {'a': jnp.ones(3), 'c': jnp.ones(4), 'n': None}
    jax.debug.check_shapes(tree, {'a': 'f32[3]', 'c': '_', 'n': None})
    with self.assertRaisesRegex(TypeError, r"tree: expected \{'a': \*, 'b'"):
      jax.debug.check_shapes(tree, {'a': 'f32[3]', 'b': '_'})
    jax.debug.check_shapes(tree, '_')  # of each leaf
    with self.assertRaisesRegex(TypeError, r"tree\['n'\]: expected f32\[4\], "
                                'got a NoneType, which is not an array'):
      jax.debug.check_shapes(tree, {'a': '_', 'c': '_', 'n': 'f32[4]'})
    with self.assertRaisesRegex(TypeError, r"tree\['a'\]: expected \(\*, \*\)"
                                r", got f32\[3\]"):
      jax.debug.check_shapes({'a': tree['a']}, {'a': ('_', '_')})
    with self.assertRaisesRegex(TypeError, 'got a str, which is not an array'):
      jax.debug.check_shapes({'a': 'text'}, {'a': 'f32[]'})
    with self.assertRaisesRegex(ValueError, '3 of type int is not a spec'):
      jax.debug.check_shapes(jnp.ones(2), 3)

  def test_under_transformations(self):
    def f(x):
      x = jax.debug.check_shapes(x, 'f32[3]')
      return jnp.sum(jax.debug.check_shapes(x ** 2, 'f32[3]{}'))
    x = jnp.ones((2, 3))
    jax.vmap(jax.jit(f))(x)
    jax.jit(jax.vmap(jax.grad(f)))(x)
    jax.eval_shape(jax.hessian(f), x[0])
    with self.assertRaisesRegex(TypeError, r'expected f32\[3\], got f32\[2\]'):
      jax.jit(f)(x[:, 0])
    self.assertIs(jax.debug.check_shapes(s := sds((3,), jnp.int32), 'i32[3]'),
                  s)

  def test_no_operation_is_traced(self):
    x = jnp.ones((4, 8))
    def f(check, x):
      return check(x * 2., 'f32[4,8]') + 1.
    a = jax.make_jaxpr(lambda x: f(jax.debug.check_shapes, x))(x)
    b = jax.make_jaxpr(lambda x: f(lambda y, _: y, x))(x)
    self.assertEqual(str(a), str(b))

  @parameterized.product(jit=[False, True])
  def test_varying_axes(self, jit):
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ('x', 'y'))
    seen = []
    def f(a, b, c):
      check = jax.debug.check_shapes
      tree = {'a': a, 'b': b, 'c': c, 's': jax.lax.psum(a, 'x')}
      check(tree, {'a': 'f32[2,2]{x,y}', 'b': 'f32[2]{x}', 'c': 'f32[4]{}',
                   's': 'f32[2,2]{y}'})
      check(tree, {'a': '_[_,2]{y,...}', 'b': 'f32[2]{V:x}', 'c': 'f32[4]',
                   's': 'f32[2,2]{...}'})
      check(a, 'f32[2,2]{V:(x,y)}')
      check(a + b[:, None], 'f32[2,2]{x,y}')
      check(jax.grad(lambda c: jnp.sum(c ** 2))(c), 'f32[4]{}')
      with self.assertRaises(TypeError) as e:
        check(tree, {'a': 'f32[2,2]{x}', 'b': 'f32[2]{}', 'c': 'f32[4]{x}',
                     's': 'f32[2,2]{x,...}'})
      seen.append(str(e.exception))
      return a
    g = shard_map(f, mesh=mesh, in_specs=(P('x', 'y'), P('x'), P()),
                  out_specs=P('x', 'y'))
    (jax.jit(g) if jit else g)(jnp.ones((4, 4)), jnp.ones(4), jnp.ones(4))
    for line in ["tree['a']: expected f32[2,2]{x}, got f32[2,2]{x,y}",
                 "tree['b']: expected f32[2]{}, got f32[2]{x}",
                 "tree['c']: expected f32[4]{x}, got f32[4]",
                 "tree['s']: expected f32[2,2]{x,...}, got f32[2,2]{y}"]:
      self.assertIn(line, seen[0])

  def test_types_as_expectation(self):
    mesh = Mesh(np.array(jax.devices()[:4]), ('x',))
    typeof = getattr(jax, 'typeof', None) or jax.core.get_aval
    def f(a, c):
      jax.debug.check_shapes(a * 2., typeof(a))
      if jax.__version_info__ >= (0, 6):
        with self.assertRaisesRegex(TypeError, r'got f32\[2\]\{x\}'):
          jax.debug.check_shapes(a, typeof(c))
      return a
    shard_map(f, mesh=mesh, in_specs=(P('x'), P()), out_specs=P('x'))(
        jnp.ones(8), jnp.ones(2))

  @red(r"^ImportError: cannot import name 'check_shapes' from 'jax\._src' \(",
       api_missing=True)
  def test_doctests(self):
    from jax._src import check_shapes
    run_docstrings(self, check_shapes, 5)
