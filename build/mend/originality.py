"""Compares the repository's lines with the pristine sources'.

The repository holds our own words and code only. A run of three lines of 30
or more characters, each of which some base has too, fails (shorter lines in
between don't break a run); imports and licence headers don't count.
"""

from __future__ import annotations

from collections.abc import Iterable
import dataclasses
import pathlib
import re
import subprocess

SHORTEST = 30
LONGEST_RUN = 2
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
  """How many lines the comment that opens a file has, if it is a licence."""
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


def repository_files(root: pathlib.Path) -> list[pathlib.Path]:
  """The files that git tracks, or would; every file outside a checkout."""
  done = subprocess.run(
      ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
      cwd=root, capture_output=True, text=True, check=False)
  if done.returncode == 0 and (root / ".git").exists():
    paths = [root / name for name in done.stdout.split("\0") if name]
  else:
    paths = [p for p in root.rglob("*") if "__pycache__" not in p.parts]
  return sorted(p for p in paths if p.is_file())


def compare(root: pathlib.Path, known: set[int]) -> tuple[list[Hit], int, int]:
  """The hits in our files, and how many files and lines were compared."""
  hits, count = [], 0
  files = [p for p in repository_files(root)
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
