"""An edit as a patch spells it: its operation, place and code."""

from __future__ import annotations

import dataclasses
from typing import Any

MAX_LINES = 5  # of code: the rest belongs into a module

# The keys that an operation needs beside file (one of, where nested).
NEEDS: dict[str, tuple[Any, ...]] = {
    "add_import": ("code",), "append": ("code",),
    "insert": ("code", ("before", "after", "at")),
    "replace_body": ("in", "code", "takes"), "replace_docstring": ("in", "doc"),
    "replace_call": ("code", "call"), "wrap_call": ("code", "call"),
    "replace_value": ("code", "value"), "add_argument": ("code", "call"),
    "add_parameter": ("in", "code"), "add_member": ("in", "code"),
    "decorate": ("in", "code"), "add_text": ("code", "after"),
}


@dataclasses.dataclass(frozen=True)
class Edit:
  """One `[[edit]]` table of a patch; see docs/patches.md."""
  patch: str
  number: int
  file: str
  op: str
  code: str = ""
  doc: str = ""
  scope: str = ""
  n: int | None = None
  bases: str = ""
  takes: tuple[str, ...] | None = None
  before: str = ""
  after: str = ""
  at: str = ""
  call: str = ""
  value: str = ""
  optional: bool = False

  @property
  def label(self) -> str:
    where = f" in {self.scope}" if self.scope else ""
    return (f"patch {self.patch}, edit {self.number} "
            f"({self.op} {self.file}{where})")

  @property
  def python(self) -> bool:
    return self.op != "add_text"
