# SPDX-License-Identifier: Apache-2.0
"""Errors about Python callbacks that can't be lowered."""

from __future__ import annotations

from jax._src.mend import pages


def several_platforms(message: str) -> Exception:
  """The error for a callback that is lowered for several platforms at once.

  Args:
    message: the base's.
  """
  return NotImplementedError(
      f'{message}: jax.debug.print, jax.debug.callback, jax.pure_callback and '
      'io_callback expected a program that is lowered for one platform, got '
      'one for several. Lower or export it once for each platform, or without '
      'the callback.' +
      pages.see('compute_on_ahead.md#see-where-an-operation-is'))
