# SPDX-License-Identifier: Apache-2.0
"""Pairs of a shard_map's arguments and the cotangents of its transpose.

The transpose evaluates the part of the body that needs no cotangent first, and
transposes the rest: a function of what the first part hands over, then of the
linear arguments. Up to 0.5.2 its cotangents are paired with the arguments by
position, which is right as long as the first part hands over as many values as
the shard_map has arguments that are not linear. A ``custom_vjp`` among whose
results one is not asked for hands over fewer, and the gradient was refused.
0.5.3 drops the cotangents of what was handed over, as is done here.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax._src import core
from jax._src.interpreters import ad


def of_arguments(cotangents: Sequence[Any], handed_over: Sequence[Any],
                 arguments: Sequence[Any]) -> list:
  """Cotangents of a shard_map's arguments, in their order.

  Args:
    cotangents: of what the first part hands over, then of linear arguments.
    handed_over: the values that the first part hands over.
    arguments: of the shard_map; an ``UndefinedPrimal`` for each linear one.

  Returns:
    One for each argument: zero where it is not linear.
  """
  linear = iter(cotangents[len(handed_over):])
  return [next(linear) if ad.is_undefined_primal(x) else
          ad.Zero(core.get_aval(x).to_tangent_aval()) for x in arguments]
