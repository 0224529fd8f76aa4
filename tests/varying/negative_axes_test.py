# SPDX-License-Identifier: Apache-2.0
"""Negative axes of all_to_all and psum_scatter (jax#11194).

The oracle is the same operation along the axis counted from the start.
"""
from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax import lax
from jax._src import test_util as jtu
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec as P
import numpy as np
from testing.red import red
from testing.sharding import eight_devices
from testing.sharding import shard_map

jax.config.parse_flags_with_absl()
eight_devices()

NDIM = 3


def operand(tiled):
  """Each of two devices has an array of shape (4, 4, 4), or (2, 2, 2)."""
  n = 4 if tiled else 2
  return np.arange(2 * n ** 3, dtype=np.float32).reshape(2 * n, n, n)


def exchanged(split, concat, tiled):
  return lambda x: lax.all_to_all(x, 'x', split, concat, tiled=tiled)


def scattered(axis, tiled):
  return lambda x: lax.psum_scatter(
      x, 'x', scatter_dimension=axis, tiled=tiled)


def over_two(f):
  mesh = Mesh(np.array(jax.devices()[:2]), ('x',))
  return shard_map(f, mesh=mesh, in_specs=P('x'), out_specs=P('x'))


# How the function is called, of a function of one device's part.
HOW = {
    'jit': lambda f, x: jax.jit(over_two(f))(x),
    'grad': lambda f, x: jax.jit(jax.grad(
        lambda x: jnp.sin(over_two(f)(x)).sum()))(x),
    'vmap': lambda f, x: jax.jit(over_two(jax.vmap(f, 1, 1)))(
        np.stack([x, x + 1, x + 2], 1)),
    'axis of vmap': lambda f, x: jax.vmap(f, axis_name='x')(
        x.reshape(2, -1, *x.shape[1:])),
}


@red("^AssertionError: .*axes aren't counted from the end")
class NegativeAxesTest(jtu.JaxTestCase):

  def check(self, negative, positive):
    try:
      got, want = negative(), positive()
    except Exception:  # of many types, some with nothing to say
      got = want = None
    self.assertIsNotNone(want, "axes aren't counted from the end: refused")
    self.assertTrue(got.shape == want.shape and np.array_equal(got, want),
                    "axes aren't counted from the end: other values")

  @parameterized.product(
      # Of (-2, -1) pristine JAX dies: no test of it can be red.
      axes=[(-1, 0), (0, -1), (-1, -1), (1, -3)],
      tiled=[True, False], how=list(HOW))
  def test_all_to_all(self, axes, tiled, how):
    split, concat = axes
    x = operand(tiled)
    self.check(lambda: HOW[how](exchanged(split, concat, tiled), x),
               lambda: HOW[how](exchanged(split % NDIM, concat % NDIM, tiled),
                                x))

  @parameterized.product(axis=[-1, -2, -3], tiled=[True, False],
                         how=['jit', 'grad', 'axis of vmap'])
  def test_psum_scatter(self, axis, tiled, how):
    x = operand(tiled)
    self.check(lambda: HOW[how](scattered(axis, tiled), x),
               lambda: HOW[how](scattered(axis % NDIM, tiled), x))

  @parameterized.product(axis=[-4, 3], tiled=[True, False],
                         name=['split', 'concat', 'scatter'])
  def test_range(self, axis, tiled, name):
    f = {'split': exchanged(axis, 0, tiled),
         'concat': exchanged(0, axis, tiled),
         'scatter': scattered(axis, tiled)}[name]
    try:
      HOW['jit'](f, operand(tiled))
      said = ''
    except Exception as e:  # as above
      said = str(e)
    self.assertTrue(
        f'axis {axis} is out of bounds for array of dimension 3' in said,
        "axes aren't counted from the end: no range")

  def test_trees(self):
    x = {'a': operand(True), 'b': operand(True)[..., 0]}
    for k, v in x.items():
      self.check(
          lambda k=k: jax.jit(over_two(exchanged(-1, 0, True)))(x)[k],
          lambda v=v: jax.jit(over_two(exchanged(v.ndim - 1, 0, True)))(v))


if __name__ == '__main__':
  absltest.main(testLoader=jtu.JaxTestLoader())
