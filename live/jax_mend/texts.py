# SPDX-License-Identifier: Apache-2.0
"""Compares what two runs print, where it is the same twice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
import difflib
import math

_ALIGNED = 200  # lines of which a longest common part is looked for
_GONE = "\0"  # stands for a word that isn't the same twice

# What is printed below Python, in an order that is a race: two runs of two may
# well end it alike, and so would be held for stable.
_RACES = ("[Gloo] Rank ",)

Lines = Sequence[str]
Pair = tuple[str | None, str | None]
Pairs = list[Pair]


def own(lines: Lines) -> list[str]:
  """The lines of a text that are a program's own."""
  return [line for line in lines if not line.startswith(_RACES)]


def stable(one: Lines, two: Lines, repeats: Iterable[tuple[Lines, Lines]],
           ) -> tuple[Lines, Lines] | None:
  """Both texts without the words that are not the same twice.

  Args:
    one: the lines of a text.
    two: those of another.
    repeats: for each of the two, if it was made again, both times' lines.

  Returns:
    None if the lines can't be compared: their number isn't the same twice.
  """
  for first, second in repeats:
    if len(first) != len(second):
      return None
    if first == second:
      continue
    if len(one) == len(two) == len(first):
      rows = [_without(*row) for row in zip(first, second, one, two)]
      one, two = [a for a, _ in rows], [b for _, b in rows]
    elif len(one) != len(two):  # as many as that, each time
      return one, two
  return one, two


def _without(first: str, second: str, *lines: str) -> Sequence[str]:
  """Lines without the words at the places at which the first two differ."""
  if first == second:
    return lines
  a, b = first.split(), second.split()
  if len({len(a), len(b), *(len(line.split()) for line in lines)}) > 1:
    return [_GONE] * len(lines)
  return [" ".join(w if x == y else _GONE for w, x, y in zip(
      line.split(), a, b)) for line in lines]


def differing(one: Lines, two: Lines) -> Iterator[Pair]:
  """The lines of two texts that differ, side by side; None where none is.

  Takes time linear in the texts: long parts are compared line by line.
  """
  begin = _common(one, two)
  end = _common(one[begin:][::-1], two[begin:][::-1])
  a, b = one[begin:len(one) - end], two[begin:len(two) - end]
  blocks = ([("replace", 0, len(a), 0, len(b))]
            if max(len(a), len(b)) > _ALIGNED else difflib.SequenceMatcher(
                None, a, b, autojunk=False).get_opcodes())
  for tag, i, j, k, l in blocks:
    for n in range(0 if tag == "equal" else max(j - i, l - k)):
      left = a[i + n] if i + n < j else None
      right = b[k + n] if k + n < l else None
      if left != right:
        yield left, right


def _common(one: Lines, two: Lines) -> int:
  """The number of lines that both begin with."""
  return next((n for n, (a, b) in enumerate(zip(one, two)) if a != b),
              min(len(one), len(two)))


def off_by(pairs: Pairs) -> tuple[float, float]:
  """The largest absolute and relative difference of numbers in lines."""
  absolute = relative = 0.
  for left, right in pairs:
    for a, b in zip((left or "").split(), (right or "").split()):
      try:
        x, y = float(a.strip("[](),")), float(b.strip("[](),"))
      except ValueError:
        continue
      if math.isfinite(x) and math.isfinite(y) and x != y:
        absolute = max(absolute, abs(x - y))
        relative = max(relative, abs(x - y) / max(abs(x), abs(y)))
  return absolute, relative
