# SPDX-License-Identifier: Apache-2.0
"""What varies about a callback's results inside shard_map (issue 3)."""
import functools

from absl.testing import parameterized
import jax
from jax._src import core
from jax._src import test_util as jtu
from jax.experimental import io_callback
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
from testing.red import red
from testing.sharding import shard_map
from testing.sharding import UNCHECKED
from varying.testing.common import axes_of
from varying.testing.common import make_mesh
from varying.testing.common import maybe_jit

jax.config.parse_flags_with_absl()

# What pristine JAX says.
NOT_REFUSED = '^AssertionError: ValueError not raised'
NO_AXES = r'^AssertionError: frozenset\(\) != \{'
WRONG_AXES_EACH = r'^AssertionError: Lists differ: \[frozenset\(\)'

F32 = np.float32
SCALAR = jax.ShapeDtypeStruct((), F32)
DECLARES = hasattr(core, 'ManualAxisType') or hasattr(
    jax.sharding.AbstractMesh, '_are_all_axes_explicit_or_manual')  # not <0.8
CALLS = {
    'pure': jax.pure_callback,
    'io': io_callback,
    'ordered_io': functools.partial(io_callback, ordered=True),
}
MESHES = {'1d': (4,), '2d': (2, 4)}


def declared(*axes):
  if hasattr(SCALAR, 'vma'):
    return jax.ShapeDtypeStruct((), F32, vma=frozenset(axes))
  mat = core.ManualAxisType(varying=frozenset(axes))
  return jax.ShapeDtypeStruct((), F32, manual_axis_type=mat)


def host_square(x):
  return np.asarray(x * x, F32)


def host_sum(x, y):
  return np.asarray(x + y, F32)


CASES = parameterized.product(
    call=['pure', 'io'], jit=[False, True], mesh=list(MESHES))


