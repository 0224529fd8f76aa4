# SPDX-License-Identifier: Apache-2.0
"""Commits arrays that already lie as a constraint says, up to 0.7.1.

Outside of ``jit``, ``with_sharding_constraint`` returns an array that lies as
the constraint says. If the array is uncommitted, the next operation may move it
nevertheless. Here it is committed first, without a copy: as an array that the
constraint moves, and as from 0.7.2 on.

Cost: one comparison of an array that is committed already.
"""
from __future__ import annotations

from typing import Any

from jax._src import basearray
from jax._src.sharding import Sharding


def if_equivalent(x: Any, sharding: Sharding) -> Any:
  """Commits an uncommitted array to its own place, if that is wanted.

  Args:
    x: an array, or another value.
    sharding: what it is constrained to.

  Returns:
    The committed array; `x` itself if it is none, committed, or elsewhere.
  """
  if (not isinstance(x, basearray.Array) or x.committed or
      not x.sharding.is_equivalent_to(sharding, x.ndim)):
    return x
  from jax._src import api  # not on top: api imports what imports this module
  return api.device_put(x, x.sharding)
