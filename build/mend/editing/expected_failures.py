# SPDX-License-Identifier: Apache-2.0
"""The failures that a patch expects on a pristine base, by their exception.

A reason is a regular expression that the final exception must match from its
type on, in words that an unrelated failure would not say, and with no
alternatives: where releases fail in other words, it is a table by release.
`red_tests` reads them where the tests are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
import dataclasses
import fnmatch
import re
from typing import Any

from mend.editing import families, keys
from mend.editing.keys import Refuse
from mend.releases import bases

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
  """Tests that fail on a pristine base, and what their failure must say.

  Attributes:
    tests: patterns of their cases, as build/probes/pytest_outcomes.py names
      those: "Class.test(*" has all of a test.
    reason: a pattern of the exception.
    bases: the releases on which they do; all if empty.
    api_missing: whether what is missing is a name.
    file: the tests' own.
    also: a family of patches that they need beside their own.
  """
  tests: tuple[str, ...]
  reason: str
  bases: str = ""
  api_missing: bool = False
  file: str = ""
  also: str = ""

  def names(self, case: str) -> bool:
    """True if a case is expected to fail."""
    return any(fnmatch.fnmatchcase(case, pattern) for pattern in self.tests)


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


def read(reason: Any, red: Red, refuse: Refuse) -> list[Red]:
  """Reads a reason, or a table of reasons by release: one `Red` for each.

  Args:
    reason: what was written.
    red: what was written beside it.
    refuse: makes the error of a problem.
  """
  by_release = reason if isinstance(reason, dict) else {"": reason}
  texts = [red.bases, red.also, *by_release, *by_release.values()]
  if not all(isinstance(t, str) for t in texts) or not isinstance(
      red.api_missing, bool):
    raise refuse("wanted a reason, or a table of reasons by release, and "
                 "bases = '>=V', api_missing = True, also = 'FAMILY'")
  if red.also and red.also not in families.load():
    raise refuse(f"also = {red.also!r} is no family: wanted one of "
                 + ", ".join(families.load()))
  if not by_release:
    raise refuse("reason is an empty table")
  found = []
  for releases, words in by_release.items():
    check_reason(words, "", refuse)
    limits = ",".join(filter(None, (red.bases, releases)))
    keys.check_specifier(limits, refuse)
    found.append(dataclasses.replace(red, reason=words, bases=limits))
  for base in bases.all_bases():
    if sum(base.within(each.bases) for each in found) > 1:
      raise refuse(f"two reasons are for {base.version}, of "
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


def first(case: str, reds: Iterable[Red]) -> Red | None:
  """The expected failure that counts for a case: the first to name it."""
  return next((red for red in reds if red.names(case)), None)


def unmet(reds: Sequence[Red], cases: Iterable[str]) -> list[Red]:
  """The `reds` that no case has to meet, as others come before them."""
  every = list(cases)
  met = [first(case, reds) for case in every]
  return [r for r in reds if r not in met and any(map(r.names, every))]
