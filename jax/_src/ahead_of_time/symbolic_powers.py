# SPDX-License-Identifier: Apache-2.0
"""Powers of symbolic sizes (jax#38020).

JAX multiplies a size by itself as often as the exponent says: "a^600000", which
may come out of a file, takes seconds and a list of as many entries. A size of
one term, such as a, 2*a*b or floordiv(a, 2), is squared here instead. What is
written as text has no other powers. Those of a sum grow with the exponent, so
squaring saves nothing there: they are multiplied out as before.

Limits: powers of plain numbers are Python's.

Cost: two multiplications for each bit of the exponent.
"""
from __future__ import annotations

import functools
import operator
from typing import Any


def power(size: Any, exponent: int) -> Any:
  """Returns a symbolic size raised to a power.

  Args:
    size: a symbolic dimension.
    exponent: a number, at least 0.
  """
  exponent = int(exponent)
  if len(size._sorted_terms) == 1:
    return _squared(size, exponent)
  return functools.reduce(operator.mul, [size] * exponent, 1)


def _squared(size: Any, exponent: int) -> Any:
  result = 1
  while exponent:
    if exponent & 1:
      result = result * size
    exponent >>= 1
    if exponent:
      size = size * size
  return result
