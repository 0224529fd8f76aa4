# SPDX-License-Identifier: Apache-2.0
"""The error for operands in two memories (jax#34041).

The rule that refuses them knows types only. Where the operation was staged, and
where a function of jax.numpy was called, the error comes by, and is told which
operands these were, and what they are called there. The last one that names
them is the nearest to the user's program.
"""

from __future__ import annotations

from collections.abc import Sequence
import sys
from typing import Any

from jax._src import core
from jax._src.interpreters import partial_eval as pe
from jax._src.mend import pages

_SPACES = {core.MemorySpace.Host: 'jax.memory.Space.Host',
           core.MemorySpace.Device: 'jax.memory.Space.Device'}


def refused(message: str) -> ValueError:
  """Returns the error for operands in several memories, with what to write.

  Args:
    message: what JAX says: the operation, and two types.
  """
  error: Any = ValueError(
      f'{message}. Move one of them: jax.device_put(x, jax.memory.Space.Device)'
      ' brings what is on the <host> to the device; jax.device_put(y, '
      'jax.memory.Space.Host) takes the other to the host, for a computation '
      'under compute_on.' +
      pages.see('compute_on_ahead.md#host-and-device-memory-together'))
  error._mend_mixed_memories = message
  return error


def current() -> ValueError | None:
  """Returns the exception that is handled, if it is about two memories."""
  error: Any = sys.exc_info()[1]
  return error if hasattr(error, '_mend_mixed_memories') else None


def name_operands(error: Any, operands: Sequence[Any]) -> None:
  """Puts the operands and their memories into an error.

  Args:
    error: one that is about two memories.
    operands: the operation's.
  """
  found: dict[Any, tuple[int, Any]] = {}
  for i, x in enumerate(operands):
    aval = core.typeof(x)
    space = getattr(aval, 'memory_space', None)
    if getattr(aval, 'ndim', 0) and space in _SPACES:
      found.setdefault(space, (i, x))
  if len(found) != 2:
    return
  said = [f'operand {i}, {_described(x)}, is in {_SPACES[s]}'
          for s, (i, x) in found.items()]
  host, device = (
      _name(found[s][1]) or f'<operand {found[s][0]}>'
      for s in (core.MemorySpace.Host, core.MemorySpace.Device))
  error.args = (
      f'{error._mend_mixed_memories}: {" and ".join(said)}. Move one of them: '
      f'jax.device_put({host}, jax.memory.Space.Device), to compute on the '
      f'device, or jax.device_put({device}, jax.memory.Space.Host), to compute '
      'on the host, under compute_on.' +
      pages.see('compute_on_ahead.md#host-and-device-memory-together'),)


def concrete(x: Any) -> Any:
  """Returns the array that a tracer of a transformation holds, or None."""
  while isinstance(x, core.Tracer):
    if isinstance(x, pe.DynamicJaxprTracer):
      return None
    x = getattr(x, 'primal', getattr(x, 'val', None))
  return x


def _staged(x: Any) -> Any:
  """Returns the tracer of `jit` that is within tracers of transformations."""
  while isinstance(x, core.Tracer) and not isinstance(x, pe.DynamicJaxprTracer):
    x = getattr(x, 'primal', getattr(x, 'val', None))
  return x


def _argument(x: Any) -> tuple[str, str] | None:
  """Returns the name of an argument, and the function that it is of."""
  frame = x._trace.frame
  names = getattr(frame.debug_info, 'arg_names', None)
  if x.parent is not None or not names or len(names) != len(frame.invars):
    return None
  position = next((i for i, v in enumerate(frame.invars)
                   if getattr(v, 'val', v) is x.val), None)
  if position is None or not names[position]:
    return None
  return names[position], frame.debug_info.func_name


def _name(x: Any) -> str | None:
  x = _staged(x)
  if isinstance(x, pe.DynamicJaxprTracer) and (found := _argument(x)):
    return found[0]
  return None


def _described(x: Any) -> str:
  """Returns what an operand is: an argument, a result, a constant; its type."""
  kind = core.typeof(x).str_short()
  x = _staged(x)
  if not isinstance(x, pe.DynamicJaxprTracer):
    return f'an array {kind}'
  if found := _argument(x):
    return f'the argument {found[0]} {kind} of {found[1]}'
  if x.parent is not None:
    return f'the result {kind} of `{x.parent.primitive.name}`'
  return f'{"a constant" if x.get_referent() is not x else "a value"} {kind}'
