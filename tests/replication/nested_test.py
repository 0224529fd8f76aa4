# SPDX-License-Identifier: Apache-2.0
"""A shard_map within another, over the axes that the outer one leaves auto."""
from absl.testing import parameterized
import jax
from jax import lax
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

X = np.sin(np.arange(16, dtype=np.float32)).reshape(4, 4)
W = np.float32(1.25)


def mesh():
  return Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ('i', 'j'))


def inner(f, in_specs=(P(None, 'j'), P()), out_specs=P(None, 'j')):
  return shard_map(f, mesh=mesh(), in_specs=in_specs, out_specs=out_specs)


def outer(f, in_specs=(P('i'), P()), out_specs=P('i')):
  return shard_map(f, mesh=mesh(), in_specs=in_specs, out_specs=out_specs,
                   auto=frozenset({'j'}))


# Functions of a device's part of X and of W.
PER_DEVICE = {
    'local': lambda x, w: jnp.sin(x) * w,
    'psum_inner_axis': lambda x, w: jnp.sin(x) * w * lax.psum(x, 'j'),
    'psum_outer_axis': lambda x, w: jnp.sin(x) * lax.psum(x * w, 'i'),
    'psum_both': lambda x, w: jnp.sin(x) * lax.psum(x * w, ('i', 'j')),
    'index_of_outer': lambda x, w: x * w * (
        1. + lax.axis_index('i').astype('float32')),
    'gather_outer': lambda x, w: x * w * lax.all_gather(x, 'i').sum(0),
    'scan': lambda x, w: lax.scan(
        lambda c, _: (w * lax.pmean(jnp.sin(c) + c * x, 'j'), None),
        x, None, length=2)[0],
    'cond': lambda x, w: lax.cond(x.sum() > 0, lambda: x * w,
                                  lambda: jnp.sin(x)),
}

# Ways to have the inner one in the outer one.
PLACES = {
    'direct': lambda g: g,
    'jit': lambda g: jax.jit(g),
    'remat': lambda g: jax.checkpoint(g),
    'scan': lambda g: lambda x, w: lax.scan(
        lambda c, _: (g(c, w), None), x, None, length=2)[0],
    'while': lambda g: lambda x, w: lax.fori_loop(
        0, 2, lambda _, c: g(c, w), x),
}


def emulate(f):
  """All four devices by vmap, without a mesh."""
  def g(x, w):
    parts = x.reshape(2, 2, 2, 2).transpose(0, 2, 1, 3)
    f_j = jax.vmap(f, (0, None), axis_name='j')
    outs = jax.vmap(f_j, (0, None), axis_name='i')(parts, w)
    return outs.transpose(0, 2, 1, 3).reshape(4, 4)
  return g


@red("^AttributeError: 'RewriteTrace' object has no attribute "
     "'process_shard_map'", api_missing=True)
class NestedTest(jtu.JaxTestCase):

  def check(self, got, want, *args):
    self.assertAllClose(jax.jit(got)(*args), jax.jit(want)(*args), rtol=1e-4,
                        atol=1e-5)
    loss = lambda h: lambda *a: jnp.sum(jnp.sin(h(*a)))
    got, want = [jax.jit(jax.grad(loss(h), (0, 1)))(*args)
                 for h in (got, want)]
    self.assertAllClose(got, want, rtol=1e-3, atol=1e-4)

  @parameterized.named_parameters(*[(f'_{k}', k) for k in sorted(PER_DEVICE)])
  def test_function(self, name):
    f = PER_DEVICE[name]
    self.check(outer(lambda x, w: inner(f)(x, w) * w),
               emulate(lambda x, w: f(x, w) * w), X, W)

  @parameterized.named_parameters(*[(f'_{k}', k) for k in sorted(PLACES)])
  def test_place(self, name):
    place, f = PLACES[name], lambda x, w: jnp.sin(x) * (w + lax.psum(x, 'j'))
    self.check(outer(lambda x, w: place(inner(f))(x, w) * w),
               emulate(lambda x, w: place(f)(x, w) * w), X, W)

  def test_derivatives_inside(self):
    f = lambda x, w: jnp.sin(x) * w * lax.psum(x, 'j')
    h = outer(lambda x, w: jax.grad(
        lambda x: jnp.sum(jnp.sin(inner(f)(x, w))))(x))
    loss = lambda x: jnp.sum(jnp.sin(emulate(f)(x, W)))
    self.assertAllClose(jax.jit(h)(X, W), jax.grad(loss)(X), rtol=1e-4)
    h = outer(lambda x, w: jax.vmap(inner(f), (0, None))(
        jnp.stack([x, 2 * x]), w).sum(0))
    want = emulate(f)(X, W) + emulate(f)(2 * X, W)
    self.assertAllClose(jax.jit(h)(X, W), want, rtol=1e-4)

  def test_replicated_result(self):
    # Of the inner function along j, and of the outer along i.
    f = lambda x, w: lax.psum(jnp.sum(x * w), 'j')
    h = outer(lambda x, w: lax.psum(inner(f, out_specs=P())(x, w), 'i'),
              out_specs=P())
    self.assertAllClose(jax.jit(h)(X, W), (X * W).sum(), rtol=1e-4)
    self.assertAllClose(jax.jit(jax.grad(h, (0, 1)))(X, W),
                        (np.full_like(X, W), X.sum()), rtol=1e-4)

  def test_refused(self):
    with self.assertRaisesRegex(ValueError, "out_specs.*mesh axis 'j'"):
      jax.make_jaxpr(outer(lambda x, w: inner(
          lambda x, w: x, out_specs=P())(x, w)))(X, W)
    with self.assertRaisesRegex(ValueError, "out_specs.*mesh axis 'i'"):
      jax.make_jaxpr(outer(lambda x, w: inner(
          lambda x, w: lax.psum(x.sum(), 'j'), out_specs=P())(x, w),
                           out_specs=P()))(X, W)
    with self.assertRaisesRegex(ValueError, "psum.*predicate varies over 'i'"):
      jax.make_jaxpr(outer(lambda x, w: inner(lambda x, w: lax.cond(
          lax.psum(x.sum(), 'j') > 0, lambda: lax.psum(x, 'i'),
          lambda: x))(x, w)))(X, W)

  @parameterized.named_parameters(('_all_axes', 'ij'), ('_one', 'i'))
  def test_no_axis_left(self, axes):
    m = mesh() if axes == 'ij' else Mesh(np.array(jax.devices()[:4]), ('i',))
    g = shard_map(jnp.sin, mesh=m, in_specs=P(), out_specs=P())
    axes = tuple(axes)
    self.check_no_axis_left(shard_map(
        lambda x: lax.psum(g(x), axes), mesh=m, in_specs=P(axes),
        out_specs=P()), np.sin(X).sum(0, keepdims=True))

  def test_no_axis_left_by_two(self):
    f = lambda x, w: inner(jnp.sin, P(), P())(x) * w
    self.check_no_axis_left(lambda x: outer(inner(f))(x, W), np.sin(X) * W)

  def check_no_axis_left(self, f, want):
    if jax.__version_info__ < (0, 5, 3):  # XLA would end the process
      with self.assertRaisesRegex(NotImplementedError, 'all of which are'):
        jax.jit(f)(X)
    else:
      self.assertAllClose(jax.jit(f)(X), want, rtol=1e-4)
