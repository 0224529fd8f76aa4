# SPDX-License-Identifier: Apache-2.0
"""Gradients of lax.all_to_all that moves an axis, in shard_map and pmap.

The oracle is numpy: what device d got from device s goes back from d to s.
"""
import itertools

from absl.testing import parameterized
import jax
from jax import lax
from jax._src import test_util as jtu
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
from testing.red import red
from testing.sharding import shard_map
from varying.testing.common import make_mesh
from varying.testing.common import maybe_jit

jax.config.parse_flags_with_absl()

# What pristine JAX says.
OTHER_PRIMAL_TYPE = ('^ValueError: Input primal JAX type to VJP function is '
                     r'float32\[')
OTHER_COTANGENT_TYPE = r'^ValueError: Expected cotangent type float32\['
WRONG_VALUES = (r'^AssertionError: \s*Not equal to tolerance '
                r'rtol=1e-06.*\(shapes \([0-9, ]+\), \(4, 4, 4, 4\) mismatch\)')
OTHER_SIZE = {
    '<0.8.2': '^TypeError: reshape total size must be unchanged',
    '>=0.8.2,<0.10': OTHER_PRIMAL_TYPE,
    '>=0.10': OTHER_COTANGENT_TYPE,
}

N = 4  # devices
CUBE = np.random.RandomState(0).uniform(-1, 1, (N,) * 4).astype(np.float32)
MOVES = list(itertools.permutations(range(3), 2))


def exchanged(blocks, split, concat, groups=None):
  """all_to_all of the devices' blocks: device d gets the dth part of each."""
  groups = groups or [range(len(blocks))]
  out = [None] * len(blocks)
  for group in groups:
    for place, device in enumerate(group):
      parts = [np.take(blocks[source], place, split) for source in group]
      out[device] = np.stack(parts, concat)
  return np.stack(out)


def sharded(f, mesh, axes):
  return shard_map(lambda x: f(x.reshape(x.shape[1:]))[None], mesh=mesh,
                   in_specs=P(axes), out_specs=P(axes))


