# SPDX-License-Identifier: Apache-2.0
"""Tells whether the code around an edit is still what a person reviewed.

For each edit, hashes of the definitions that a person has read are kept in
patches/fingerprints/: of the whole definition, or of its signature for an edit
that relies on no more. A text that was read on one release counts on all that
have the same. An edit that relies on no definition has no hash. States:
`exact`, `drifted` (found, but the definition is another), `new` (no definition
was read for it), `already there` (the definition has the edit's code), `gone`
(not found, or not unique).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
import dataclasses
import hashlib
import json
import pathlib
import textwrap

from mend.editing import edits, operations, patches, placing, presence, syntax
from mend.editing.edit import Edit
from mend.ground import repository
from mend.ground.errors import MendError
from mend.releases import bases
from mend.releases.bases import Base
from mend.trees import tree

EXACT, DRIFTED, GONE = "exact", "drifted", "gone"
THERE, NEW = "already there", "new"
Recorded = dict[str, str]  # edit -> fingerprints, with spaces between


@dataclasses.dataclass(frozen=True)
class State:
  """The state of one edit on one base."""
  edit: Edit
  base: str
  state: str
  fingerprint: str
  detail: str = ""


def fingerprint(context: str) -> str:
  """A hash of a definition: its lines and how they are nested.

  A statement that moved out of an `if` counts, and so does a line that was
  broken; blank lines, and how far the whole is indented, don't.
  """
  first, _, rest = context.strip().partition("\n")
  text = "\n".join([first, *(
      line.rstrip() for line in textwrap.dedent(rest).split("\n")
      if line.strip())])
  return hashlib.sha256(text.encode()).hexdigest()[:16]


def recorded(patch: str, root: pathlib.Path = bases.ROOT) -> Recorded:
  """The record of what was read: edit -> fingerprints of its definitions."""
  path = root / "patches" / "fingerprints" / f"{patch}.json"
  if not path.is_file():
    return {}
  try:
    return json.loads(repository.text(path))
  except ValueError as e:
    raise MendError(f"{path} is no valid JSON: {e}", "restore it: git -C "
                    f"{path.parent} checkout -- {path.name}") from e


def edit_key(edit: Edit) -> str:
  place = edit.selector or edit.at
  return " ".join(x for x in (edit.op, edit.scope, place) if x)


def states(series: Iterable[patches.Patch], base: Base, source: pathlib.Path,
           root: pathlib.Path = bases.ROOT) -> list[State]:
  """The state of every edit that the series makes on `base`."""
  found = []
  for patch in patches.for_base(series, base):
    known = recorded(patch.id, root)
    for edit in placing.placed(patch, base, source):
      path = source / edit.file
      if path.is_file():
        read = known.get(edit_key(edit), "").split()
        text = operations.parsed(tree.read(path))
        found.append(_state(text, edit, base, read))
      elif not edit.optional:
        found.append(State(edit, base.version, GONE, "", "no such file"))
  return found


def _state(source: operations.Source, edit: Edit, base: Base,
           read: Sequence[str]) -> State:
  try:
    context = edits.locate(source, edit).context
  except syntax.NotFound as e:
    state = THERE if _there(source, edit) else GONE
    return State(edit, base.version, state, "", str(e))
  now = fingerprint(context) if context else ""
  if now in read:
    return State(edit, base.version, EXACT, now)
  if _there(source, edit):
    return State(edit, base.version, THERE, now)
  if not now:
    return State(edit, base.version, EXACT, "")
  if not read:
    return State(edit, base.version, NEW, now, "not reviewed yet")
  return State(edit, base.version, DRIFTED, now)


def _there(source: operations.Source, edit: Edit) -> bool:
  try:
    return presence.already_there(source, edit)
  except syntax.NotFound:
    return False


def record(found: Sequence[State], root: pathlib.Path = bases.ROOT,
           whole: bool = False) -> int:
  """Writes down that a person has read these definitions.

  Args:
    found: the states of edits, on one release or several.
    root: the repository.
    whole: whether they are those of all releases: then what was read earlier
      and is on none of them is forgotten.

  Returns:
    How many files changed.
  """
  changed = 0
  by_patch: dict[str, list[State]] = {}
  for state in found:
    by_patch.setdefault(state.edit.patch, []).append(state)
  for patch, mine in by_patch.items():
    old = recorded(patch, root)
    read = {} if whole else {k: set(v.split()) for k, v in old.items()}
    for state in mine:
      if state.fingerprint:
        read.setdefault(edit_key(state.edit), set()).add(state.fingerprint)
    data = {key: " ".join(sorted(v)) for key, v in read.items()}
    if data != old:
      changed += 1
      _write(root / "patches" / "fingerprints" / f"{patch}.json", data)
  return changed


def _write(path: pathlib.Path, data: Recorded) -> None:
  if data:
    tree.write(path, json.dumps(data, indent=1, sort_keys=True) + "\n")
  else:
    path.unlink(missing_ok=True)
