"""The tests that the deletion check relies on, release by release.

`test --needed --write` keeps, for each release, one test for each thing that it
left out and that a test missed. A run of several releases has these on all of
them, and so misses what the whole tests miss.
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

_FOLDER = bases.ROOT / "build" / "needed"


def _path(base: Base) -> pathlib.Path:
  return _FOLDER / f"{base.version}.txt"


def write(base: Base, tests: Iterable[str]) -> None:
  """Keeps tests, each "file Class.test"."""
  _FOLDER.mkdir(exist_ok=True)
  tree.write(_path(base), "".join(f"{t}\n" for t in sorted(set(tests))))


@functools.cache
def of(base: Base) -> Mapping[str, Sequence[str]]:
  """The tests that are kept for a release, by file; none if it has no list.

  Any test will do of a file that can't be imported without something.
  """
  found: dict[str, list[str]] = collections.defaultdict(list)
  if _path(base).is_file():
    for line in tree.read(_path(base)).splitlines():
      file, _, name = line.partition(" ")
      found[file] += [name] if name != pytest_run.COLLECTING else []
  return found
