# SPDX-License-Identifier: Apache-2.0
"""The parts of jax-mend's tables that releases share, each said once.

edits.json has a patch's texts, and of each the files and the releases that it
goes to; files.json has a line for each state of a release's file: the releases
that have it, its hash, and where our texts go, in the order of edits.json. So a
line names no text: another text, or one more for another file, leaves it as it
is. `live/backend.py` reads both.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
import json
from typing import Any

# Of a release's file: its hash, and [start, stop, text, patch] in their order.
Edited = dict[str, tuple[str, list[list[Any]]]]
_Pieces = list[tuple[str, dict[str, list[str]]]]  # text, file -> releases


def runs(held: Container[str], known: Sequence[str]) -> str:
  """Releases as runs, such as "0.5.1-0.6.0,0.8.2-".

  A run without an end goes to the newest release, so that one more, to which
  all applies, changes no line.

  Args:
    held: the releases.
    known: all releases, oldest first.
  """
  found: list[list[str]] = []
  for before, release in zip(["", *known], known):
    if release in held and before in held:
      found[-1].append(release)
    elif release in held:
      found.append([release])
  return ",".join(_run(row, known[-1]) for row in found)


def _run(row: Sequence[str], newest: str) -> str:
  if row[-1] == newest:
    return f"{row[0]}-"
  return f"{row[0]}-{row[-1]}" if len(row) > 1 else row[0]


def lines(value: Mapping[str, Any]) -> str:
  """JSON with an entry of a table, or of a table in it, on a line."""
  return "{\n" + ",\n".join(
      f"{json.dumps(key)}: {_entries(item)}"
      for key, item in value.items()) + "\n}\n"


def _entries(item: Any) -> str:
  if isinstance(item, Mapping) and item:
    return "{\n" + ",\n".join(
        f" {json.dumps(key)}: {_each(inner)}"
        for key, inner in item.items()) + "}"
  return _each(item)


def _each(item: Any) -> str:
  if isinstance(item, (list, tuple)) and item and not isinstance(item[0], str):
    return "[\n  " + ",\n  ".join(map(json.dumps, item)) + "]"
  return json.dumps(item)


def edits(found: Mapping[str, Edited], known: Sequence[str],
          series: Iterable[str]) -> str:
  """edits.json: patch -> [{file: runs of releases}, text], in a fixed order.

  Args:
    found: what is edited of each release; of a twin, what is of its origin.
    known: all releases, oldest first.
    series: the patches, in the order in which texts at one place stand.
  """
  def listed(patch: str) -> list[Any]:
    return [[{file: runs(held, known) for file, held in sorted(places.items())},
             text] for text, places in _shared(found, patch, known)]

  return lines({patch: rows for patch in series if (rows := listed(patch))})


def _shared(found: Mapping[str, Edited], patch: str,
            known: Sequence[str]) -> _Pieces:
  """A patch's texts with the releases of their files.

  Each file of each release has its texts in this order. Where two of them
  contradict each other, a text is there twice.
  """
  pieces: _Pieces = []
  for release in reversed(known):
    for file, (_, splices) in found.get(release, {}).items():
      at = 0
      for text in (text for _, _, text, owner in splices if owner == patch):
        at = _placed(pieces, text, at)
        pieces[at][1].setdefault(file, []).append(release)
        at += 1
  return pieces


def _placed(pieces: _Pieces, text: str, start: int) -> int:
  """The index of a text from `start` on; if there is none, it is put there."""
  for at in range(start, len(pieces)):
    if pieces[at][0] == text:
      return at
  pieces.insert(start, (text, {}))
  return start


def files(found: Mapping[str, Edited], known: Sequence[str],
          series: Iterable[str]) -> str:
  """files.json: file -> runs of releases -> its hash, and its texts' places.

  Args:
    found: what is edited of each release; of a twin, what is of its origin.
    known: all releases, oldest first.
    series: the patches, in their order.
  """
  order = {patch: number for number, patch in enumerate(series)}
  rows: dict[str, dict[str, list[str]]] = {}
  for release in known:
    for file, (digest, splices) in found.get(release, {}).items():
      places = [_place(start, stop) for start, stop, _, _ in sorted(
          splices, key=lambda splice: order[splice[3]])]
      rows.setdefault(file, {}).setdefault(
          " ".join([digest, *places]), []).append(release)
  return lines({file: {runs(held, known): row for row, held in row_of.items()}
                for file, row_of in sorted(rows.items())})


def _place(start: int, stop: int) -> str:
  return f"{start}" if start == stop else f"{start}-{stop}"
