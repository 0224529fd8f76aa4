# SPDX-License-Identifier: Apache-2.0
"""The memories of an exported function's results (jax#33649).

A type says in which memory a value is. Tracing gives a result the memory that
the function puts it in; where ``out_shardings`` name another, a sharding over
a mesh changes the type, and one of a single device didn't. So what was exported
had its result in two memories: a call went by the type, and what was read back
from bytes by the sharding. The sharding says where the program leaves it.

Cost: one look at each result when a function is exported.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax._src import core


def of_results(avals: Sequence[Any], shardings: Sequence[Any]) -> list[Any]:
  """Returns the types of results, in the memories of their shardings.

  Args:
    avals: the types.
    shardings: for each its sharding, or None if nobody asked for one.
  """
  return [_in_memory(aval, s) for aval, s in zip(avals, shardings)]


def _in_memory(aval: Any, sharding: Any) -> Any:
  kind = getattr(sharding, 'memory_kind', None)
  if kind is None or not isinstance(aval, core.ShapedArray):
    return aval
  space = core.mem_kind_to_space(kind)
  if aval.memory_space == space:
    return aval
  return aval.update(memory_space=space)
