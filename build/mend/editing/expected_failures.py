# SPDX-License-Identifier: Apache-2.0
"""The failures that a patch expects on a pristine base, by their exception.

A reason is a regular expression that the final exception must match from its
type on, in words that an unrelated failure would not say, and with no
alternatives: where releases fail in other words, it is a table by release.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
import dataclasses
import fnmatch
import re
from typing import Any

from mend.ground.errors import MendError
from mend.releases import bases

Refuse = Callable[[str], MendError]
_OPENING = re.compile(r"\^(?:[A-Z_]\w+: |the process )")
_ESCAPED = re.compile(r"\\[^a-zA-Z]|\[\^?\]?[^\]]*\]")
_CLASS = re.compile(r"\\[a-zA-Z]")
_WORD = re.compile(r"[A-Za-z_][\w.]+")
# What was got and what was wanted, of which one is no truth value.
_COMPARED = re.compile(r": (?!(?:True|False) != (?:True|False)\b).+ != .")
_TRUTH = frozenset({"true", "false", "none", "is", "not"})
# What any test may fail with.
_COMMON = frozenset({
    "assert", "assertionerror", "axes", "error", "exception", "expected",
    "failed", "failure", "frozenset", "manual", "match", "mismatch", "raised",
    "replicated", "replication", "shapedarray", "shape", "type", "types",
    "valueerror", "varying"})


@dataclasses.dataclass(frozen=True)
class Red:
  """Tests that fail on a pristine base, and what their failure must say."""
  tests: tuple[str, ...]
  reason: str
  bases: str = ""
  api_missing: bool = False
  file: str = ""  # of the patch's tests; all of them if none is named

  def names(self, file: str, test: str) -> bool:
    """True if a test of a file, "Class.test", is expected to fail."""
    return self.file in ("", file) and any(
        fnmatch.fnmatchcase(test, pattern) for pattern in self.tests)


@dataclasses.dataclass(frozen=True)
class Supersedes:
  """A deliberate refusal of upstream's that a patch reverses.

  Attributes:
    tests: those of upstream that fail by it, as "file.py Class.test".
    why: what is accepted.
    reason: what their failure on the mended wheel says.
    bases: the releases on which they do.
    refusal: where upstream has no test of it, the reason of the patch's
      [[red]] whose tests show it.
  """
  tests: tuple[str, ...]
  why: str
  reason: str
  bases: str = ""
  refusal: str = ""


def read(data: dict[str, Any], where: str, refuse: Refuse) -> list[Red]:
  """Reads a [[red]] table: one `Red` for each reason by release."""
  limits = data.get("bases", "")
  reason = data["reason"]
  by_release = reason if isinstance(reason, dict) else {"": reason}
  if not by_release:
    raise refuse(f"{where}reason is an empty table")
  found = []
  for releases, words in by_release.items():
    check_reason(words, where, refuse)
    found.append(Red(tuple(data["tests"]), words,
                     ",".join(filter(None, (limits, releases))),
                     data.get("api_missing", False), data.get("file", "")))
  for base in bases.all_bases():
    if sum(base.within(red.bases) for red in found) > 1:
      raise refuse(f"{where}two reasons are for {base.version}, of "
                   + ", ".join(by_release))
  return found


def check_reason(reason: str, where: str, refuse: Refuse) -> None:
  """Refuses what other failures would match, too."""
  try:
    re.compile(reason)
  except re.error as e:
    raise refuse(f"{where}reason {reason!r} is no regular expression: "
                 f"{e}") from e
  problem = _problem(reason)
  if problem:
    raise refuse(f"{where}reason {reason!r} {problem}")


def _problem(reason: str) -> str:
  opening = _OPENING.match(reason)
  if not opening:
    return ('does not begin with the exception: wanted "^TypeName: words of '
            'its message"')
  rest = _ESCAPED.sub(" ", reason[opening.end():])
  if "|" in rest:
    return ("has alternatives: wanted one; where releases differ, a table "
            '{ ">=0.10" = "^...", "<0.10" = "^..." }')
  words = [w for w in _WORD.findall(_CLASS.sub(" ", rest))
           if w.lower() not in _TRUTH]
  telling = any(len(w) > 4 and w.lower() not in _COMMON for w in words)
  if len(words) < 2 and not telling and not _COMPARED.search(reason):
    return ("is what other failures say, too: wanted words of the message "
            "beside the type")
  return ""


def unmet(reds: Sequence[Red], tests: Iterable[str]) -> list[Red]:
  """The `reds` that no test has to meet, as others come before them."""
  named, met = [], []
  for test in tests:
    found = [r for r in reds if any(
        fnmatch.fnmatchcase(test, p) for p in r.tests)]
    met += found[:1]
    named += found
  return [r for r in reds if r in named and r not in met]
