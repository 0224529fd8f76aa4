# SPDX-License-Identifier: Apache-2.0
"""Operations on single elements, whose results need no comparison.

The oracle: of an operation on single elements, or that moves them, an element
of a result depends on the same one of each operand, or on none, whatever the
operands' values. A slice by an index and a maximum are none: which element it
is depends on the values.
"""
import unittest

import jax
from jax import lax
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
# On single elements, but compared.
RANDOM = {  # as the implementation of a key makes it
    'random_bits', 'random_fold_in', 'random_gamma', 'random_gamma_grad',
    'random_seed', 'random_split', 'rng_uniform', 'threefry2x32'}
LOOPS = {  # which end for all elements at once
    'igamma', 'igamma_grad_a', 'igammac', 'regularized_incomplete_beta'}
INVALID = {'cholesky'}  # nan, at these points
NOT_RUN = {'ffi_call', 'platform_index'}


def some(rng, aval, point=None):
  """An operand of the type: small numbers, which are valid indices, too.

  All its elements are equal at the first two points.
  """
  if point in (0, 1) and not jax.dtypes.issubdtype(
      aval.dtype, jax.dtypes.prng_key):
    return np.full(aval.shape, point, aval.dtype)
  if jax.dtypes.issubdtype(aval.dtype, jax.dtypes.prng_key):
    data = rng.integers(0, 9, (*aval.shape, 2)).astype(np.uint32)
    return jax.random.wrap_key_data(data)
  if aval.dtype == bool:
    return rng.random(aval.shape) < .5
  if jax.dtypes.issubdtype(aval.dtype, np.integer):
    return rng.integers(0, 4, aval.shape).astype(aval.dtype)
  return rng.uniform(-1, 3, aval.shape).astype(aval.dtype)


def bits(x):
  if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
    x = jax.random.key_data(x)
  x = np.asarray(x)
  return x.view(f'u{x.dtype.itemsize}') if x.dtype.kind == 'f' else x


def works_on_single_elements(eqn):
  """True if each element of a result is made of one of each operand."""
  rng = np.random.default_rng(0)
  made_of = [{} for _ in eqn.invars]
  f = jax.jit(lambda stacks: lax.map(lambda xs: bind(eqn, xs), stacks))
  for point in range(POINTS):
    xs = [some(rng, v.aval, point) for v in eqn.invars]
    for n, x in enumerate(xs):
      other = some(rng, eqn.invars[n].aval)
      # The operands as they are, and with one element of one replaced.
      stacks = [jnp.stack([y] * (x.size + 1)) for y in xs]
      for number, i in enumerate(np.ndindex(x.shape)):
        stacks[n] = stacks[n].at[(number + 1, *i)].set(other[i])
      for m, y in enumerate(map(bits, f(stacks))):
        for number, *at in np.argwhere(y[1:] != y[:1]).tolist():
          if made_of[n].setdefault((m, *at), number) != number:
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
      if is_of_arrays(eqn) and primitive.name not in NOT_RUN:
        (single if works_on_single_elements(eqn) else others).add(
            primitive.name)
    self.assertGreater(len(others), 30)
    self.assertEmpty(others & bodies._ELEMENTWISE)
    self.assertEqual(single - RANDOM - LOOPS - INVALID,
                     bodies._ELEMENTWISE & (single | others))

  @unittest.skipIf(jax.__version_info__ < (0, 12), 'has not all of these')
  def test_each_of_the_table_has_an_example(self):
    known = {p.name for p in examples()}
    self.assertEmpty(bodies._ELEMENTWISE - known)
