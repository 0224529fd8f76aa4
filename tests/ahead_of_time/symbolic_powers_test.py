# SPDX-License-Identifier: Apache-2.0
"""Large powers of symbolic sizes (jax#38020)."""

import functools
import operator
from unittest import mock

from absl.testing import parameterized
import jax
from jax import export
from jax._src import test_util as jtu
from jax._src.export import shape_poly
import numpy as np
from testing.red import red

jax.config.parse_flags_with_absl()

ONE_TERM = ['a', '2*a', 'a*b', '-a', 'floordiv(a, 2)', '3*a^2*b']
SUMS = ['a + 1', 'a - b', 'a + b + 2*a*b', 'max(a, 2) - 1']


class SymbolicPowersTest(jtu.JaxTestCase):

  @red('^AssertionError: [0-9]+ not less than 30')
  @parameterized.parameters(*ONE_TERM)
  def test_few_multiplications(self, text):
    size, = export.symbolic_shape(f'{text} + 0*b')
    count = 0
    multiply = shape_poly._DimExpr.__mul__

    def counted(self, other):
      nonlocal count
      count += 1
      return multiply(self, other)

    with mock.patch.object(shape_poly._DimExpr, '__mul__', counted):
      _ = size ** 3000
    self.assertLess(count, 30)

  @parameterized.parameters(*ONE_TERM, *SUMS)
  def test_equals_the_product(self, text):
    size, = export.symbolic_shape(f'{text} + 0*b')
    for exponent in [*range(9), 12, 17]:
      expected = functools.reduce(operator.mul, [size] * exponent, 1)
      self.assertEqual(size ** exponent, expected)
      self.assertEqual(str(size ** exponent), str(expected))

  def test_evaluates(self):
    size, = export.symbolic_shape('a^3 + a^2')
    exp = export.export(jax.jit(lambda x: x.shape[0] ** 3 + x.shape[0] ** 2))(
        jax.ShapeDtypeStruct(export.symbolic_shape('a'), np.float32))
    self.assertEqual(exp.call(np.ones(4, np.float32)), 80)
    self.assertEqual(str(size), 'a^3 + a^2')

  def test_refused(self):
    size, = export.symbolic_shape('a')
    with self.assertRaisesRegex(ValueError, 'negative powers'):
      size ** -1
    with self.assertRaisesRegex(ValueError, 'non-integer powers'):
      size ** 1.5