class AllToAllTest(jtu.JaxTestCase):

  def check(self, run, x, split, concat, groups=None, jit=True):
    """Values and gradient of `run`, which applies it to stacked blocks."""
    want = exchanged(x, split, concat, groups)
    w = np.cos(np.arange(want.size, dtype=np.float32)).reshape(want.shape)
    def loss(x):
      y = run(x)
      return jnp.sum(y * w), y
    got, y = maybe_jit(jit)(jax.grad(loss, has_aux=True))(x)
    np.testing.assert_allclose(y, want, rtol=1e-6)
    np.testing.assert_allclose(got, exchanged(w, concat, split, groups),
                               rtol=1e-6)

  @red(OTHER_SIZE)
  @parameterized.parameters(*MOVES)
  def test_gradient(self, split, concat):
    f = lambda x: lax.all_to_all(x, 'x', split, concat)
    self.check(sharded(f, make_mesh(N), 'x'), CUBE, split, concat)

  @red({
      '<0.8.2':
          r'^AssertionError: \s*Not equal to tolerance .*\(shapes \([0-9, '
          r']+\), \(4, 2, 2\) mismatch\)',
      '>=0.8.2,<0.10': OTHER_PRIMAL_TYPE,
      '>=0.10': OTHER_COTANGENT_TYPE,
  })
  @parameterized.parameters(*MOVES)
  def test_gradient_on_two_devices(self, split, concat):
    # Where no other operation asks for a shape, the wrong one passed.
    x, w = CUBE[:2, :2, :2, :2], CUBE[2:, 2:, 2:, 2:]
    f = shard_map(lambda x: lax.all_to_all(x, 'x', split, concat),
                  mesh=make_mesh(2), in_specs=P('x'), out_specs=P('x'))
    with jax.enable_checks(False):
      got = jax.jit(jax.grad(lambda x: jnp.sum(f(x) * w.reshape(4, 2, 2))))(
          x.reshape(4, 2, 2))
    np.testing.assert_allclose(
        got, exchanged(w, concat, split).reshape(4, 2, 2), rtol=1e-6)

  @red(OTHER_SIZE)
  def test_gradient_eager(self):
    f = lambda x: lax.all_to_all(x, 'x', 0, 2)
    self.check(sharded(f, make_mesh(N), 'x'), CUBE, 0, 2, jit=False)

  @red(OTHER_SIZE)
  @parameterized.parameters((0, 1), (2, 0))
  def test_gradient_over_two_axes(self, split, concat):
    f = lambda x: lax.all_to_all(x, ('x', 'y'), split, concat)
    self.check(sharded(f, make_mesh(2, 2), ('x', 'y')), CUBE, split, concat)

  @red({
      '<0.8.2': WRONG_VALUES,
      '>=0.8.2,<0.10': OTHER_PRIMAL_TYPE,
      '>=0.10': OTHER_COTANGENT_TYPE,
  })
  @parameterized.parameters((0, 1), (2, 0))
  def test_gradient_in_pmap(self, split, concat):
    f = jax.pmap(lambda x: lax.all_to_all(x, 'x', split, concat), 'x')
    self.check(f, CUBE, split, concat, jit=False)

  @red({
      '<0.6': WRONG_VALUES,
      '>=0.6,<0.7':
          r'^ValueError: unexpected JAX type \(e\.g\. shape/dtype\) for '
          'argument to vjp',
      '>=0.7,<0.8.2': WRONG_VALUES,
      '>=0.8.2,<0.10': OTHER_PRIMAL_TYPE,
      '>=0.10': OTHER_COTANGENT_TYPE,
  })
  def test_gradient_inside(self):
    f = lambda x: lax.all_to_all(x, 'x', 1, 0)
    def gradient(x):
      return jax.vjp(lambda x: jnp.sin(f(x)), x)[1](jnp.ones_like(x))[0]
    got = jax.jit(sharded(gradient, make_mesh(N), 'x'))(CUBE)
    want = exchanged(np.cos(exchanged(CUBE, 1, 0)), 0, 1)
    np.testing.assert_allclose(got, want, rtol=1e-6)

  @red(OTHER_SIZE)
  def test_gradient_of_vmap(self):
    f = jax.vmap(lambda x: lax.all_to_all(x, 'x', 0, 1), 2, 2)
    self.check(sharded(f, make_mesh(N), 'x'), CUBE, 0, 1)

  @red(OTHER_SIZE)
  def test_second_derivative(self):
    run = sharded(lambda x: lax.all_to_all(x, 'x', 0, 1), make_mesh(N), 'x')
    loss = lambda x: jnp.sum(run(x) ** 3)
    got = jax.jit(lambda x: jax.jvp(jax.grad(loss), (x,), (x,))[1])(CUBE)
    np.testing.assert_allclose(got, 6 * CUBE ** 2, rtol=1e-5)

  @red(OTHER_SIZE)
  def test_gradient_in_groups(self):
    groups = [[0, 2], [1, 3]]
    x = CUBE[:, :2]
    f = lambda x: lax.all_to_all(x, 'x', 0, 1, axis_index_groups=groups)
    self.check(sharded(f, make_mesh(N), 'x'), x, 0, 1, groups)

  @red(OTHER_SIZE)
  @parameterized.parameters((0, 1), (1, 0), (2, 0))
  def test_gradient_where_shapes_tell(self, split, concat):
    x = np.moveaxis(CUBE[:, :, :3, :2], 1, split + 1)
    f = lambda x: lax.all_to_all(x, 'x', split, concat)
    self.check(sharded(f, make_mesh(N), 'x'), x, split, concat)

  @parameterized.parameters(0, 1)
  def test_guard_one_axis(self, axis):
    f = lambda x: lax.all_to_all(x, 'x', axis, axis)
    self.check(sharded(f, make_mesh(N), 'x'), CUBE, axis, axis)

  def test_guard_tiled(self):
    f = lambda x: lax.all_to_all(x, 'x', 1, 1, tiled=True)
    self.check(sharded(f, make_mesh(N), 'x'), CUBE, 1, 1)
