# SPDX-License-Identifier: Apache-2.0
"""A shard_map inside of one over another axis, with both checks, on 0.6.0."""
from absl.testing import parameterized
import jax
from jax import lax
from jax._src import config
from jax._src import test_util as jtu
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
from testing.red import red
from testing.sharding import shard_map
from varying.testing.common import make_mesh
from varying.testing.nested import A
from varying.testing.nested import B
from varying.testing.nested import PROGRAMS
from varying.testing.nested import product
from varying.testing.nested import unnested

jax.config.parse_flags_with_absl()

# What pristine JAX says.
WRONG_VALUES = (r'^AssertionError: \s*Not equal to tolerance .*ACTUAL: '
                r'array\(\[\[2')
UNEQUAL_TYPES = '^TypeError: .*must have equal '

def nested(f, out_specs=P('x'), inner_specs=P('y')):
  """`f` of a's rows, split over 'x', and of b's, split over 'y'."""
  mesh = make_mesh(2, 2)
  inner = shard_map(f, mesh=mesh, in_specs=(P(), P('y')),
                    out_specs=inner_specs)
  return jax.jit(shard_map(
      lambda a, b: inner(a, b), mesh=mesh, in_specs=(P('x'), P()),
      out_specs=out_specs, auto=frozenset({'y'})))


class NestedTypesTest(jtu.JaxTestCase):

  def check_gradient(self, g, f):
    grad = lambda g: jax.jit(jax.grad(
        lambda a, b: jnp.sum(g(a, b) ** 2), (0, 1)))(A, B)
    for x, y in zip(grad(g), grad(unnested(f))):
      np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4)

  @red(WRONG_VALUES, cases=['product', 'summed'])
  @red(UNEQUAL_TYPES)
  @parameterized.product(f=PROGRAMS, remat=[True, False])
  def test_gradient(self, f, remat):
    g = nested(f)
    self.check_gradient(jax.checkpoint(g) if remat else g, f)

  @red(WRONG_VALUES, cases=['product', 'summed'])
  @red(UNEQUAL_TYPES)
  @parameterized.product(f=PROGRAMS)
  def test_gradient_of_what_is_saved(self, f):
    save = jax.checkpoint_policies.everything_saveable
    self.check_gradient(jax.checkpoint(nested(f), policy=save), f)

  @red(r'^ValueError: safe_zip\(\) argument 2 is shorter than argument 1',
       cases=['product', 'summed'])
  @red(UNEQUAL_TYPES)
  @parameterized.product(f=PROGRAMS)
  def test_gradient_by_direct_linearization(self, f):
    with config.use_direct_linearize(True):
      self.check_gradient(nested(f), f)

  @red(r'^ValueError: unexpected JAX type \(e\.g\. shape/dtype\) for '
       r'argument to vjp function: got float32\[\],',
       cases=['product', 'summed'])
  @red(UNEQUAL_TYPES)
  @parameterized.product(f=PROGRAMS)
  def test_gradient_inside(self, f):
    def inner_gradient(a, b):
      return jax.grad(lambda a: jnp.sum(f(a, b) ** 2))(a) + 0. * b
    got = nested(inner_gradient)(A, B)
    # Each device along 'y' has all of a's rows, so they sum their gradients.
    def total(a, b):
      return jnp.sum(unnested(f)(a, b) ** 2)
    rows = np.asarray(jax.grad(total)(A, B)).reshape(2, 1, 2, 6)
    want = np.repeat(rows, 2, 1)
    np.testing.assert_allclose(got, want.reshape(8, 6), rtol=1e-4, atol=1e-4)

  @parameterized.product(f=PROGRAMS[:2])
  def test_value(self, f):
    np.testing.assert_allclose(nested(f)(A, B), unnested(f)(A, B), rtol=1e-5)

  @red('^AssertionError: ValueError not raised')
  def test_result_that_varies_outside_is_refused(self):
    with self.assertRaisesRegex(ValueError, '(?s)out_specs.*replication'):
      nested(product, out_specs=P())(A, B)

  def test_reduced_result(self):
    f = nested(lambda a, b: a + lax.psum(b, 'y'), inner_specs=P())
    want = np.concatenate([rows + B[:2] + B[2:] for rows in (A[:2], A[2:])])
    np.testing.assert_allclose(f(A, B), want, rtol=1e-6)
