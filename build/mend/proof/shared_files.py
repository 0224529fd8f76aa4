"""One copy on disk of the files that several environments have alike.

The environments of 25 releases hold numpy and scipy 25 times, a third of what
they take. What pip has recorded of a file, its path, hash and size, tells
whether another environment has the same one; the second is then a hard link to
the first. Both are only ever read. Where links can't be made, the file stays.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import csv
import os
import pathlib

_LEAST = 1 << 16  # bytes; smaller ones are many and take little


def share(packages: pathlib.Path, others: pathlib.Path, done: str) -> int:
  """Links large files to those of other environments.

  Args:
    packages: the folder of packages of a new environment.
    others: the folder of environments that it is in.
    done: the name of a file that each complete environment has.

  Returns:
    The number of bytes that are no longer there twice.
  """
  env = others / packages.relative_to(others).parts[0]
  saved = 0
  for record in sorted(packages.glob("*.dist-info/RECORD")):
    for like in sorted(others.glob(f"*/{record.relative_to(env)}")):
      other = others / like.relative_to(others).parts[0]
      if other != env and (other / done).is_file():
        saved += sum(
            _link(like.parent.parent / name, packages / name, size)
            for name, size in _alike(record, like))
        break
  return saved


def _alike(record: pathlib.Path,
           like: pathlib.Path) -> Iterator[tuple[str, int]]:
  """The large files, with their sizes, that two records have alike."""
  theirs = set(_rows(like))
  for name, digest, size in _rows(record):
    if (digest and (name, digest, size) in theirs
        and size.isdigit() and int(size) >= _LEAST):
      yield name, int(size)


def _rows(record: pathlib.Path) -> list[tuple[str, str, str]]:
  with record.open(encoding="utf-8", newline="") as lines:
    return [(row[0], row[1], row[2]) for row in csv.reader(lines)
            if len(row) == 3]


def _link(theirs: pathlib.Path, mine: pathlib.Path, size: int) -> int:
  """Puts a link to their file in the place of mine; the bytes saved."""
  aside = mine.with_name(mine.name + ".mend-link")
  try:
    if theirs.stat().st_size != size or theirs.samefile(mine):
      return 0
    os.link(theirs, aside)
    aside.replace(mine)
  except OSError:  # on another disk, of a kind without links, or just gone
    with contextlib.suppress(OSError):
      aside.unlink()
    return 0
  return size
