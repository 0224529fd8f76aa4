# SPDX-License-Identifier: Apache-2.0
"""Operations on single elements, whose results need no comparison.

The oracle: of an operation on single elements, or that moves them, an element
of a result depends on the same one of each operand, or on none, whatever the
operands' values. A slice by an index and a maximum are none: which element it
is depends on the values.
"""
import unittest

import jax
from jax._src import core
from jax._src import test_util as jtu
from jax._src.sanitizer import bodies
import jax.numpy as jnp
import numpy as np
from testing.primitives import bind, examples
from testing.sharding import eight_devices

jax.config.parse_flags_with_absl()
eight_devices()

POINTS = 8  # at which an operation is looked at
NOT_LOOKED_AT = {
    # On single elements, and compared: a key's implementation makes them.
    'random_bits', 'random_fold_in', 'random_gamma', 'random_gamma_grad',
    'random_seed', 'random_split', 'rng_uniform', 'threefry2x32',
    # Loops that end for all elements at once.
    'igamma', 'igamma_grad_a', 'igammac', 'regularized_incomplete_beta',
    # They don't run alone, have no operand, or no value at these points.
    'cholesky', 'cholesky_update', 'ffi_call', 'platform_index'}


def is_key(aval):
  return jax.dtypes.issubdtype(aval.dtype, jax.dtypes.prng_key)


def some(rng, aval, point=None):
  """An operand's data: small numbers, which are valid indices, too.

  All its elements are equal at the first two points.
  """
  if is_key(aval):
    return rng.integers(0, 9, (*aval.shape, 2)).astype(np.uint32)
  if point in (0, 1):
    return np.full(aval.shape, point, aval.dtype)
  if aval.dtype == bool:
    return rng.random(aval.shape) < .5
  if jax.dtypes.issubdtype(aval.dtype, np.integer):
    return rng.integers(0, 4, aval.shape).astype(aval.dtype)
  return rng.uniform(-1, 3, aval.shape).astype(aval.dtype)


def bits(x):
  x = np.asarray(jax.random.key_data(x) if is_key(x) else x)
  return x.view(f'u{x.dtype.itemsize}') if x.dtype.kind == 'f' else x


def works_on_single_elements(eqn):
  """True if each element of a result is made of one of each operand."""
  rng = np.random.default_rng(0)
  avals = [v.aval for v in eqn.invars]
  changes = [(n, i) for n, a in enumerate(avals) for i in np.ndindex(a.shape)]
  made_of = [{} for _ in avals]
  f = jax.vmap(lambda *xs: bind(eqn, xs))
  for point in range(POINTS if changes else 0):
    # The operands as they are, and with one element of one replaced.
    stacks = [np.stack([some(rng, a, point)] * (len(changes) + 1))
              for a in avals]
    others = [some(rng, a) for a in avals]
    for row, (n, i) in enumerate(changes, 1):
      stacks[n][(row, *i)] = others[n][i]
    ys = f(*[jax.random.wrap_key_data(x) if is_key(a) else jnp.asarray(x)
             for a, x in zip(avals, stacks)])
    for m, y in enumerate(map(bits, ys)):
      for row, *at in np.argwhere(y[1:] != y[:1]).tolist():
        n, i = changes[row]
        if made_of[n].setdefault((m, *at), i) != i:
          return False
  return True


def is_of_arrays(eqn):
  """True of an equation on arrays, which holds no jaxpr and has no effect."""
  return not eqn.effects and not any(core.jaxprs_in_params(eqn.params)) and (
      all(isinstance(v.aval, core.ShapedArray)
          for v in (*eqn.invars, *eqn.outvars)))


class SingleElementsTest(jtu.JaxTestCase):

  def test_table(self):
    single, others = set(), set()
    for primitive, (eqn, *_) in examples().items():
      if is_of_arrays(eqn) and primitive.name not in NOT_LOOKED_AT:
        (single if works_on_single_elements(eqn) else others).add(
            primitive.name)
    self.assertGreater(len(others), 30)
    self.assertEmpty(others & bodies._ELEMENTWISE)
    self.assertEmpty(NOT_LOOKED_AT & bodies._ELEMENTWISE)
    self.assertEmpty(single - bodies._ELEMENTWISE)

  @unittest.skipIf(jax.__version_info__ < (0, 12), 'has not all of these')
  def test_each_of_the_table_has_an_example(self):
    known = {p.name for p in examples()}
    self.assertEmpty(bodies._ELEMENTWISE - known)
