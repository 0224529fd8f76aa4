# SPDX-License-Identifier: Apache-2.0
"""Gradients are accepted where the function is: residuals of branches."""

from absl.testing import parameterized
import jax
from jax import lax
from jax._src import config
from jax._src import test_util as jtu
from jax.experimental.shard_map import shard_map
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
import numpy as np
from testing.red import red
from testing.sharding import eight_devices

jax.config.parse_flags_with_absl()
eight_devices()

# What pristine JAX says.
MISMATCHED_REPLICATION = '^Exception: .*produced mismatched replication types'
TANGENT_NOT_NAMED = (r'^AssertionError: "the tangent of an output\.\*varies '
                     'over mesh axis \'i\'" does not match "Too many')
OTHER_REPLICATION = '^Exception: .*replication type'

X = np.linspace(.5, 1.5, 8, dtype=np.float32)
W = np.array([.75, 1.25], np.float32)
WEIGHTS = X + W[0]


def smap(f, in_specs, out_specs, shape=(4,)):
  mesh = Mesh(np.array(jax.devices()[:np.prod(shape)]).reshape(shape),
              ('i', 'j')[:len(shape)])
  return shard_map(f, mesh=mesh, in_specs=in_specs, out_specs=out_specs)


# Of a device's part of x and of w; the results vary and don't. The residuals
# sin(w) and sin(x) of the two branches don't change in the loop.

def output_of_one_branch(x, w):
  def body(c, _):
    return lax.cond(w[0] > .5, lambda a, b: (a, b * jnp.sin(w)),
                    lambda a, b: (a * jnp.sin(x), b), *c), None
  return lax.scan(body, (x, w), None, length=3)[0]


def cast_in_one_branch(x, w):
  def body(c, _):
    return lax.cond(w[0] > .5, lambda a, b: (a * jnp.sin(w), b * jnp.sin(w)),
                    lambda a, b: (a * jnp.sin(x), b), *c), None
  return lax.scan(body, (x, w), None, length=3)[0]


def nested(x, w):
  def body(c, _):
    return lax.switch(jnp.int32(w[0] * 3), [
        lambda a, b: (a * jnp.sin(w), jnp.cos(b)),
        lambda a, b: (a * jnp.sin(x), b * w),
        lambda a, b: lax.cond(w[1] > .5, lambda: (jnp.sin(a), b * w),
                              lambda: (a * w, jnp.sin(b)))], *c), None
  return lax.scan(body, (x, w), None, length=2)[0]


FUNCTIONS = {f.__name__: f
             for f in (output_of_one_branch, cast_in_one_branch, nested)}


def loss(g):
  return lambda x, w: sum(jnp.sum(jnp.sin(o)) for o in g(x, w))


@red(MISMATCHED_REPLICATION)
class GradientTest(jtu.JaxTestCase):

  def single(self, f):
    def g(x, w):
      outs = [f(part, w) for part in jnp.split(x, 4)]
      return jnp.concatenate([o[0] for o in outs]), outs[0][1]
    return g

  @parameterized.named_parameters(*[(f'_{k}', k) for k in sorted(FUNCTIONS)])
  def test_grad(self, name):
    f = FUNCTIONS[name]
    g = smap(f, (P('i'), P()), (P('i'), P()))
    self.assertAllClose(
        jax.jit(jax.grad(loss(g), (0, 1)))(X, W),
        jax.jit(jax.grad(loss(self.single(f)), (0, 1)))(X, W), rtol=1e-4)

  @parameterized.named_parameters(
      ('jit', jax.jit), ('remat', jax.checkpoint),
      ('linearize', lambda g: lambda *a: jax.linearize(g, *a)[0]))
  def test_grad_of(self, transform):
    f = cast_in_one_branch
    g = transform(smap(f, (P('i'), P()), (P('i'), P())))
    self.assertAllClose(
        jax.jit(jax.grad(loss(g), (0, 1)))(X, W),
        jax.jit(jax.grad(loss(self.single(f)), (0, 1)))(X, W), rtol=1e-4)

  @parameterized.named_parameters(
      ('hessian', lambda g: jax.hessian(loss(g), (0, 1))),
      ('jvp_of_vjp', lambda g: jax.jacfwd(
          lambda x, w: jax.vjp(g, x, w)[0][1], 1)),
      ('linearize_twice', lambda g: lambda x, w: jax.linearize(
          lambda x, w: jax.linearize(g, x, w)[1](x, w), x, w)[1](x, w)),
      ('grad_of_jvp', lambda g: jax.grad(
          lambda x, w: sum(map(jnp.sum, jax.jvp(g, (x, w), (x, w))[1])))))
  def test_tangents_are_outputs(self, derivative):
    f = output_of_one_branch
    g = jax.jit(smap(f, (P('i'), P()), (P('i'), P())))
    self.assertAllClose(
        jax.jit(derivative(g))(X, W),
        jax.jit(derivative(self.single(f)))(X, W), rtol=1e-4)

  if jax.__version_info__ >= (0, 5, 3):  # psum is linearized directly since

    @red(MISMATCHED_REPLICATION, bases='>=0.5.3')
    def test_grad_by_direct_linearization(self):
      with config.use_direct_linearize(True):
        self.test_grad_nested()

  def test_vmap_of_grad_on_two_axes(self):
    f = output_of_one_branch
    g = smap(f, (P('i'), P()), (P('i'), P()), (4, 2))
    xs = np.stack([X, X + 1])
    grads = lambda g: jax.vmap(jax.grad(loss(g), (0, 1)), (0, None))
    self.assertAllClose(jax.jit(grads(g))(xs, W),
                        jax.jit(grads(self.single(f)))(xs, W), rtol=1e-4)

  def test_eager_grad(self):
    f = output_of_one_branch
    g = smap(f, (P('i'), P()), (P('i'), P()))
    self.assertAllClose(
        jax.grad(loss(g), (0, 1))(X, W),
        jax.grad(loss(self.single(f)), (0, 1))(X, W), rtol=1e-4)


