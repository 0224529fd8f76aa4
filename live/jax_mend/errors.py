# SPDX-License-Identifier: Apache-2.0
"""The errors that a user reads."""

from __future__ import annotations


class Refused(Exception):
  """A command that can't do what it was asked: why, and the next step."""

  def __init__(self, what: str, next_step: str):
    super().__init__(f"{what}\nNext: {next_step}")


class NotApplied(ImportError):
  """jax is not mended: why, and the exact next step.

  Args:
    what: one or more sentences: where, what was wanted, what was found.
    next_step: the command to run or the thing to change; printed last.
  """

  def __init__(self, what: str, next_step: str):
    super().__init__(f"{what} Nothing was applied.\nNext: {next_step}")
    self.what = what
    self.next_step = next_step

  def __reduce__(self) -> tuple[type[ImportError], tuple[str]]:
    # A worker sends it to who waits for its result. It can't name a class of
    # jax_mend then: where nothing was applied, importing that fails anew.
    return ImportError, (str(self),)
