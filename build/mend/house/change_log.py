# SPDX-License-Identifier: Apache-2.0
"""CHANGELOG.md: its bullets, from the patches, and what they must be like."""

from __future__ import annotations

from collections.abc import Sequence
import datetime
import pathlib
import re
import textwrap

from mend.editing import patches
from mend.ground import report, repository
from mend.ground.errors import MendError
from mend.releases import bases

FILE = "CHANGELOG.md"
LONGEST = 300  # characters of an entry; more belongs on a page of docs/
UNRELEASED = "unreleased"
_KINDS = ("New features", "Bug fixes", "Changes", "Breaking changes")
_MARKED = re.compile(r"<!-- changes:.*?<!-- end changes -->", re.DOTALL)
_ENDS = re.compile(r"^  (?:\* |  ).*`([a-z0-9_]+/[a-z0-9_]+)`$", re.MULTILINE)
_WIDTH = 90  # as the pages
_SECTION = re.compile(r"^## mend\.(\d+)(?: \((.*)\))?$", re.MULTILINE)


def _words(patch: patches.Patch) -> tuple[str, str]:
  """The kind of a patch's entry and what it says.

  Raises:
    MendError: it does not start with a kind.
  """
  kind, _, words = patch.changelog.partition(":")
  if kind not in _KINDS or not words.strip():
    raise MendError(
        f"patch {patch.id}: changelog starts with {kind!r}, wanted one of "
        f"{', '.join(_KINDS)} and a colon.", f"edit patches/{patch.id}.toml")
  return kind, words.strip()


def bullets(series: Sequence[patches.Patch], log: str = "") -> str:
  """The bullets of the newest section, grouped by kind as in JAX's change log.

  Args:
    series: the patches.
    log: the change log. Patches that its other sections have are left out.

  Raises:
    MendError: a patch's `changelog` does not start with a kind.
  """
  grouped: dict[str, list[str]] = {kind: [] for kind in _KINDS}
  told = _ENDS.findall(_MARKED.sub("", log))
  for patch in series:
    kind, words = _words(patch)
    if patch.id in told:
      continue
    issues = ", ".join(i for i in patch.issues if i not in words)
    versions = bases.span(patch.bases)
    only = f" On {versions}." if versions else ""
    tail = f" ({issues})" if issues else ""
    grouped[kind].append(textwrap.fill(
        f"{words}{only}{tail} `{patch.id}`", _WIDTH, initial_indent="  * ",
        subsequent_indent="    ", break_long_words=False,
        break_on_hyphens=False))
  return "\n\n".join(f"* {kind}:\n\n" + "\n".join(lines)
                     for kind, lines in grouped.items() if lines)


def too_long(series: Sequence[patches.Patch]) -> list[str]:
  """The entries that are longer than a user reads."""
  sizes = [(patch.id, len(_words(patch)[1])) for patch in series]
  return [f"patches/{name}.toml: changelog has {size} characters, wanted at "
          f"most {LONGEST}; move details to a page of docs/"
          for name, size in sizes if size > LONGEST]


def misdated(text: str, release: int) -> list[str]:
  """A sentence for each section of a change log that is not as it should be.

  Args:
    text: of CHANGELOG.md.
    release: the N of the newest, which alone may be unreleased.
  """
  found = [(int(n), date or "") for n, date in _SECTION.findall(text)]
  wanted = [*range(release, 0, -1)]
  wrong = [f"{FILE}: mend.{n}: {date!r} is no date such as 'March 5, 2027'"
           for n, date in found
           if not (_is_date(date) or date == UNRELEASED and n == release)]
  if [n for n, _ in found] != wanted:
    wrong.append(f"{FILE} has sections of mend.N for N of "
                 f"{[n for n, _ in found]}, wanted {wanted}")
  return wrong


def _is_date(text: str) -> bool:
  try:
    datetime.datetime.strptime(text, "%B %d, %Y")
  except ValueError:
    return False
  return True


def good(root: pathlib.Path = bases.ROOT) -> bool:
  """True if every entry and section is as it should be; says which is not."""
  series = patches.load(root)
  wrong = [*too_long(series), *misdated(
      repository.text(root / FILE), bases.release())]
  for line in wrong:
    report.say(f"CHANGE LOG: {line}")
  report.say(f"change log: {len(series)} entries of at most {LONGEST} "
             f"characters, {len(wrong)} faults.")
  return bool(series) and not wrong
