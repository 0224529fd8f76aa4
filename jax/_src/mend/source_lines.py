# SPDX-License-Identifier: Apache-2.0
"""Frames of the user's program that an equation was traced in."""
from __future__ import annotations

from collections.abc import Iterator
import inspect
import traceback

from jax._src import core
from jax._src import source_info_util

# Of a traceback since 0.7.0, of the source info that holds it before.
_OF_TRACEBACK = 'traceback' in inspect.signature(
    source_info_util.user_frames).parameters


def frames(eqn: core.JaxprEqn) -> Iterator[source_info_util.Frame]:
  """The user's frames around an equation, from the inside."""
  info = eqn.source_info
  yield from source_info_util.user_frames(
      info.traceback if _OF_TRACEBACK else info)


def running() -> str:
  """The user's line that is running, of a message; empty if there is none.

  Where JAX traces a function of its own, a value knows no lines outside of it.
  """
  for frame, line in traceback.walk_stack(None):
    code = frame.f_code
    if source_info_util.is_user_filename(code.co_filename):
      return f'{code.co_filename}:{line} ({code.co_name})'
  return ''


# Wrappers around what is called.
_WRAPPERS = frozenset(['reraise_with_filtered_traceback', 'wrapper', 'wrapped',
                       'cache_miss', 'retracing', '__call__'])


def called(eqn: core.JaxprEqn) -> str:
  """The function of JAX that the user's innermost frame calls, by its name.

  It is read from the traceback that the equation keeps: that of a derivative's
  equation is its primal's. Empty if no user's frame is known.
  """
  inside: list[str] = []
  for frame in getattr(eqn.source_info.traceback, 'frames', ()):
    if source_info_util.is_user_filename(frame.file_name):
      return next(filter(None, reversed(inside)), '')
    name = frame.function_name.rpartition('.')[2]
    inside.append('' if name in _WRAPPERS else name)
  return ''


def transposed(eqn: core.JaxprEqn) -> bool:
  """True if an equation's name stack says that it is of a backward pass."""
  return any(isinstance(s, source_info_util.Transform) and
             s.name == 'transpose' for s in eqn.source_info.name_stack.stack)
