# SPDX-License-Identifier: Apache-2.0
"""Reads `patches/upstream.toml`: what to post upstream, and in which order.

The commits that can be sent, each with its area and the issues and pull
requests that it touches, and the discussions that users wait for.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import pathlib

from mend.editing import sendable
from mend.editing.patches import Patch
from mend.ground.errors import MendError
from mend.releases import bases
import msgspec

FILE = "patches/upstream.toml"


class Post(msgspec.Struct, forbid_unknown_fields=True):
  """One commit to send: its patch, and what its reader has to know."""
  patch: str
  area: str
  touches: list[str] = []


class Discussion(msgspec.Struct, forbid_unknown_fields=True):
  """One discussion to start: the patches, who waits, and what could be sent."""
  title: str
  patches: list[str]
  issues: list[str]
  form: str


@dataclasses.dataclass(frozen=True)
class Postings:
  """The commits in the order in which they are sent, and the discussions."""
  commits: tuple[tuple[Patch, Post], ...] = ()
  discussions: tuple[Discussion, ...] = ()


class _File(msgspec.Struct, forbid_unknown_fields=True):
  commit: list[Post] = []
  discussion: list[Discussion] = []


def read(series: Sequence[Patch], root: pathlib.Path = bases.ROOT) -> Postings:
  """The file, held against the series.

  Raises:
    MendError: it is not of the form, lacks a commit that can be sent or has
      another one or one before what it is sent after, or names a patch that
      there isn't.
  """
  path = root / FILE
  text = path.read_bytes() if path.is_file() else b""
  try:
    found = msgspec.toml.decode(text, type=_File)
  except (msgspec.ValidationError, msgspec.DecodeError) as e:
    raise MendError(f"{FILE}: {e}", f"edit {FILE}") from e
  mine = {p.id: p for p in series if p.upstream.verdict == sendable.SENDABLE}
  named = [post.patch for post in found.commit]
  wrong = sorted({n for n in named if named.count(n) > 1} | {*named} ^ {*mine})
  needs = {n: p.upstream.commit.after for n, p in mine.items()
           if p.upstream.commit}
  wrong += [f"{n} before {a}" for i, n in enumerate(named)
            for a in needs.get(n, ()) if a not in named[:i]]
  known = {p.id for p in series}
  wrong += [n for d in found.discussion for n in d.patches if n not in known]
  if wrong:
    raise MendError(
        f"{FILE}: {', '.join(wrong)}: wanted each patch that is sendable once "
        "as [[commit]], after what it needs, and no patch that isn't in the "
        "series.", f"edit {FILE}")
  return Postings(tuple((mine[p.patch], p) for p in found.commit),
                  tuple(found.discussion))
