# SPDX-License-Identifier: Apache-2.0
"""The table: which files of which release are edited, and how.

table/ is assembled when the package is built, of the project's live/table and
the texts of our modules. What it holds of an edited file is its hash and
splices [start, stop, n]: the byte offsets of the release's file between which
the n-th of pieces.json goes, [text, patch], our own text.
"""

from __future__ import annotations

from collections.abc import Sequence
import functools
import hashlib
import json
import os
import re
import sys
from typing import Any

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "table")


def _read(name: str) -> Any:
  with open(os.path.join(FOLDER, name), encoding="utf-8") as handle:
    return json.load(handle)


def sha256(data: bytes) -> str:
  return hashlib.sha256(data).hexdigest()


def spliced(data: bytes, splices: Sequence[Sequence[Any]]) -> bytes:
  """`data` with each splice [start, stop, text, ...] made, in their order."""
  out, position = [], 0
  for start, stop, text, *_ in splices:
    out += [data[position:start], text.encode("utf-8")]
    position = stop
  return b"".join([*out, data[position:]])


@functools.cache
def index() -> dict[str, Any]:
  """"version", "patches", and of the bases, oldest first: "bases" (version ->
  the hash of its table) and "pythons" (the oldest 3.N)."""
  return _read("index.json")


def newest() -> str:
  """The newest release that the table knows and this Python can have."""
  return _fitting()[-1]


def _fitting() -> list[str]:
  return [b for b, minor in index()["pythons"].items()
          if sys.version_info >= (3, minor)]


def nearest(version: str) -> str:
  """The newest release for this Python that is no newer, or else the oldest.

  What is no version stands for the newest.
  """
  known = _fitting()
  older = [b for b in known if _ordered(b) <= _ordered(version)]
  return older[-1] if older else known[0 if _ordered(version) else -1]


def _ordered(version: str) -> tuple[int, ...]:
  return tuple(int(n) for n in re.findall(r"\d+", version.split("+")[0]))


def reports() -> dict[str, Any]:
  """"runner", "programs" and the "sources" of the reports' programs."""
  return _read("reports.json")


@functools.cache
def _pieces() -> list[list[str]]:
  return _read("pieces.json")


@functools.cache
def _texts() -> dict[str, str]:
  return _read("texts.json")


class Table:
  """The edits and modules of one release.

  Attributes:
    base: the release, such as "0.6.0".
    key: names the base, our version and the content of the table.
    files: the release's files that are edited -> sha256 of the release's own.
    modules: the files that are added -> where their text is found.
    patches: the ids of what is applied.
  """

  def __init__(self, base: str):
    data = _read(f"{base}.json")
    self.base: str = base
    self.mended: str = data["mended"]
    self.key: str = f"{data['mended']}-{index()['bases'][base][:12]}"
    self.files: dict[str, str] = data["files"]
    self.modules: dict[str, str] = data["modules"]
    self.patches: list[str] = data["patches"]
    self._name: str = data["splices"]  # a release's, or its twin's
    self._splices: dict[str, list] | None = None

  def added(self, file: str) -> bytes:
    """The text of a file of `modules`."""
    return _texts()[self.modules[file]].encode("utf-8")

  def edited(self, file: str, data: bytes) -> bytes:
    """The text of a file of `files`, made from the release's own."""
    if self._splices is None:
      self._splices = _read(f"{self._name}.splices.json")
    return spliced(data, [(start, stop, *_pieces()[n])
                          for start, stop, n in self._splices[file]])
