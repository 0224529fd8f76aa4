# SPDX-License-Identifier: Apache-2.0
"""Derivatives in a branch that not all devices take, of what they share.

Each function differentiates by a value that varies, and what is kept or
computed again for its backward pass is the same on all devices.
"""

from unittest import mock

from absl.testing import parameterized
import jax
from jax import lax
from jax._src import config
from jax._src import test_util as jtu
import jax.numpy as jnp
import numpy as np
from testing.red import red
from testing.sharding import eight_devices
from varying.testing import common

config.parse_flags_with_absl()
eight_devices()

# What pristine JAX says.
UNEQUAL_BRANCHES = '^TypeError: .*must have equal output types'

X = np.linspace(-.5, .6, 12, dtype=np.float32).reshape(4, 3)
W = np.array([.5, .2, .3], np.float32)


def gradient(f):
  return jax.grad(lambda u: jnp.sum(f(u)))


def checkpoint(w):
  return gradient(jax.checkpoint(lambda u: jnp.sin(u) * w))


def checkpoint_of_a_loop(w):
  step = jax.checkpoint(lambda c, _: (jnp.sin(c) * w, None))
  return gradient(lambda u: lax.scan(step, u, None, length=2)[0])


def checkpoint_by_a_policy(w):
  return gradient(jax.checkpoint(
      lambda u: jnp.sin(u) * jnp.sin(w) * u,
      policy=jax.checkpoint_policies.dots_saveable))


def jit_of_a_checkpoint(w):
  return jax.jit(gradient(jax.jit(jax.checkpoint(lambda u: jnp.sin(u) * w))))


def second_derivative(w):
  inner = gradient(jax.checkpoint(lambda u: jnp.sin(u) * w))
  return gradient(lambda u: inner(u) * u)


def residual_of_a_rule(w):
  @jax.custom_vjp
  def f(u, w):
    return jnp.sin(u) * w
  f.defvjp(lambda u, w: (f(u, w), (u, w)),
           lambda kept, ct: (ct * jnp.cos(kept[0]) * kept[1], None))
  return gradient(lambda u: f(u, w))


def constant_of_a_rule(w):
  w = lax.stop_gradient(w)
  @jax.custom_vjp
  def f(u):
    return jnp.sin(u) * w
  f.defvjp(lambda u: (f(u), u),
           lambda u, ct: (jax.jit(lambda ct: ct * jnp.cos(u) * w)(ct),))
  return gradient(f)


def of_rows(w):
  f = jax.checkpoint(lambda u: jnp.sin(u) * jnp.sum(w))
  return jax.vmap(jax.grad(f))


KINDS = [checkpoint, checkpoint_of_a_loop, checkpoint_by_a_policy,
         jit_of_a_checkpoint, second_derivative, residual_of_a_rule,
         constant_of_a_rule, of_rows]


def branching(kind, choose, vary, vary_other):
  """A function of a device's row and a shared array that chooses by the row."""
  def f(x, w):
    taken = lambda x, w: kind(w * 2)(vary(w)) + x
    other = lambda x, w: vary_other(w * .3)
    return choose(jnp.sum(x) > 0, taken, other, x, w)
  return f


def by_switch(pred, taken, other, *operands):
  return lax.switch(pred.astype(int), [other, taken, taken], *operands)


@red(r'^ValueError: unexpected JAX type \(e\.g\. shape/dtype\) for argument '
     'to vjp function', bases='==0.6.0')
class BranchDerivativesTest(jtu.JaxTestCase):

  def check(self, kind, choose, vary_other, where, gradients=False):
    axes = common.make_mesh(*common.MESHES[where[0]]).axis_names
    vary = lambda x: common.cast(x, axes)
    mapped = branching(kind, choose, vary, vary if vary_other else lambda x: x)
    alone = branching(kind, choose, lambda x: x, lambda x: x)
    def of_mapped(x, w):
      return common.run_rows(mapped, where, x, shared=w)
    def of_alone(x, w):
      with jax.enable_checks(False):
        return jnp.stack([alone(row, w) for row in x])
    self.assertAllClose(of_mapped(X, W), of_alone(X, W), rtol=1e-5)
    if gradients and kind is not constant_of_a_rule:
      loss = lambda f: lambda x, w: jnp.sum(f(x, w) * (1 + jnp.arange(12.)
                                                       .reshape(4, 3)))
      got = jax.jit(jax.grad(loss(of_mapped), (0, 1)))(X, W)
      want = jax.grad(loss(of_alone), (0, 1))(X, W)
      self.assertAllClose(got, want, rtol=1e-4, atol=1e-5)

  @parameterized.product(kind=KINDS, choose=[lax.cond, by_switch])
  def test_guard_values(self, kind, choose):
    self.check(kind, choose, True, ('1d', True))

  def test_guard_values_eager(self):
    for kind in checkpoint, residual_of_a_rule:
      self.check(kind, lax.cond, True, ('2d', False))

  # Upstream refuses these branches, as the other one doesn't vary.

  @red(UNEQUAL_BRANCHES, bases='>=0.6.1')
  @parameterized.product(kind=KINDS, mesh=['1d', '2d'])
  def test_gradients(self, kind, mesh):
    self.check(kind, lax.cond, False, (mesh, True), gradients=True)

  @red(UNEQUAL_BRANCHES, bases='>=0.6.1')
  def test_gradients_eager(self):
    self.check(checkpoint, lax.cond, False, ('1d', False), gradients=True)

  @red(UNEQUAL_BRANCHES, bases='>=0.6.1')
  def test_gradients_axis_of_one_device(self):
    with mock.patch.dict(common.MESHES, {'of one': (4, 1)}):
      self.check(checkpoint, by_switch, False, ('of one', True), gradients=True)

  def test_guard_what_varies_when_it_is_read(self):
    # The loop's value comes to vary; its gradient isn't summed over devices.
    def f(x, w):
      def step(c, _):
        inner = lambda c: checkpoint(c)(x)
        return lax.cond(jnp.sum(x) > 0, inner, lambda c: c * x, c), None
      return lax.scan(step, w + 0 * x, None, length=2)[0]
    got = common.run_rows(f, ('1d', True), X, shared=W)
    self.assertAllClose(got, jnp.stack([f(row, W) for row in X]), rtol=1e-5)
