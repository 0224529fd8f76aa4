# SPDX-License-Identifier: Apache-2.0
"""An edit: its operation, its place and its code.

One `[[edit]]` table of a patch is one idea and can be several edits: `in` can
be a list of definitions, and `file` one of files, of which the first that has
the definition is edited. A value that releases spell otherwise is a table of
them. The code names modules of ours as FAMILY_MODULE; what it has to import for
that follows from the names.
"""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import textwrap
from typing import Any

from mend.editing import keys, syntax
from mend.editing.keys import Refuse

MAX_LINES = 5  # of code: the rest belongs into a module

_KEYS = ("file", "op", "code", "doc", "in", "n", "bases", "takes",
              "before", "after", "at", "call", "value", "optional")
_BY_RELEASE = ("in", "takes", "before", "after", "call", "value", "code")
# The keys that an operation needs beside file (one of, where nested).
NEEDS: dict[str, tuple[Any, ...]] = {
    "add_import": ("code",), "append": ("code",),
    "insert": ("code", ("before", "after", "at")),
    "replace_body": ("in", "code", "takes"), "replace_docstring": ("in", "doc"),
    "replace_call": ("code", "call"), "wrap_call": ("code", "call"),
    "replace_value": ("code", "value"), "add_argument": ("code", "call"),
    "add_parameter": ("in", "code"), "add_member": ("in", "code"),
    "decorate": ("in", "code"), "around": ("in", "code"),
    "add_text": ("code", "after"), "drop_import": ("value",),
}
# In an upstream edit alone: the fork's edits take nothing away.
UPSTREAM_NEEDS = {"replace_statement": ("code", "value")}


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
    sorted: whether it is for a commit, where imports are in order.
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
  named: str = "edit"  # or "upstream edit"
  sorted: bool = False

  @property
  def in_order(self) -> bool:
    """True if its imports stand in their alphabetical place."""
    return self.sorted or self.named != "edit"

  @property
  def selector(self) -> str:
    """The selector of the edit's place within the definition, or ""."""
    return self.before or self.after or self.call or self.value

  @property
  def needs_signature(self) -> bool:
    """True if the edit relies on a definition's signature, not its body."""
    return self.op in ("around", "decorate", "add_parameter") or (
        self.op == "insert" and self.at == "start")

  @property
  def label(self) -> str:
    where = f" in {self.scope}" if self.scope else ""
    return (f"patch {self.patch}, {self.named} {self.number} "
            f"({self.op} {self.file}{where})")

  @property
  def python(self) -> bool:
    return self.op != "add_text"


def listed(value: str | list[str]) -> list[str]:
  return value if isinstance(value, list) else [value]


def spelled(data: dict) -> list[str]:
  """All that a table's code is, on one release or another."""
  code = data.get("code", "")
  return list(code.values()) if isinstance(code, dict) else [code]


def read(patch: str, number: int, data: dict, refuse: Refuse,
         imports: Callable[[str], tuple[str, ...]], named: str = "edit",
         longest: int | None = MAX_LINES) -> list[Edit]:
  """The edits of one table: one for each definition that it names.

  Args:
    patch: the id of the patch.
    number: of the table, from 1.
    data: the table.
    refuse: the error for what the format does not allow.
    imports: the imports of our modules that code implies.
    named: the table's kind, for messages.
    longest: how many lines of code it may have; None for an upstream edit.
  """
  where = f"{named} {number}: "
  return [dataclasses.replace(edit, named=named)
          for one in _by_release(data, where, refuse)
          for edit in _read(patch, number, one, refuse, imports, where,
                            longest)]


def _by_release(data: dict, where: str, refuse: Refuse) -> list[dict]:
  """The table, once for each row of releases that it tells apart."""
  tables = {k: data[k] for k in _BY_RELEASE if isinstance(data.get(k), dict)}
  if not tables:
    return [data]
  releases = [list(table) for table in tables.values()]
  if any(row != releases[0] for row in releases):
    raise refuse(f"{where}{' and '.join(tables)} are tables of releases: "
                 "wanted the same releases in each, in one order")
  if "bases" in data:
    raise refuse(f"{where}{' and '.join(tables)} say of which releases the "
                 "edit is, so bases must not")
  return [{**data, "bases": row, **{k: t[row] for k, t in tables.items()}}
          for row in releases[0]]


def _read(patch: str, number: int, data: dict, refuse: Refuse,
          imports: Callable[[str], tuple[str, ...]], where: str,
          longest: int | None) -> list[Edit]:
  keys.check_keys(data, ("file", "op"), _KEYS, where, refuse)
  files = tuple(listed(data["file"]))
  for file in files:
    keys.require_inside(file, where, refuse)
  op, needs = data["op"], NEEDS if longest else {**NEEDS, **UPSTREAM_NEEDS}
  if op not in needs:
    raise refuse(f"{where}unknown op {op!r}; the operations are "
                 f"{', '.join(needs)}")
  for need in needs[op]:
    either = need if isinstance(need, tuple) else (need,)
    if sum(key in data for key in either) != 1:
      raise refuse(f"{where}{op} needs {' or '.join(either)}"
                   + (", exactly one" if len(either) > 1 else ""))
  keys.check_specifier(data.get("bases", ""), refuse)
  if longest:
    _check_code(data, where, refuse, longest)
  _check_place(data, where, refuse)
  rest = {k: v for k, v in data.items()
          if k not in ("in", "takes", "file", "code")}
  code = data.get("code", "")
  common = dict(patch=patch, number=number, file=files[0], files=files,
                takes=tuple(data["takes"]) if "takes" in data else None,
                imports=imports(code), **rest)
  return [Edit(scope=scope, code=code, **common)
          for scope in listed(data.get("in", ""))]


def _check_place(data: dict, where: str, refuse: Refuse) -> None:
  for key in ("before", "after", "call", "value"):
    if key in data and data["op"] != "add_text":
      try:
        syntax.Selector.parse(data[key])
      except ValueError as e:
        raise refuse(f"{where}{key}: {e}") from e
  if data.get("at", "start") not in ("start", "end"):
    raise refuse(f"{where}at is {data['at']!r}, wanted start or end")


def _check_code(data: dict, where: str, refuse: Refuse, longest: int) -> None:
  code = textwrap.dedent(data.get("code", "")).strip("\n")
  if code.count("\n") + 1 > longest:
    raise refuse(f"{where}code has {code.count(chr(10)) + 1} lines, at most "
                 f"{longest}: put the rest into a module")
