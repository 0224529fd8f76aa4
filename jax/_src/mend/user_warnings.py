# SPDX-License-Identifier: Apache-2.0
"""Warnings about the user's program, attributed to the user's own line.

A warning belongs to the innermost frame that is the user's, as JAX tells users'
files from its own, so that a filter by module, pytest's summary and the rule of
one warning a line see the program and not JAX. Each kind has a category, public
in ``jax.errors``, by which ``warnings.filterwarnings`` or Python's ``-W`` makes
it an error or ignores it.

Limits: where the user's frame has returned, as in a backward pass that runs
later, it is the frame that runs it.
"""
from __future__ import annotations

import sys
from types import FrameType
import warnings

from jax._src import source_info_util


class SummedGradientWarning(UserWarning):
  """A gradient that JAX has summed over devices is summed by the program, too.

  See docs/varying.md, "Gradients that are summed twice".
  """
  __module__ = 'jax.errors'


class DivergentLoopWarning(UserWarning):
  """A loop's carry varies for no other reason than the loop's predicate.

  A derivative by it is each device's own, not their sum.
  """
  __module__ = 'jax.errors'


class ReshardWarning(UserWarning):
  """An operand over Explicit mesh axes is resharded: ``explicit_reshard``."""
  __module__ = 'jax.errors'


def user_frame() -> FrameType | None:
  """The innermost frame of the user's, None if there is none."""
  frame: FrameType | None = sys._getframe()
  while frame and not source_info_util.is_user_filename(
      frame.f_code.co_filename):
    frame = frame.f_back
  return frame


def warn(text: str, category: type[Warning]) -> None:
  """Warns at the user's line.

  Args:
    text: the message.
    category: one of the classes above.
  """
  frame = user_frame()
  if frame is None:
    warnings.warn(text, category, stacklevel=2)
    return
  seen = frame.f_globals.setdefault('__warningregistry__', {})
  warnings.warn_explicit(
      text, category, frame.f_code.co_filename, frame.f_lineno,
      frame.f_globals.get('__name__'), seen)
