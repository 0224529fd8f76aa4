# SPDX-License-Identifier: Apache-2.0
"""The minimal suite of each release: tests that kill all its mutants.

`test --mutation --write` keeps, for each release, one test for each mutant that
a test killed. A run of several releases runs these on all of them, and so finds
what the whole tests find. A release without a minimal suite has those of its
neighbours, which for the most part have the same edits.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping, Sequence
import functools
import pathlib

from mend.proof import pytest_run
from mend.releases import bases
from mend.releases.bases import Base
from mend.trees import tree

_FOLDER = bases.ROOT / "build" / "mutation"


def _path(base: Base) -> pathlib.Path:
  return _FOLDER / f"{base.version}.txt"


def write(base: Base, tests: Iterable[str]) -> None:
  """Writes a release's minimal suite, each test as "file Class.test"."""
  _FOLDER.mkdir(exist_ok=True)
  tree.write(_path(base), "".join(f"{t}\n" for t in sorted(set(tests))))


@functools.cache
def tests_of(base: Base) -> Mapping[str, Sequence[str]]:
  """A release's minimal suite, by file, or its neighbours'.

  A file whose import a mutant breaks has an empty list: any of its tests will
  do.
  """
  found: dict[str, list[str]] = collections.defaultdict(list)
  for near in [base] if _path(base).is_file() else _neighbours(base):
    for line in tree.read(_path(near)).splitlines():
      file, _, name = line.partition(" ")
      if name not in (pytest_run.COLLECTING, *found[file]):
        found[file].append(name)
  return found


def _neighbours(base: Base) -> list[Base]:
  """The nearest older and newer release that have a minimal suite."""
  every = bases.all_bases()
  place = every.index(base)
  older, newer = reversed(every[:place]), every[place + 1:]
  return [b for side in (older, newer)
          for b in [next((b for b in side if _path(b).is_file()), None)] if b]
