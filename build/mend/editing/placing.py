# SPDX-License-Identifier: Apache-2.0
"""The file that an edit goes to on a release, and the imports it needs.

A definition moves from file to file between releases, and changes its name, so
an edit may name several files, and several names (`old|new`); it goes to the
first definition that is there. Imports follow from the
code: each name FAMILY_MODULE in it is bound where the file's imports end, or,
for a file that the patch lists under `late_imports`, at the file's end, since
upstream's modules import each other in a circle there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
import dataclasses
import pathlib

from mend.editing import operations, patches, syntax
from mend.editing.edit import Edit
from mend.ground import repository
from mend.releases.bases import Base

# The definition's own name in an edit's code: no code has a keyword in braces,
# so that an f-string's braces are left alone.
NAME = "{in}"


def read(path: pathlib.Path) -> str:
  """The text as it is, line ends included."""
  return repository.text(path)


def placed(patch: patches.Patch, base: Base,
           source: pathlib.Path) -> tuple[Edit, ...]:
  """The patch's edits for a release, each with the one file that it goes to.

  Args:
    patch: the patch.
    base: the release.
    source: its pristine tree.

  Returns:
    The edits in order. One that has no place in any of its files keeps the
    first of them.
  """
  return tuple(at_place(edit, source) for edit in patch.edits_for(base))


def at_place(edit: Edit, source: pathlib.Path) -> Edit:
  """The edit with the first of its files and definitions that is there."""
  spelled = [dataclasses.replace(edit, file=file, scope=scope)
             for file in edit.files for scope in edit.scope.split("|")]
  found = spelled[0] if len(spelled) == 1 else next(
      (e for e in spelled if _has(source / e.file, e)), spelled[0])
  name = found.scope.rpartition(".")[2]
  return dataclasses.replace(found, code=found.code.replace(NAME, name))


def with_imports(patch: patches.Patch,
                 found: Sequence[Edit]) -> tuple[Edit, ...]:
  """The placed edits of a patch, before them the imports that they imply."""
  wanted = dict.fromkeys((edit.file, statement) for edit in found
                         for statement in edit.imports)
  return (*(_import(patch, file, statement) for file, statement in wanted),
          *found)


def _import(patch: patches.Patch, file: str, statement: str) -> Edit:
  op = "append" if file in patch.late_imports else "add_import"
  return Edit(patch.id, 0, file, op, statement, files=(file,))


def once(found: Iterable[Edit]) -> list[Edit]:
  """The edits of one file, without an import that it has from another patch.

  Where one patch needs it at the file's end, it stands there.
  """
  todo = list(found)
  late = {e.code for e in todo if not e.number and e.op == "append"}
  kept, seen = [], set()
  for edit in todo:
    if not edit.number:
      if edit.code in seen or edit.op == "add_import" and edit.code in late:
        continue
      seen.add(edit.code)
    kept.append(edit)
  return kept


def in_order(found: Sequence[Edit]) -> list[Edit]:
  """The edits of one file, its new imports first and in alphabetical order."""
  new = [dataclasses.replace(e, sorted=True) for e in found
         if e.op == "add_import"]
  new.sort(key=lambda e: syntax.import_key(e.code))
  return [*new, *(e for e in found if e.op != "add_import")]


def _has(path: pathlib.Path, edit: Edit) -> bool:
  if not path.is_file():
    return False
  if edit.op == "add_text" or not (edit.scope or edit.selector):
    return True
  try:
    holder = operations.parsed(read(path)).holder(edit)
    if not edit.scope:
      syntax.find(holder, syntax.Selector.parse(edit.selector))
  except syntax.NotFound:
    return False
  return True
