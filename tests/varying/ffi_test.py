# SPDX-License-Identifier: Apache-2.0
"""What varies about the results of ffi_call and Exported.call (issue 3)."""
from absl.testing import parameterized
import jax
from jax import export
from jax import lax
from jax._src import core
from jax._src import test_util as jtu
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
from testing.red import red
from testing.sharding import shard_map
from varying.testing.common import axes_of
from varying.testing.common import make_mesh
from varying.testing.common import maybe_jit

try:
  from jax import ffi
except ImportError:
  from jax.extend import ffi

jax.config.parse_flags_with_absl()

# What pristine JAX says.
NOT_REFUSED = '^AssertionError: ValueError not raised'
WRONG_AXES_EACH = r'^AssertionError: Lists differ: \[frozenset\(\)'

F32 = np.float32
MESHES = {'1d': (4,), '2d': (2, 4)}


# Up to 0.8.1 upstream's own rule reads no declaration.
DECLARES = jax.__version_info__ >= (0, 8, 2)
VECTOR = jax.ShapeDtypeStruct((3,), F32)
MATRIX = jax.ShapeDtypeStruct((3, 3), F32)


def lapack_cholesky(a, results=(MATRIX, jax.ShapeDtypeStruct((), np.int32))):
  """LAPACK's Cholesky factor by a raw call of the target that jaxlib has."""
  call = ffi.ffi_call('lapack_spotrf_ffi', results)
  return call(a, uplo=np.uint8(ord('L')))[0]


def matrices(n):
  a = np.random.RandomState(0).randn(n, 3, 3).astype(F32)
  return a @ a.transpose(0, 2, 1) + np.eye(3, dtype=F32)


def exported():
  f = jax.jit(lambda w, x: (jnp.sin(w) * x, w + x))
  return export.export(f)(VECTOR, VECTOR)


