# SPDX-License-Identifier: Apache-2.0
"""A shard_map over 'y' inside of one over 'x', against blocks on one device."""
from absl.testing import parameterized
import jax
from jax import lax
from jax._src import test_util as jtu
from jax.experimental import io_callback
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
from testing.red import red
from testing.sharding import shard_map
from varying.testing.common import make_mesh
from varying.testing.common import maybe_jit
from varying.testing.common import RUNS_PARTLY_MANUAL
from varying.testing.nested import A
from varying.testing.nested import B
from varying.testing.nested import PROGRAMS
from varying.testing.nested import looped
from varying.testing.nested import product
from varying.testing.nested import summed
from varying.testing.nested import unnested

jax.config.parse_flags_with_absl()

# What pristine JAX says.
UNEQUAL_TYPES = '^TypeError: .*must have equal '
OTHER_ARRAY_AXES = ('^ValueError: shard_map applied to the function '
                    "'<lambda>' was given argument arrays with axis")
MIXED_AXIS_TYPES = {
    '<0.7':
        '^ValueError: AxisTypes should be the same in a tuple subset of '
        r'PartitionSpec: PartitionSpec\(',
    '>=0.7,<0.9':
        '^ValueError: Tuple subset of `PartitionSpec` cannot contain `Manual` '
        'mixed with `Auto`',
    '>=0.9,<0.10.2':
        '^ValueError: Cannot lower jaxpr with verifier '
        r"errors:\s+'sdy\.manual_computation' op operand shape, corresponding "
        'sharding,',
    '>=0.10.2':
        '^ValueError: Cannot lower jaxpr with verifier '
        r"errors:\s+'sdy\.manual_computation' op operand 1 -",
}

def nested(f, in_specs=(P(), P('y')), out_specs=P('y'), sizes=(2, 2)):
  """`f` of a's rows, split over 'x', and of b's, split over 'y'."""
  inner = shard_map(f, axis_names={'y'}, in_specs=in_specs,
                    out_specs=out_specs)
  return shard_map(lambda a, b: inner(a, b), mesh=make_mesh(*sizes),
                   axis_names={'x'}, in_specs=(P('x'), P()), out_specs=P('x'))


def carried(a, b):
  go = lambda c: c[1] < lax.pmax(jnp.sum(a), 'y')
  return lax.while_loop(go, lambda c: (c[0] * b, c[1] + 5.), (a, 0.))[0]


def value(f):
  return f


def gradient(f):
  return jax.grad(lambda a, b: jnp.sum(f(a, b) ** 2), (0, 1))


def remat_gradient(f):
  return gradient(jax.checkpoint(f))


def tangent(f):
  return lambda a, b: jax.jvp(f, (a, b), (b, a))[1]


def curvature(f):
  g = jax.grad(lambda a, b: jnp.sum(f(a, b) ** 2))
  return lambda a, b: jax.jvp(lambda a: g(a, b), (a,), (b,))[1]


