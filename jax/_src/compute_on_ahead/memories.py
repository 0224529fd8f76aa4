# SPDX-License-Identifier: Apache-2.0
"""Operands in host memory and in device memory, differentiated.

From JAX 0.10 on an array's type says its memory, and each operation wants one
memory for all operands; `jax.device_put` to a `jax.memory.Space` moves one. A
state on the host is updated with gradients from the device that way, and the
derivatives must make the same moves backwards:

* the cotangent of what was moved goes back to where that came from;
* what a function under `compute_on` keeps for its derivative stays in the
  memory that its type says, and a cotangent comes to where its result was,
  before `out_memory_spaces` moved that;
* what JAX makes for them, the one of a loss, the rows of an identity matrix
  and the zeros around what was indexed, is made where these are, and each
  cotangent is accumulated in the memory of its type.

Cost: where all is in one memory, none: the same program.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax._src import core
from jax._src.compute_on_ahead import transfers
from jax._src.interpreters import ad

HOST = core.MemorySpace.Host


def _space(aval: Any) -> Any:
  return getattr(aval, 'memory_space', core.MemorySpace.Device)


def _differ(a: Any, b: Any) -> bool:
  return {a, b} == {HOST, core.MemorySpace.Device}


def back(places: Sequence[Any], operands: Sequence[Any],
         cotangents: Sequence[Any]) -> tuple[Any, ...]:
  """Returns where `device_put`'s transpose puts each cotangent.

  Args:
    places: where JAX puts it, or None.
    operands: the linear operands.
    cotangents: their results' cotangents.

  Returns:
    The places; the operand's memory where there was none and the cotangent is
    in another.
  """
  return tuple(
      _space(x.aval) if p is None and _differ(
          _space(x.aval), _space(core.typeof(ct))) else p
      for p, x, ct in zip(places, operands, cotangents))


def with_residuals(spaces: Sequence[Any], jaxpr: Any,
                   count: int | None = None) -> tuple[Any, ...]:
  """Returns the memories of a function's results and of what it keeps.

  Args:
    spaces: those of its results.
    jaxpr: the function, which returns what it keeps after them.
    count: how many it keeps, where that is known.

  Returns:
    All of them.
  """
  kept = [HOST if _space(a) == HOST else
          core.MemorySpace.Device for a in jaxpr.out_avals[len(spaces):]]
  assert count is None or count == len(kept), (count, len(kept))
  return (*spaces, *kept)


def placed(avals: Sequence[Any], spaces: Sequence[Any]) -> list[Any]:
  """Returns types of results as they are outside, in these memories."""
  return [a.update(memory_space=s) if _differ(_space(a), s) else a
          for a, s in zip(avals, spaces)]


def as_computed(cotangents: Sequence[Any], jaxpr: Any) -> list[Any]:
  """Moves cotangents to where the results were computed.

  Args:
    cotangents: of the results of a `compute_on`.
    jaxpr: what it runs.

  Returns:
    The cotangents, with the memories of the jaxpr's results.
  """
  return [cotangent(aval, ct) for ct, aval in zip(cotangents, jaxpr.out_avals)]


def like(x: Any, other: Any) -> Any:
  """Moves a new value to the host if `other` lies there.

  Args:
    x: an array or a scalar, on the device.
    other: a value, or the operand of a transpose.

  Returns:
    `x`, in the memory of `other`.
  """
  aval = getattr(other, 'aval', None)  # an undefined primal's
  there = _space(core.typeof(other) if aval is None else aval)
  if there != HOST or _space(core.typeof(x)) == HOST:
    return x
  return transfers.put(x, there)


def cotangent(aval: Any, ct: Any) -> Any:
  """Returns a cotangent in the memory of its type.

  Scalars go with arrays in any memory, and what is computed of them alone is on
  the device: cotangents of such a result come back from there.

  Args:
    aval: the type of what is accumulated.
    ct: a cotangent to add to it.
  """
  if isinstance(ct, ad.Zero) or not _differ(
      _space(aval), _space(core.typeof(ct))):
    return ct
  return transfers.put(ct, _space(aval))
