# SPDX-License-Identifier: Apache-2.0
"""The table: which files of which release are edited, and how.

table/ is assembled when the package is built, of the project's live/table and
the texts of our modules. What it holds of an edited file is its hash and
splices [start, stop, n]: the byte offsets of the release's file between which
the n-th of pieces.json goes, [text, patch], our own text. All edits were placed
on the release's own file, so those of some patches are a part of them.
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

from jax_mend import words as words_of
from jax_mend.splices import spliced

_IMPORT = re.compile(r"from jax\._src\.\S+ import \w+ as (\w+)")
_MANIFEST = "jax/_src/mend_manifest.py"
FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "table")


def _read(name: str) -> Any:
  with open(os.path.join(FOLDER, name), encoding="utf-8") as handle:
    return json.load(handle)


def sha256(data: bytes) -> str:
  return hashlib.sha256(data).hexdigest()


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

  Args:
    base: the release, such as "0.6.0".
    words: those that choose patches; none for all of them.

  Attributes:
    base: the release.
    choice: the patches that the words choose.
    whole: the ids of all patches for the release.
    key: names the base, our version, the content of the table and the part.
    files: the release's files that are edited -> sha256 of the release's own.
    modules: the files that are added -> where their text is found.
    patches: the ids of what is applied.
  """

  def __init__(self, base: str, words: Sequence[str] = ()):
    data, known = _read(f"{base}.json"), index()
    self.base: str = base
    self.mended: str = data["mended"]
    self.key: str = f"{data['mended']}-{known['bases'][base][:12]}"
    self.files: dict[str, str] = data["files"]
    self.modules: dict[str, str] = data["modules"]
    self.whole: list[str] = data["patches"]
    self._name: str = data["splices"]  # a release's, or its twin's
    self._splices: dict[str, list] | None = None
    self.choice = words_of.Choice(tuple(self.whole))
    if words:
      self._take_part(words_of.choose(
          words, [*known["patches"]],
          {p: known["patches"][p]["needs"] for p in self.whole}, self.whole,
          known["former"]))

  @property
  def patches(self) -> list[str]:
    return [*self.choice.patches]

  def described(self) -> str:
    """The number of patches, and of a part what is added and left out."""
    choice, whole = self.choice, len(self.whole)
    if len(choice.patches) == whole:
      return f"{whole} patches"
    said = f"{len(choice.patches)} of {whole} patches"
    if choice.added:
      said += f", with {', '.join(choice.added)}, which are needed"
    if choice.dropped:
      said += (f", without {', '.join(choice.dropped)}, which need what is "
               "left out")
    return said

  def _take_part(self, choice: words_of.Choice) -> None:
    """Leaves away what the chosen patches don't have."""
    self.choice = choice
    if len(choice.patches) == len(self.whole):
      return
    part = f"p{sha256(','.join(choice.patches).encode())[:8]}"
    self.mended, self.key = f"{self.mended}.{part}", f"{self.key}-{part}"
    owners = index()["owners"]
    self.modules = {name: text for name, text in self.modules.items()
                    if name not in owners
                    or not self._kept.isdisjoint(owners[name])}
    self.files = {file: digest for file, digest in self.files.items()
                  if self.pieces(file)}

  @functools.cached_property
  def _kept(self) -> frozenset[str]:
    return frozenset(self.choice.patches)

  def added(self, file: str) -> bytes:
    """The text of a file of `modules`."""
    text = _texts()[self.modules[file]]
    if file == _MANIFEST and len(self._kept) < len(self.whole):
      for patch in {*self.whole} - self._kept:
        text = text.replace(f'    "{patch}",\n', "")
      text = re.sub(r'^VERSION = ".*"$', f'VERSION = "{self.mended}"', text,
                    flags=re.MULTILINE)
    return text.encode("utf-8")

  def pieces(self, file: str) -> list[list[Any]]:
    """[start, stop, text, patch] of a file of `files`, in their order."""
    if self._splices is None:
      self._splices = _read(f"{self._name}.splices.json")
    found = [[start, stop, *_pieces()[n]]
             for start, stop, n in self._splices[file]]
    if len(self._kept) == len(self.whole):
      return found
    # An import that patches share is there once, by the first of them.
    used = {name for *_, text, patch in found if patch in self._kept
            for name in re.findall(r"\w+", text)}
    return [piece for piece in found if piece[3] in self._kept
            or _bound(piece[2]) in used]

  def edited(self, file: str, data: bytes) -> bytes:
    """The text of a file of `files`, made from the release's own."""
    return spliced(data, self.pieces(file))


def _bound(text: str) -> str | None:
  """The name that a text binds which is one import of a module of ours."""
  found = _IMPORT.fullmatch(text.strip())
  return found and found[1]
