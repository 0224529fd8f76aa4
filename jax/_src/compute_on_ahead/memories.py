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
"""Operands in host memory and in device memory, differentiated.

From JAX 0.10 on an array's type says its memory, and each operation wants one
memory for all operands; `jax.device_put` to a `jax.memory.Space` moves one. A
state on the host is updated with gradients from the device that way, and the
derivatives must make the same moves backwards:

* the cotangent of what was moved goes back to where that came from;
* what a function under `compute_on` keeps for its derivative stays in the
  memory that its type says, and a cotangent comes to where its result was,
  before `out_memory_spaces` moved that.

Cost: where all is in one memory, none: the same program.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax._src import core
from jax._src import dispatch
from jax._src.interpreters import ad


def _space(aval: Any) -> Any:
  return getattr(aval, 'memory_space', core.MemorySpace.Device)


def _differ(a: Any, b: Any) -> bool:
  return {a, b} == {core.MemorySpace.Host, core.MemorySpace.Device}


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
  kept = [core.MemorySpace.Host if _space(a) == core.MemorySpace.Host else
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
  return [
      ct if isinstance(ct, ad.Zero) or not _differ(
          _space(core.typeof(ct)), _space(aval)) else _moved(ct, _space(aval))
      for ct, aval in zip(cotangents, jaxpr.out_avals)]


def _moved(x: Any, space: Any) -> Any:
  y, = dispatch.device_put_p.bind(
      x, devices=(space,), srcs=(None,),
      copy_semantics=(dispatch.ArrayCopySemantics.ALWAYS_COPY,))
  return y


def mixed_operands(message: str) -> ValueError:
  """Returns the error for operands in several memories, with what to write."""
  return ValueError(
      f'{message}. Move one of them: jax.device_put(x, jax.memory.Space.Device)'
      ' brings what is on the <host> to the device; jax.device_put(y, '
      'jax.memory.Space.Host) takes the other there, an array of indices too, '
      'for a computation under compute_on.')
