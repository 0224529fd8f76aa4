# SPDX-License-Identifier: Apache-2.0
"""The one exception that the tool raises for a user to read."""

from __future__ import annotations


class MendError(Exception):
  """An error for the user: what went wrong, and the exact next step.

  Args:
    what: one or more sentences: where, what was wanted, what was found.
    next_step: the command to run or the thing to change; printed last.
  """

  def __init__(self, what: str, next_step: str):
    super().__init__(what)
    self.what = what
    self.next_step = next_step

  def __str__(self) -> str:
    return f"{self.what}\nNext: {self.next_step}"
