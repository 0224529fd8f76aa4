# Copyright 2026 The Mend Authors.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     https://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""Floor division, remainder and sign at zeros and infinities (jax#27606).

The standard and NumPy agree that a remainder of zero has the sign of the
divisor, and a quotient of zero that of the exact quotient. What is computed has
the sign of the dividend, or of a difference of equals; and the sign of -0 is
+0, which was -0. What is divided by zero is an infinity, which it is
in JAX since 0.10 only. The standard alone says that infinity divided by a
finite number is an infinity; NumPy has a nan there, and so had JAX.

What is changed are these values, and nothing else: derivatives are those that
were, which at a remainder of zero are not those of a constant. So a zero gets
its sign by sums and products that are exact for zeros, ``s * (s * r + 1 - 1)``
with ``s`` the sign of the divisor, whose derivative is that of ``r``.

NumPy and Python have -1 for -1 // inf, where the standard has -0. That stays:
it is a number that programs compute with, and divmod's identity holds for it.

Cost: a few operations on each element, fused with the division.
"""
from __future__ import annotations

from typing import Any

from jax._src import dtypes
from jax._src.lax import lax

import numpy as np


def with_sign_of_divisor(mod: Any, divisor: Any) -> Any:
  """Gives zeros among remainders the sign of the divisor.

  Args:
    mod: remainders, of the divisor's sign or zero.
    divisor: an array of the same shape and dtype.

  Returns:
    The same values and derivatives as `mod`; where it is zero, a zero of the
    sign of `divisor`. Integers as they are.
  """
  if not dtypes.issubdtype(mod.dtype, np.floating):
    return mod
  sign = lax.sign(divisor)
  one = lax.mul(sign, sign)  # no constant, which a compiler could cancel
  zero = lax.mul(sign, lax.sub(lax.add(lax.mul(sign, mod), one), one))
  return lax.select(lax.eq(mod, lax._zeros(mod)), zero, mod)


def without_negative_zero(sign: Any) -> Any:
  """Makes the sign of a zero, of either sign, +0; of a complex one, 0+0j.

  Args:
    sign: what `lax.sign` gave.

  Returns:
    The same, with +0 for -0.
  """
  if not dtypes.issubdtype(sign.dtype, np.inexact):
    return sign
  zero = lax._zeros(sign)
  return lax.select(lax.eq(sign, zero), zero, sign)


def quotient_and_remainder(pair: tuple[Any, Any], dividend: Any,
                           divisor: Any) -> tuple[Any, Any]:
  """Corrects a quotient that is zero or nan, and the remainder.

  Args:
    pair: floor quotients and remainders, floating point.
    dividend: the array that was divided.
    divisor: the array that it was divided by.

  Returns:
    The quotients, where they are zero, with the sign of the exact quotient, and
    an infinity for one that is divided by a finite number and for what is
    divided by zero; the remainders as :func:`with_sign_of_divisor` has them.
  """
  quotient, mod = pair
  exact = lax.div(dividend, divisor)
  # Neither sign nor round has a derivative, and nor has a floor quotient.
  zero = lax.mul(lax.sign(exact), lax._zeros(quotient))
  quotient = lax.select(lax.eq(quotient, lax._zeros(quotient)), zero, quotient)
  # An infinity divided by a number, or what is divided by zero: if both, or a
  # nan, there is no infinity in the exact quotient either.
  infinite = lax.bitwise_and(
      lax.eq(lax.abs(exact), lax.full_like(exact, np.inf)),
      lax.bitwise_or(
          lax.eq(lax.abs(dividend), lax.full_like(dividend, np.inf)),
          lax.eq(divisor, lax._zeros(divisor))))
  quotient = lax.select(infinite, lax.round(exact), quotient)
  return quotient, with_sign_of_divisor(mod, divisor)
