# SPDX-License-Identifier: Apache-2.0
"""Compares the repository's lines with upstream's sources and checkouts.

The repository holds our own words and code only. A run of three lines of 30
or more characters, each of which some base has too, fails (shorter lines in
between don't break a run); imports and licence headers don't count. Against
checkouts of upstream, which have its tests and later versions, a run of two
fails, of lines that only a few files of a checkout have.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable
import dataclasses
import pathlib
import re

from mend.ground import repository

SHORTEST = 30
LONGEST_RUN = 2
IDIOM = 3  # what more files of one checkout have is how jax is written
_TEXT = {".py", ".md", ".toml", ".txt", ".cfg", ".json", ".bazel", ".bzl",
         ".yml", ".yaml", ".in", ".ini", ""}
_SKIP = re.compile(r"(from|import)\s")


@dataclasses.dataclass(frozen=True)
class Hit:
  """A line of ours that a base has too; `run` counts it and those before."""
  file: str
  number: int
  line: str
  run: int


def lines_of(text: str) -> list[tuple[int, str]]:
  """(number, text) of the lines that count."""
  header = _licence_lines(text)
  found = []
  in_import = False
  for number, line in enumerate(text.splitlines(), 1):
    line = line.strip()
    if in_import or _SKIP.match(line):
      in_import = (in_import or "(" in line) and ")" not in line
      continue
    if number > header and len(line) >= SHORTEST:
      found.append((number, " ".join(line.split())))
  return found


def _licence_lines(text: str) -> int:
  """The number of lines of the licence that opens a file, or 0."""
  count = 0
  for line in text.splitlines():
    if not line.startswith("#"):
      break
    count += 1
  head = "\n".join(text.splitlines()[:count])
  return count if "License" in head else 0


def upstream_lines(
    sources: Iterable[pathlib.Path]) -> tuple[set[int], int, int]:
  """The hashes of all lines that count, and how many files and lines."""
  known: set[int] = set()
  files = lines = 0
  for source in sources:
    for path in source.rglob("*"):
      if path.suffix in _TEXT and path.is_file() and path.name != "LICENSE":
        found = lines_of(path.read_text(encoding="utf-8", errors="replace"))
        known.update(hash(line) for _, line in found)
        files += 1
        lines += len(found)
  return known, files, lines


def lines_of_substance(
    checkouts: Iterable[pathlib.Path]) -> tuple[set[int], int, int]:
  """`upstream_lines`, without those that many files of one checkout have."""
  known: set[int] = set()
  idioms: set[int] = set()
  files = lines = 0
  for checkout in checkouts:
    seen: collections.Counter[int] = collections.Counter()
    for path in checkout.rglob("*"):
      if path.suffix in _TEXT and path.is_file() and path.name != "LICENSE":
        found = lines_of(path.read_text(encoding="utf-8", errors="replace"))
        seen.update({hash(line) for _, line in found})
        files += 1
        lines += len(found)
    known.update(seen)
    idioms.update(line for line, count in seen.items() if count > IDIOM)
  return known - idioms, files, lines


def compare(root: pathlib.Path, known: set[int]) -> tuple[list[Hit], int, int]:
  """The hits in our files, and how many files and lines were compared."""
  hits, count = [], 0
  files = [p for p in repository.files(root)
           if p.suffix in _TEXT and p.name != "LICENSE"]
  for path in files:
    run = 0
    for number, line in lines_of(path.read_text(encoding="utf-8",
                                                errors="replace")):
      count += 1
      run = run + 1 if hash(line) in known else 0
      if run:
        hits.append(Hit(str(path.relative_to(root)), number, line, run))
  return hits, len(files), count
