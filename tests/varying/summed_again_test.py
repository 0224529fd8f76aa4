# SPDX-License-Identifier: Apache-2.0
"""Megatron's pair of functions: a rule that sums a complete cotangent.

Results are compared with the layers without rules, on one device.
"""
import warnings

from absl.testing import parameterized
import jax
from jax import lax
from jax._src import test_util as jtu
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
from testing.red import red
from testing.sharding import shard_map
from varying.testing.common import cast
from varying.testing.common import make_mesh
from varying.testing.common import maybe_jit
from varying.testing.common import ships

jax.config.parse_flags_with_absl()

# What pristine JAX says.
PSUM_NOT_NAMED = (r'^AssertionError: "jax\.lax\.psum over .x. .* does not '
                  'match "Custom VJP bwd')
NOTHING_FOUND = r'^AssertionError: \[\] has length of 0'
ONLY_BWD_RULE = '^ValueError: Custom VJP bwd rule'

X, A, B = (np.random.RandomState(n).randn(*shape).astype(np.float32) / 2.
           for n, shape in enumerate([(3, 4), (4, 8), (8, 4)]))
MODULE = 'jax._src.varying.autodiff.already_summed'
REFUSED_UPSTREAM = jax.__version_info__ >= (0, 8, 2)
IN_WHICH = [dict(jit=jit, inside=inside)
            for jit in (False, True) for inside in (False, True)]


def with_rule(f, bwd):
  g = jax.custom_vjp(f)
  g.defvjp(lambda x: (f(x), None), lambda _, ct: (bwd(ct),))
  return g


def psum(x):
  return lax.psum(x, 'x')


def identity(x):
  return x


# Each is given, and returns, what doesn't vary.
ENTER = with_rule(identity, psum)
LEAVE = with_rule(psum, identity)


def layers(enter, leave):
  return lambda x, a, b: leave(jnp.tanh(enter(x) @ a) @ b)


def gradients(f, jit, inside, mesh=None, expected=None):
  """Of the sum of squares, and a warning for each of sums that were made."""
  loss = lambda *args: jnp.sum(f(*args) ** 2)
  specs = P(), P(None, 'x'), P('x')
  mesh = mesh or make_mesh(4)
  if inside:
    g = shard_map(jax.grad(loss, (0, 1, 2)), mesh=mesh, in_specs=specs,
                  out_specs=specs)
  else:
    g = jax.grad(shard_map(loss, mesh=mesh, in_specs=specs, out_specs=P()),
                 (0, 1, 2))
  with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter('always')
    got = maybe_jit(jit)(g)(X, A, B)
  return got, [w for w in caught if 'jax.lax.p' in str(w.message)]


def alone(scale=1.):
  loss = lambda x, a, b: jnp.sum((jnp.tanh(scale * x @ a) @ b) ** 2)
  return jax.grad(loss, (0, 1, 2))(X, A, B)


