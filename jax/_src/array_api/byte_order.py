# SPDX-License-Identifier: Apache-2.0
"""Byte orders of NumPy arrays that a callback gives.

JAX refuses a NumPy array whose bytes are in another order than the machine's
("Dtype >f4 is not a valid JAX array type"), but the runtime looks at a dtype's
kind and size alone. Up to JAX 0.10.1 `jax.make_array_from_callback` hands it
what the callback returns unchecked, and the array has other numbers: 4.6e-41
for 1. It is refused here, as elsewhere.

Limits: a call of a jitted or a compiled function, `jax.numpy`'s own included,
that follows one with native NumPy arrays of the same shapes never reaches
Python. There the order stays unseen.

Cost: two attributes of each array that the callback returns.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jax._src.mend import pages


def check(function: str, arrays: Sequence[Any]) -> None:
  """Refuses NumPy arrays whose byte order isn't the machine's.

  Args:
    function: the name of the public function.
    arrays: what its callback returned, for each device.

  Raises:
    TypeError: one of them has the bytes of its elements in another order.
  """
  for x in arrays:
    dtype = getattr(x, 'dtype', None)  # some releases have wrapped the array
    if isinstance(dtype, np.dtype) and not dtype.isnative:
      raise TypeError(
          f'{function}: expected arrays in the byte order of this machine, got'
          f' one with dtype {dtype.str}. Convert it, by'
          ' x.astype(x.dtype.newbyteorder("=")).' +
          pages.see('array_api.md#numpy-arrays-in-another-byte-order'))