class FfiTypesTest(jtu.JaxTestCase):

  def setUp(self):
    super().setUp()
    jnp.linalg.cholesky(np.eye(3, dtype=F32))  # registers jaxlib's targets

  @red(NOT_REFUSED, bases='>=0.8.2')
  @parameterized.product(jit=[False, True], mesh=list(MESHES))
  def test_ffi_claim_of_replication_is_refused(self, jit, mesh):
    mesh = make_mesh(*MESHES[mesh])
    f = shard_map(lambda a: lapack_cholesky(a[0]), mesh=mesh, in_specs=P('x'),
                  out_specs=P())
    with self.assertRaisesRegex(ValueError, 'replicat'):
      jax.block_until_ready(maybe_jit(jit)(f)(matrices(mesh.shape['x'])))

  @red(r"^AssertionError: frozenset\(\) != \{'x'\}", bases='>=0.8.2')
  @parameterized.product(jit=[False, True], mesh=list(MESHES))
  def test_ffi_values(self, jit, mesh):
    mesh = make_mesh(*MESHES[mesh])
    a = matrices(mesh.shape['x'])

    def body(a):
      out = lapack_cholesky(a[0])
      self.assertEqual(axes_of(out), {'x'})
      return out[None]

    f = shard_map(body, mesh=mesh, in_specs=P('x'), out_specs=P('x'))
    self.assertAllClose(maybe_jit(jit)(f)(a),
                        np.stack([lapack_cholesky(m) for m in a]))

  @parameterized.product(jit=[False, True])
  def test_ffi_replicated(self, jit):
    a = matrices(1)[0]
    f = shard_map(lapack_cholesky, mesh=make_mesh(2, 4), in_specs=P(),
                  out_specs=P())
    self.assertAllClose(maybe_jit(jit)(f)(a), lapack_cholesky(a))

  @red(NOT_REFUSED)
  @parameterized.parameters((P(),), (P('x'),), (P('y'),))
  def test_ffi_that_is_told_nothing_claimed_to_be_the_same(self, out_specs):
    call = ffi.ffi_call('not_called', VECTOR, has_side_effect=True)
    f = shard_map(lambda: call()[None], mesh=make_mesh(2, 4), in_specs=(),
                  out_specs=out_specs)
    with self.assertRaisesRegex(ValueError, 'replicat'):
      jax.make_jaxpr(f)()

  def test_ffi_that_is_told_nothing(self):
    for effect, axes in (True, {'x', 'y'}), (False, set()):
      call = ffi.ffi_call('not_called', VECTOR, has_side_effect=effect)
      f = shard_map(lambda: call()[None], mesh=make_mesh(2, 4), in_specs=(),
                    out_specs=P(tuple(sorted(axes)) or None))
      jax.make_jaxpr(f)()
    told = ffi.ffi_call('not_called', VECTOR, has_side_effect=True)
    jax.make_jaxpr(shard_map(told, mesh=make_mesh(2, 4), in_specs=P(),
                             out_specs=P()))(np.ones(3, F32))

  @red(WRONG_AXES_EACH, bases='>=0.8.2')
  def test_ffi_union_of_the_operands(self):
    seen = []

    def body(x, y):
      out, = ffi.ffi_call('not_called', (VECTOR,))(x[0], y[0])
      seen.append(axes_of(out))
      return ()

    ones = np.ones((4, 3), F32)
    for specs in [(P('x'), P()), (P('x'), P('y')), (P(), P())]:
      jax.make_jaxpr(shard_map(body, mesh=make_mesh(2, 4), in_specs=specs,
                               out_specs=()))(ones, ones)
    self.assertEqual(seen, [{'x'}, {'x', 'y'}, set()])

  @red("^AssertionError: Regex didn't match: 'ffi_call: the operands vary",
       bases='>=0.8.2')
  def test_ffi_declarations(self):
    if not DECLARES:
      self.skipTest('this release reads no declaration of a call')
    seen = []

    def sds_of(*axes):
      said = frozenset(axes)
      if hasattr(core, 'ManualAxisType'):
        return jax.ShapeDtypeStruct(
            (3,), F32, manual_axis_type=core.ManualAxisType(varying=said))
      return jax.ShapeDtypeStruct((3,), F32, vma=said)

    def trace(*axes):
      def body(x):
        call = ffi.ffi_call('not_called', sds_of(*axes))
        seen.append(axes_of(call(x[0])))
        return ()

      jax.make_jaxpr(shard_map(body, mesh=make_mesh(2, 4), in_specs=P('x'),
                               out_specs=()))(np.ones((4, 3), F32))

    with self.assertRaises((ValueError, AssertionError)) as refused:
      trace('y')
    self.assertRegex(str(refused.exception), 'ffi_call: the operands vary.*'
                     'result 0 must be declared')
    trace('x')
    trace('x', 'y')
    self.assertEqual(seen, [{'x'}, {'x', 'y'}])
    call = ffi.ffi_call('not_called', [sds_of('x', 'y')])  # made outside
    jax.make_jaxpr(shard_map(
        lambda x: seen.append(axes_of(call(x[0])[0])) or (),
        mesh=make_mesh(2, 4), in_specs=P('x'), out_specs=()))(np.ones((4, 3)))
    self.assertEqual(seen[-1], {'x', 'y'})
    trace()  # what jax.eval_shape gives for a constant, so no declaration
    self.assertEqual(seen[-1], {'x'})

  @red(WRONG_AXES_EACH, bases='>=0.8.2')
  def test_ffi_result_of_eval_shape_is_no_declaration(self):
    seen = []

    def body(x):
      call = ffi.ffi_call('not_called', jax.eval_shape(lambda: jnp.zeros(3)))
      seen.append(axes_of(call(x[0])))
      return ()

    jax.make_jaxpr(shard_map(body, mesh=make_mesh(2, 4), in_specs=P('x'),
                             out_specs=()))(np.ones((4, 3), F32))
    self.assertEqual(seen, [{'x'}])

  @red(NOT_REFUSED)
  @parameterized.product(jit=[False, True], mesh=list(MESHES))
  def test_export_claim_of_replication_is_refused(self, jit, mesh):
    mesh = make_mesh(*MESHES[mesh])
    exp = exported()
    f = shard_map(lambda w, x: exp.call(w, x[0]), mesh=mesh,
                  in_specs=(P(), P('x')), out_specs=P())
    w, x = np.ones(3, F32), np.ones((mesh.shape['x'], 3), F32)
    with self.assertRaisesRegex(ValueError, 'replicat'):
      jax.block_until_ready(maybe_jit(jit)(f)(w, x))

  @red(r'^AssertionError: Lists differ: \[frozenset\(\), frozenset\(\)\] != '
       r"\[\{'x'\}, \{'x'\}\]\s+First differing element")
  @parameterized.product(jit=[False, True], mesh=list(MESHES))
  def test_export_values(self, jit, mesh):
    mesh = make_mesh(*MESHES[mesh])
    exp = exported()

    def body(w, x):
      outs = exp.call(w, x[0])
      self.assertEqual([axes_of(o) for o in outs], [{'x'}, {'x'}])
      return tuple(o[None] for o in outs)

    w = np.arange(3, dtype=F32)
    x = np.arange(3 * mesh.shape['x'], dtype=F32).reshape(-1, 3)
    f = shard_map(body, mesh=mesh, in_specs=(P(), P('x')), out_specs=P('x'))
    a, b = maybe_jit(jit)(f)(w, x)
    self.assertAllClose(a, np.sin(w) * x)
    self.assertAllClose(b, w + x)

  @red(r'^AssertionError: \s*Not equal to tolerance .*ACTUAL: array\(\[ 0\.',
       bases='<0.8.2')
  @red('^ValueError: Custom VJP bwd rule.*must produce an output with the '
       'same type', bases='>=0.8.2')
  @parameterized.product(jit=[False, True], mesh=list(MESHES))
  def test_export_gradient_of_a_shared_operand(self, jit, mesh):
    mesh = make_mesh(*MESHES[mesh])
    exp = exported()
    f = shard_map(lambda w, x: exp.call(w, x[0])[0][None], mesh=mesh,
                  in_specs=(P(), P('x')), out_specs=P('x'))
    w = np.arange(3, dtype=F32)
    x = np.arange(3 * mesh.shape['x'], dtype=F32).reshape(-1, 3)
    loss = lambda w, x: jnp.sum(f(w, x))
    dw, dx = maybe_jit(jit)(jax.grad(loss, (0, 1)))(w, x)
    self.assertAllClose(dw, np.sum(np.cos(w) * x, axis=0))
    self.assertAllClose(dx, np.broadcast_to(np.sin(w), x.shape))

  @red('^TypeError: cond branches must have equal output types')
  @parameterized.product(jit=[False, True])
  def test_export_gradient_in_a_branch(self, jit):
    exp = exported()
    # The branch is traced at one type and differentiated at another.
    def f(w, x):
      return lax.cond(x[0] > 4., lambda: jnp.sum(exp.call(w, w)[0]),
                      lambda: jnp.sum(w))
    g = shard_map(lambda x: f(x[0], x[0])[None], mesh=make_mesh(2, 2),
                  in_specs=P('x'), out_specs=P('x'))
    x = np.array([[1., 2., 3.], [5., 6., 7.]], F32)
    got = maybe_jit(jit)(jax.grad(lambda x: jnp.sum(g(x))))(x)
    self.assertAllClose(got[0], np.ones(3, F32))
    self.assertAllClose(got[1], np.sin(x[1]) + x[1] * np.cos(x[1]), rtol=1e-5)

  @parameterized.product(jit=[False, True])
  def test_export_replicated(self, jit):
    exp = exported()
    f = shard_map(lambda w, x: exp.call(w, x)[0], mesh=make_mesh(2, 4),
                  in_specs=(P(), P()), out_specs=P())
    w = x = np.arange(3, dtype=F32)
    self.assertAllClose(maybe_jit(jit)(f)(w, x), np.sin(w) * x)
