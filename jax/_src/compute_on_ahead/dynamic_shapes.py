# SPDX-License-Identifier: Apache-2.0
"""The shape of a value whose size is symbolic, for a custom call's result.

Before a module with symbolic sizes is compiled, its shapes are worked out from
those of the arguments. For the result of a custom call that takes the shape
along as an operand. The call that puts a value into a memory space had none, so
that a function under `compute_on` exported with a symbolic size failed when it
was called.
"""

from __future__ import annotations

from typing import Any

from jax._src.lib.mlir import ir
from jax._src.lib.mlir.dialects import hlo


def result_shapes(value: Any) -> list[Any] | None:
  """The ``result_shapes`` of a custom call whose result is like `value`.

  Args:
    value: an IR value.

  Returns:
    A list with the shape, a vector of integers, or None if it is static.
  """
  shaped = ir.RankedTensorType(value.type)
  if shaped.has_static_shape:
    return None
  size_type = ir.IntegerType.get_signless(32)
  one = ir.RankedTensorType.get([1], size_type)
  sizes = [hlo.reshape(one, hlo.get_dimension_size(value, i))
           for i in range(shaped.rank)]
  if len(sizes) == 1:
    return sizes
  return [hlo.concatenate(sizes, ir.IntegerAttr.get(
      ir.IntegerType.get_signless(64), 0))]
