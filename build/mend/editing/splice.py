# SPDX-License-Identifier: Apache-2.0
"""Replaces spans of a text, all of them located before the first changes."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses


@dataclasses.dataclass(frozen=True)
class Splice:
  """Replace text[start:stop] by `text`; an insertion where start == stop."""
  start: int
  stop: int
  text: str
  owner: str  # who asks, for messages
  patch: str = ""


class Overlap(ValueError):
  """Two splices touch the same text."""


def check_overlaps(splices: Sequence[Splice]) -> None:
  """Raises Overlap if a replaced span holds any part of another splice."""
  spans = [s for s in splices if s.start < s.stop]
  for span in spans:
    for other in splices:
      if other is span:
        continue
      if other.start == other.stop:
        clash = span.start < other.start < span.stop
      else:
        clash = other.start < span.stop and span.start < other.stop
      if clash:
        raise Overlap(f"{span.owner} and {other.owner}")


def apply(text: str, splices: Sequence[Splice]) -> str:
  """The text with all splices made; insertions at one place keep their order.

  Raises:
    Overlap: two of them touch the same text.
  """
  check_overlaps(splices)
  out, position = [], 0
  for splice in sorted(splices, key=lambda s: (s.start, s.stop)):
    out.append(text[position:splice.start])
    out.append(splice.text)
    position = splice.stop
  out.append(text[position:])
  return "".join(out)