class NestedTest(jtu.JaxTestCase):

  def setUp(self):
    super().setUp()
    if 'eager' in self._testMethodName and not RUNS_PARTLY_MANUAL:
      self.skipTest('a partly manual shard_map is refused there without jit')

  def check(self, f, transform, jit):
    if f is carried and transform is gradient:
      f = lambda a, b: carried(lax.stop_gradient(a), lax.stop_gradient(b)) * a
    got = maybe_jit(jit)(transform(nested(f)))(A, B)
    want = jax.jit(transform(unnested(f)))(A, B)
    self.assertAllClose(got, want, rtol=1e-4, atol=1e-4)

  @red(MIXED_AXIS_TYPES, cases=['product', 'summed'])
  @red(UNEQUAL_TYPES)
  @parameterized.product(f=[*PROGRAMS, carried])
  def test_derivative(self, f):
    self.check(f, gradient, True)

  @red(MIXED_AXIS_TYPES, cases=['summed'])
  @red(UNEQUAL_TYPES)
  @parameterized.product(f=[summed, looped],
                         transform=[remat_gradient, curvature])
  def test_derivatives_more(self, f, transform):
    self.check(f, transform, True)

  @parameterized.product(branch=[True, False], jit=[True, False])
  def test_unchecked_where_devices_part(self, branch, jit):
    if jax.__version_info__ < (0, 7) or not jit and not RUNS_PARTLY_MANUAL:
      self.skipTest('a shard_map over other axes of the mesh is refused there')
    more = shard_map(lambda v: v + 1., in_specs=P(), out_specs=P(),
                     axis_names={'y'}, check_vma=False)
    def f(x, w):
      if branch:
        return lax.cond(x.sum() > 2., more, lambda v: v, w)[None]
      return lax.while_loop(lambda v: v < x.sum(), more, w)[None]
    x = np.array([[.25, .75], [1.25, 1.75]], np.float32)
    f = shard_map(f, mesh=make_mesh(2, 2), in_specs=(P('x'), P()),
                  out_specs=P('x'), axis_names={'x'})
    # The type that an unchecked shard_map's result has, nothing varies in.
    with jax.enable_checks(False):
      got = maybe_jit(jit)(f)(x, np.float32(.5))
    self.assertAllClose(got, np.float32([.5, 1.5] if branch else [1.5, 3.5]))

  @red('^ValueError: Cannot lower jaxpr with verifier '
       r"errors:\s+'sdy\.manual_computation' op operates on axis .x. which",
       bases='>=0.7,<0.10.2')
  @parameterized.product(axis=['x', 'y'])
  def test_axis_index(self, axis):
    if jax.__version_info__ < (0, 7):
      self.skipTest('jaxlib aborts the process')
    index = lambda a: lax.axis_index(axis).astype(a.dtype)
    got = jax.jit(nested(lambda a, b: a + index(a)))(A, B)
    want = np.concatenate([
        part + (x if axis == 'x' else y)
        for x, part in enumerate(np.split(np.asarray(A), 2)) for y in range(2)])
    self.assertAllClose(got, want)

  # Upstream has callbacks there from 0.10.2 on.
  @red('^NotImplementedError: callbacks are only supported in spmd '
       'computations when all mesh axes are partitioned',
       bases='>=0.7,!=0.9.1,<0.10.2')
  @parameterized.product(sizes=[(1, 2), (2, 1), (2, 2)], kind=['pure', 'io'])
  def test_callback(self, sizes, kind):
    if jax.__version_info__ < (0, 7):
      self.skipTest('callbacks are refused in a partly manual shard_map')
    if jax.__version_info__ == (0, 9, 1):
      self.skipTest("0.9.1 refuses a callback's results on the outer mesh")
    call = jax.pure_callback if kind == 'pure' else io_callback
    def f(a, b):
      at = lax.axis_index('x') * 2 + lax.axis_index('y')
      return call(lambda a, at: a + at * 10, a, a, at.astype(a.dtype))
    got = jax.jit(nested(f, sizes=sizes))(A, B)
    self.assertAllClose(got, np.concatenate([
        part + 10 * (2 * x + y)
        for x, part in enumerate(np.split(np.asarray(A), sizes[0]))
        for y in range(sizes[1])]))

  @red(OTHER_ARRAY_AXES, bases='>=0.7')
  @parameterized.product(f=[*PROGRAMS[1:], carried])
  def test_eager(self, f):
    self.check(f, value, False)

  @red(OTHER_ARRAY_AXES, bases='>=0.7')
  @parameterized.product(f=[product, looped], transform=[tangent, gradient])
  def test_eager_derivative(self, f, transform):
    self.check(f, transform, False)

  @red('^AssertionError: '
       r'"\(\?s\)out_specs\.\*'
       r"'y'\|statically"
       '" does not match "shard_map applied to the function', bases='>=0.7')
  def test_eager_result_that_varies_is_refused(self):
    f = nested(lambda a, b: a * b, out_specs=P())
    with self.assertRaisesRegex(ValueError, "(?s)out_specs.*'y'|statically"):
      f(A, B)

  @red(OTHER_ARRAY_AXES, bases='>=0.7')
  def test_eager_result_that_is_reduced(self):
    f = nested(lambda a, b: a + lax.psum(b, 'y'), out_specs=P())
    want = np.concatenate([rows + B[:2] + B[2:] for rows in (A[:2], A[2:])])
    self.assertAllClose(f(A, B), want)

  @red('^TypeError: _psum_invariant_abstract_eval', bases='>=0.8.1,<0.9')
  @parameterized.parameters(True, False)
  def test_mapped_over_the_other_axis(self, jit):
    # As before: this axis is manual inside, too, and named by the residuals.
    f = lambda a: jnp.sin(a) * lax.psum(a, 'x')
    g = shard_map(f, mesh=make_mesh(2, 2), in_specs=P('x'), out_specs=P('x'))
    loss = lambda a: jnp.sum(jax.vmap(g, spmd_axis_name='y')(a) ** 2)
    one = lambda a: jnp.sum((jnp.sin(a) * (a + jnp.roll(a, 2, 1))) ** 2)
    x = A.reshape(6, 4)
    self.assertAllClose(maybe_jit(jit)(jax.grad(loss))(x), jax.grad(one)(x),
                        rtol=1e-5)
