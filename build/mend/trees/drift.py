"""Tells whether the code around an edit is still what a person reviewed.

For each edit and base, a hash of the definition that the edit relies on is
kept in patches/fingerprints/. States: `exact`, `drifted` (found, but the
definition changed), `new` (never recorded), `already there` (the definition
has the edit's code), `gone` (not found, or not unique).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
import dataclasses
import hashlib
import json
import pathlib
import textwrap

from mend.editing import edits, patches, presence, syntax
from mend.editing.edit import Edit
from mend.releases import bases
from mend.releases.bases import Base
from mend.trees import tree

EXACT, DRIFTED, GONE = "exact", "drifted", "gone"
THERE, NEW = "already there", "new"
Recorded = dict[str, dict[str, str]]  # edit -> base -> fingerprint


@dataclasses.dataclass(frozen=True)
class State:
  """How one edit stands on one base."""
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
  """What was reviewed: edit -> base -> fingerprint."""
  path = root / "patches" / "fingerprints" / f"{patch}.json"
  return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def edit_key(edit: Edit) -> str:
  place = edit.before or edit.after or edit.call or edit.value or edit.at
  return " ".join(x for x in (edit.file, edit.op, edit.scope, place) if x)


def states(series: Iterable[patches.Patch], base: Base, source: pathlib.Path,
           root: pathlib.Path = bases.ROOT) -> list[State]:
  """The state of every edit that the series makes on `base`."""
  parsed: dict[str, edits.Source] = {}
  found = []
  for patch in patches.for_base(series, base):
    known = recorded(patch.id, root)
    for edit in patch.edits_for(base):
      path = source / edit.file
      if not path.is_file():
        if not edit.optional:
          found.append(State(edit, base.version, GONE, "", "no such file"))
        continue
      if edit.file not in parsed:
        parsed[edit.file] = edits.parsed(tree.read(path))
      reviewed = known.get(edit_key(edit), {}).get(base.version)
      found.append(_state(parsed[edit.file], edit, base, reviewed))
  return found


def _state(source: edits.Source, edit: Edit, base: Base,
           reviewed: str | None) -> State:
  try:
    now = fingerprint(edits.locate(source, edit).context)
  except syntax.NotFound as e:
    state = THERE if _there(source, edit) else GONE
    return State(edit, base.version, state, "", str(e))
  if now == reviewed:
    return State(edit, base.version, EXACT, now)
  if _there(source, edit):
    return State(edit, base.version, THERE, now)
  if reviewed is None:
    return State(edit, base.version, NEW, now, "not reviewed yet")
  return State(edit, base.version, DRIFTED, now)


def _there(source: edits.Source, edit: Edit) -> bool:
  try:
    return presence.already_there(source, edit)
  except syntax.NotFound:
    return False


def record(found: Sequence[State], root: pathlib.Path = bases.ROOT) -> int:
  """Writes down that a person has reviewed these; returns how many changed."""
  changed = 0
  by_patch: dict[str, list[State]] = {}
  for state in found:
    by_patch.setdefault(state.edit.patch, []).append(state)
  for patch, mine in by_patch.items():
    path = root / "patches" / "fingerprints" / f"{patch}.json"
    old = recorded(patch, root)
    seen = {s.base for s in mine}
    data: Recorded = {k: {b: f for b, f in v.items() if b not in seen}
                      for k, v in old.items()}
    for s in mine:
      if s.fingerprint:
        data.setdefault(edit_key(s.edit), {})[s.base] = s.fingerprint
    data = {k: v for k, v in data.items() if v}
    if data != old:
      changed += 1
      text = json.dumps(data, indent=1, sort_keys=True) + "\n"
      tree.write(path, text)
  return changed