class CallbackTypesTest(jtu.JaxTestCase):

  def types(self, f, *args, mesh, in_specs):
    """The axes along which each result of ``f`` varies on that mesh."""
    seen = []

    def body(*args):
      seen.extend(map(axes_of, jax.tree_util.tree_leaves(f(*args))))
      return ()

    jax.make_jaxpr(shard_map(body, mesh=mesh, in_specs=in_specs,
                             out_specs=()))(*args)
    return seen

  @red(NOT_REFUSED)
  @CASES
  def test_claim_of_replication_is_refused(self, call, jit, mesh):
    mesh = make_mesh(*MESHES[mesh])
    f = shard_map(lambda x: CALLS[call](host_square, SCALAR, x[0]), mesh=mesh,
                  in_specs=P('x'), out_specs=P())
    x = np.arange(mesh.shape['x'], dtype=F32)
    with self.assertRaisesRegex(ValueError, 'replicat'):
      jax.block_until_ready(maybe_jit(jit)(f)(x))

  @CASES
  def test_values_per_device(self, call, jit, mesh):
    mesh = make_mesh(*MESHES[mesh])
    f = shard_map(lambda x: CALLS[call](host_square, SCALAR, x[0])[None],
                  mesh=mesh, in_specs=P('x'), out_specs=P('x'))
    x = np.arange(1, 1 + mesh.shape['x'], dtype=F32)
    self.assertAllClose(maybe_jit(jit)(f)(x), x * x)

  @CASES
  def test_replicated_operands_give_replicated_results(self, call, jit, mesh):
    f = shard_map(lambda x: CALLS[call](host_square, SCALAR, x[0]),
                  mesh=make_mesh(*MESHES[mesh]), in_specs=P(), out_specs=P())
    self.assertAllClose(maybe_jit(jit)(f)(np.full(2, 3., F32)), F32(9.))

  @red(NO_AXES)
  @parameterized.product(call=list(CALLS))
  def test_union_of_the_operands(self, call):
    mesh = make_mesh(2, 4)
    f = lambda x, y: CALLS[call](host_sum, SCALAR, x[0], y[0])
    for specs, want in [((P('x'), P()), {'x'}), ((P(), P('y')), {'y'}),
                        ((P('x'), P('y')), {'x', 'y'}), ((P(), P()), set())]:
      got, = self.types(f, np.ones(2, F32), np.ones(4, F32), mesh=mesh,
                        in_specs=specs)
      self.assertEqual(got, want, specs)

  @red(NO_AXES)
  @parameterized.product(
      jit=[False, True],
      vmap_method=['sequential', 'broadcast_all', 'expand_dims'])
  def test_under_vmap(self, jit, vmap_method):
    mesh = make_mesh(2, 4)

    def body(x, y):
      f = lambda y: jax.pure_callback(host_sum, SCALAR, x[0], y,
                                      vmap_method=vmap_method)
      out = jax.vmap(f)(y)
      self.assertEqual(axes_of(out), {'x'})
      return out[None]

    n = mesh.shape['x']
    x, y = np.arange(n, dtype=F32), np.arange(3, dtype=F32)
    f = shard_map(body, mesh=mesh, in_specs=(P('x'), P()), out_specs=P('x'))
    self.assertAllClose(maybe_jit(jit)(f)(x, y), x[:, None] + y)

  @red('^TypeError: Custom JVP rule must produce primal and tangent outputs '
       'with corresponding shapes')
  @parameterized.product(mesh=list(MESHES), jit=[False, True])
  def test_gradient_of_a_factor(self, mesh, jit):
    # The host's value was taken for a replicated one, so the gradient of the
    # replicated factor was not summed over the devices.
    mesh = make_mesh(*MESHES[mesh])

    @jax.custom_jvp
    def square(x):
      return jax.pure_callback(host_square, SCALAR, x)

    square.defjvp(lambda p, t: (square(*p), 2 * p[0] * t[0]))
    f = shard_map(lambda w, x: (w * square(x[0]))[None], mesh=mesh,
                  in_specs=(P(), P('x')), out_specs=P('x'))
    x = np.arange(1, 1 + mesh.shape['x'], dtype=F32)
    loss = lambda w, x: jnp.sum(f(w, x))
    dw, dx = maybe_jit(jit)(jax.grad(loss, (0, 1)))(F32(2.), x)
    self.assertAllClose(dw, np.sum(x * x))
    self.assertAllClose(dx, 2 * 2 * x)

  @red(r'^AssertionError: Lists differ: \[frozenset\(\), frozenset\(\)\] != '
       r"\[\{'x'\}, \{'x'\}\]\s+First differing element")
  def test_pytree_of_results(self):
    f = lambda x: jax.pure_callback(
        lambda x: dict(a=host_square(x), b=(host_square(x),)),
        dict(a=SCALAR, b=(SCALAR,)), x[0])
    self.assertEqual(
        self.types(f, np.ones(4, F32), mesh=make_mesh(4), in_specs=P('x')),
        [{'x'}, {'x'}])

  @red(NO_AXES)
  @parameterized.product(ordered=[False, True])
  def test_io_callback_without_operands(self, ordered):
    f = lambda: io_callback(lambda: F32(1.), SCALAR, ordered=ordered)
    got, = self.types(f, mesh=make_mesh(2, 4), in_specs=())
    self.assertEqual(got, {'x', 'y'})

  @red(NOT_REFUSED)
  @parameterized.product(jit=[False, True])
  def test_io_callback_tells_each_device_something_else(self, jit):
    told = iter(range(100))
    f = shard_map(lambda: io_callback(lambda: F32(next(told)), SCALAR)[None],
                  mesh=make_mesh(4), in_specs=(), out_specs=P('x'))
    got = maybe_jit(jit)(f)()
    self.assertEqual(sorted(np.asarray(got)), [0., 1., 2., 3.])
    with self.assertRaisesRegex(ValueError, 'replicat'):
      shard_map(lambda: io_callback(lambda: F32(next(told)), SCALAR),
                mesh=make_mesh(4), in_specs=(), out_specs=P())()

  def test_pure_callback_without_operands(self):
    f = lambda: jax.pure_callback(lambda: F32(1.), SCALAR)
    self.assertEqual(self.types(f, mesh=make_mesh(2, 4), in_specs=()), [set()])

  @red(NO_AXES, bases='>=0.8')
  @parameterized.product(call=list(CALLS))
  def test_declaration_is_honoured(self, call):
    if not DECLARES:
      self.skipTest('ShapeDtypeStruct has no varying axes here')
    f = lambda x: CALLS[call](host_square, declared('x', 'y'), x[0])
    got, = self.types(f, np.ones(2, F32), mesh=make_mesh(2, 4), in_specs=P('x'))
    self.assertEqual(got, {'x', 'y'})

  @red(NOT_REFUSED, bases='>=0.8')
  @parameterized.product(call=list(CALLS))
  def test_declaration_too_small(self, call):
    if not DECLARES:
      self.skipTest('ShapeDtypeStruct has no varying axes here')
    f = lambda x: CALLS[call](host_square, declared('y'), x[0])
    with self.assertRaisesRegex(
        ValueError, r"callback: the operands vary over .*\{'x'\}.*result 0 "
        r'must be declared.*ShapeDtypeStruct says'):
      self.types(f, np.ones(2, F32), mesh=make_mesh(2, 4), in_specs=P('x'))
    # No axes: what jax.eval_shape gives for a constant, so no declaration.
    f = lambda x: CALLS[call](host_square, declared(), x[0])
    got, = self.types(f, np.ones(2, F32), mesh=make_mesh(2, 4), in_specs=P('x'))
    self.assertEqual(got, {'x'})

  @red(WRONG_AXES_EACH)
  @parameterized.product(call=list(CALLS))
  def test_result_of_eval_shape_is_no_declaration(self, call):
    # It has no varying axes, or one of two; the operands have more.
    def f(x, y):
      flat = jax.eval_shape(lambda: jnp.zeros(()))
      like = jax.eval_shape(lambda: y[0])
      return [CALLS[call](lambda x, y: F32(x + y), s, x[0], y[0])
              for s in (flat, like)]
    ones = np.ones(4, F32)
    got = self.types(f, ones, ones, mesh=make_mesh(2, 4),
                     in_specs=(P('x'), P('y')))
    self.assertEqual(got, [{'x', 'y'}, {'x', 'y'}])

  @red(WRONG_AXES_EACH)
  def test_io_callback_by_eval_shape_without_operands(self):
    f = lambda: io_callback(
        lambda: F32(1.), jax.eval_shape(lambda: jnp.zeros(())))
    self.assertEqual(self.types(f, mesh=make_mesh(2, 4), in_specs=()),
                     [{'x', 'y'}])

  @red(r'^AssertionError: Lists differ: \[frozenset\(\)\] != '
       r"\[\{'y'\}\]\s+First differing element", bases='>=0.8')
  def test_io_callback_declaration_without_operands(self):
    if not DECLARES:
      self.skipTest('ShapeDtypeStruct has no varying axes here')
    for axes in [('y',), ()]:
      f = lambda: io_callback(lambda: F32(1.), declared(*axes))
      self.assertEqual(self.types(f, mesh=make_mesh(2, 4), in_specs=()),
                       [set(axes)])

  @red(NO_AXES)
  def test_nested_jit_and_control_flow(self):
    def body(x):
      y = jax.jit(lambda x: jax.pure_callback(host_square, SCALAR, x))(x[0])
      self.assertEqual(axes_of(y), {'x'})
      z, _ = jax.lax.scan(
          lambda c, _: (jax.pure_callback(host_square, SCALAR, c), None),
          y, None, length=2)
      self.assertEqual(axes_of(z), {'x'})
      return z[None]

    x = np.array([1., 2., .5, 1.5], F32)
    f = shard_map(body, mesh=make_mesh(4), in_specs=P('x'), out_specs=P('x'))
    self.assertAllClose(jax.jit(f)(x), x ** 8)

  def test_outside_shard_map_and_check_off(self):
    # No types vary there: a guard that nothing changes.
    self.assertEqual(jax.pure_callback(host_square, SCALAR, F32(3.)), 9.)
    f = shard_map(lambda x: jax.pure_callback(host_square, SCALAR, x[0])[None],
                  mesh=make_mesh(4), in_specs=P('x'), out_specs=P('x'),
                  **UNCHECKED)
    x = np.arange(4, dtype=F32)
    self.assertAllClose(jax.jit(f)(x), x * x)