@jax.custom_jvp
def sine(w):
  return jnp.sin(w)


@sine.defjvp
def _(primals, tangents):
  scale = 1. + lax.axis_index('i').astype('float32')
  return sine(*primals), tangents[0] * scale


@red(r'^AssertionError: raised by shard_map\.process_custom_jvp_call')
class TangentTest(jtu.JaxTestCase):

  def jvp(self, f, jit):
    g = smap(f, P(), P())
    self.assertAllClose(jax.jit(g)(W), np.sin(W), rtol=1e-5)
    return jit(lambda w: jax.jvp(g, (w,), (w,))[1])(W)

  def test_tangent_that_varies_is_refused(self):
    with self.assertRaisesRegex(ValueError, 'out_specs'):
      self.jvp(sine, jax.jit)

  # Here, when the rule runs, the function has been accepted.
  @red(TANGENT_NOT_NAMED, cases=['jit'])
  @red(OTHER_REPLICATION)
  @parameterized.named_parameters(
      ('jit', jax.jit(sine)),
      ('scan', lambda w: lax.scan(
          lambda c, _: (sine(w) * c, None), jnp.ones(2), None, length=1)[0]))
  def test_tangent_that_varies_is_refused_in(self, f):
    refused = self.assertRaisesRegex(
        ValueError, "the tangent of an output.*varies over mesh axis 'i'")
    with refused:
      self.jvp(f, jax.jit)
    with refused:
      self.jvp(f, lambda g: g)
    with refused:  # through another level of jit and of derivatives
      g = jax.jit(smap(f, P(), P()))
      jax.jit(jax.hessian(lambda w: g(w).sum()))(W)

  @red(TANGENT_NOT_NAMED)
  def test_tangent_that_varies_is_refused_without_internal_checks(self):
    with jax.enable_checks(False), self.assertRaisesRegex(
        ValueError, "the tangent of an output.*varies over mesh axis 'i'"):
      self.jvp(jax.jit(sine), jax.jit)

  @red(OTHER_REPLICATION)
  def test_tangent_that_varies_is_taken_where_the_result_varies(self):
    g = smap(jax.jit(sine), P(), P('i'))
    _, t = jax.jit(lambda: jax.jvp(g, (W,), (W,)))()
    want = np.concatenate([W * (1 + i) for i in range(4)])
    self.assertAllClose(t, want, rtol=1e-5)
    many = jnp.stack([W, 2 * W])
    tangents = jax.vmap(lambda t: jax.jvp(g, (W,), (t,))[1])(many)
    self.assertAllClose(tangents, np.stack([want, 2 * want]), rtol=1e-5)

  def grad(self, f):
    return jax.grad(lambda w: (smap(f, P(), P('i'))(w) * WEIGHTS).sum())

  def test_gradient_through_a_tangent_that_varies(self):
    want = sum((1 + i) * c for i, c in enumerate(np.split(WEIGHTS, 4)))
    self.assertAllClose(self.grad(sine)(W), want, rtol=1e-5)
    self.assertAllClose(jax.jit(self.grad(sine))(W), want, rtol=1e-5)

  # The rule runs when casts are made: upstream's gradients are silently wrong.
  @red('^AssertionError: ValueError not raised')
  def test_gradient_through_a_tangent_that_varies_in_jit_is_refused(self):
    for transform in (jax.jit, lambda f: f):
      with self.assertRaisesRegex(ValueError, 'tangent of a replicated value'):
        transform(self.grad(jax.jit(sine)))(W)

  @red(OTHER_REPLICATION)
  @parameterized.parameters(
      (sine, P('i'), np.arange(1., 5.)),
      (jax.jit(lambda w: 2 * w + lax.stop_gradient(sine(w))), P(), [2.]),
      (jax.jit(lambda w: (sine(w), 3 * w)[1]), P('i'), [3.] * 4))
  def test_tangent_that_varies_under_spmd_axis_name(self, f, spec, slopes):
    # A function within jit is typed once more; there it isn't used.
    mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ('j', 'i'))
    g = shard_map(f, mesh=mesh, in_specs=P(), out_specs=spec)
    got = jax.vmap(lambda t: jax.jvp(g, (W,), (t,))[1],
                   spmd_axis_name='j')(jnp.stack([W, 2 * W]))
    want = np.concatenate([slope * W for slope in slopes])
    self.assertAllClose(got, np.stack([want, 2 * want]), rtol=1e-5,
                        check_dtypes=False)
