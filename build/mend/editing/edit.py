"""An edit: its operation, its place and its code.

One `[[edit]]` table of a patch is one idea and can be several edits: `in` can
be a list of definitions, and `file` one of files, of which the first that has
the definition is edited. Its code names modules of ours as FAMILY_MODULE; what
it has to import for that follows from the names.
"""

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
    "decorate": ("in", "code"), "around": ("in", "code"),
    "add_text": ("code", "after"),
}


@dataclasses.dataclass(frozen=True)
class Edit:
  """One definition's edit; see docs/patches.md.

  Attributes:
    patch: the id of the patch.
    number: of the `[[edit]]` table within the patch, from 1.
    file: the one that is edited: of `files`, the first, until `placing` has
      looked at a release.
    files: all that are named, in order.
    imports: the statements that bind the names of our modules in `code`.
  """
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
  files: tuple[str, ...] = ()
  imports: tuple[str, ...] = ()

  @property
  def selector(self) -> str:
    """What of the definition the edit is at, or ""."""
    return self.before or self.after or self.call or self.value

  @property
  def needs_signature(self) -> bool:
    """Whether the edit relies on a definition's signature, not its body."""
    return self.op in ("around", "decorate", "add_parameter") or (
        self.op == "insert" and self.at == "start")

  @property
  def label(self) -> str:
    where = f" in {self.scope}" if self.scope else ""
    return (f"patch {self.patch}, edit {self.number} "
            f"({self.op} {self.file}{where})")

  @property
  def python(self) -> bool:
    return self.op != "add_text"