class PairTest(jtu.JaxTestCase):

  def setUp(self):
    super().setUp()
    if ships(MODULE):  # it warns once a line
      from jax._src.varying.autodiff import already_summed
      already_summed._said.clear()

  @red(PSUM_NOT_NAMED, bases='>=0.8.2')
  @red(NOTHING_FOUND, bases='<0.8.2')
  @parameterized.product(where=IN_WHICH)
  def test_pair(self, where):
    f = layers(with_rule(identity, psum), LEAVE)
    if REFUSED_UPSTREAM:
      with self.assertRaisesRegex(
          ValueError, "jax.lax.psum over 'x' .*custom VJP bwd rule.* complete"):
        gradients(f, **where)
    else:
      self.assertLen(gradients(f, **where)[1], 1)

  @red(NOTHING_FOUND)
  @parameterized.product(where=IN_WHICH)
  def test_rule_that_sums_warns(self, where):
    # In the same words wherever the derivative is taken.
    enter = with_rule(identity, lambda ct: lax.psum(ct, 'x'))
    got, caught = gradients(layers(enter, psum), **where)
    self.assertLen(caught, 1)
    self.assertRegex(str(caught[0].message),
                     "psum over 'x' .*the custom VJP bwd rule.* was given")
    want = alone()
    self.assertAllClose(got, (4. * want[0], *want[1:]), rtol=1e-4)

  @red(ONLY_BWD_RULE, bases='>=0.8.2')
  @parameterized.product(where=IN_WHICH)
  def test_the_other_one_is_right(self, where):
    got, caught = gradients(layers(identity, LEAVE), **where)
    self.assertEmpty(caught)
    self.assertAllClose(got, alone(), rtol=1e-4)

  @red(ONLY_BWD_RULE, bases='>=0.8.2')
  @parameterized.product(where=IN_WHICH)
  def test_pair_without_the_sum(self, where):
    # What the error says to write.
    enter = with_rule(identity, identity)
    got, caught = gradients(layers(enter, LEAVE), **where)
    self.assertEmpty(caught)
    self.assertAllClose(got, alone(), rtol=1e-4)

  def check_forward_sum(self, leave, where):
    got, caught = gradients(layers(with_rule(psum, psum), leave), **where)
    self.assertEmpty(caught)
    self.assertAllClose(got, alone(4.), rtol=1e-3, atol=1e-4)

  @parameterized.product(where=IN_WHICH)
  def test_forward_rule_that_is_a_sum(self, where):
    # Of what doesn't vary: its derivative is one.
    self.check_forward_sum(psum, where)

  @red(ONLY_BWD_RULE, bases='>=0.8.2')
  @parameterized.product(where=IN_WHICH)
  def test_pair_whose_forward_rule_is_a_sum(self, where):
    self.check_forward_sum(LEAVE, where)

  @red(ONLY_BWD_RULE, bases='>=0.8.2')
  @parameterized.parameters(
      (lambda ct: lax.pmean(ct, 'x'),),
      (lambda ct: psum(ct) / psum(1),),
      (lambda ct: .25 * psum(ct),),
      (lambda ct: ct + 0. * psum(1.),))
  def test_means(self, bwd):
    for leave in (psum, LEAVE):
      got, caught = gradients(layers(with_rule(identity, bwd), leave),
                              jit=False, inside=True)
      self.assertEmpty(caught)
      self.assertAllClose(got, alone(), rtol=1e-4)

  @red(ONLY_BWD_RULE, bases='>=0.8.2')
  def test_sum_of_parts(self):
    # The function's result varies, and each device has a part.
    f = jax.custom_vjp(lambda x: cast(x, 'x'))
    f.defvjp(lambda x: (cast(x, 'x'), None), lambda _, ct: (psum(ct),))
    got, caught = gradients(layers(f, LEAVE), jit=True, inside=True)
    self.assertEmpty(caught)
    self.assertAllClose(got, alone(), rtol=1e-4)

  def test_sum_of_what_the_rule_made_a_part(self):
    # The cotangent is complete, and meets what each device has.
    def bwd(r, ct):
      return psum(ct * r) / 6., None
    f = jax.custom_vjp(lambda x, v: x)
    f.defvjp(lambda x, v: (x, v), bwd)
    def layer(x, a, b):
      v = lax.axis_index('x').astype(x.dtype)
      return psum(jnp.tanh(f(x, v) @ a) @ b)
    got, caught = gradients(layer, jit=True, inside=True)
    self.assertEmpty(caught)
    self.assertAllClose(got, alone(), rtol=1e-4)

  @red(ONLY_BWD_RULE, bases='>=0.8.2')
  def test_on_one_device(self):
    got, caught = gradients(layers(ENTER, LEAVE), jit=True, inside=True,
                            mesh=make_mesh(1))
    self.assertEmpty(caught)
    self.assertAllClose(got, alone(), rtol=1e-4)

  @red(PSUM_NOT_NAMED, bases='>=0.8.2')
  @red(NOTHING_FOUND, bases='<0.8.2')
  def test_in_a_scan(self):
    enter = with_rule(identity, psum)
    def scanned(x, a, b):
      return lax.scan(
          lambda c, _: (layers(enter, LEAVE)(c, a, b), None), x, None,
          length=2)[0]
    if REFUSED_UPSTREAM:
      with self.assertRaisesRegex(ValueError, "jax.lax.psum over 'x' .*rule"):
        gradients(scanned, jit=True, inside=False)
    else:
      self.assertNotEmpty(gradients(scanned, jit=True, inside=False)[1])

  @red('^AttributeError: Unrecognized config option: '
       'jax_shard_map_summed_gradients', api_missing=True)
  @parameterized.parameters('error', 'off')
  def test_option(self, value):
    jax.config.update('jax_shard_map_summed_gradients', value)
    try:
      f = layers(with_rule(identity, psum), psum)
      if value == 'error':
        with self.assertRaisesRegex(ValueError, "jax.lax.psum over 'x' .*rule"):
          gradients(f, jit=False, inside=False)
      else:
        self.assertEmpty(gradients(f, jit=False, inside=False)[1])
    finally:
      jax.config.update('jax_shard_map_summed_gradients', 'warn')
