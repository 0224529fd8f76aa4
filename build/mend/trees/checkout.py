# SPDX-License-Identifier: Apache-2.0
"""A git checkout of jax: its tests, Bazel files and change log.

A source distribution has no tests, Bazel files or change log; a checkout has.
There, the series also brings its tests to upstream's folder (`test_files`) and
names its modules and tests to Bazel (`build_files`). Where it is asked for, its
bullets go into the change log's section for what is not released yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
import pathlib
import re
import textwrap

from mend.editing import patches
from mend.trees import build_files, test_files

CHANGELOG = "CHANGELOG.md"
_UNRELEASED = "## Unreleased"


def tests(mine: Sequence[patches.Patch]) -> dict[str, tuple[str, ...]]:
  """The series' test files, each with the modules that it shares."""
  return {test: patch.test_helpers for patch in mine
          for test in (*patch.tests, *patch.unit_tests)}


def edited(mine: Sequence[patches.Patch], tree: pathlib.Path,
           new: Mapping[str, str], importing: Iterable[tuple[str, str]],
           root: pathlib.Path, changelog: bool = False) -> dict[str, str]:
  """The checkout's Bazel files with the series in them.

  Args:
    mine: the patches for the base.
    tree: the checkout.
    new: new file -> text, tests included.
    importing: file of upstream's -> code that is added to it.
    root: the folder of the project.
    changelog: whether the change log has a bullet for each patch.

  Returns:
    file name -> whole new text, of those files only that the tree has.
  """
  old = build_files.found_in(tree)
  texts = build_files.edited(old, tree, new, importing, test_files.every(root))
  log = tree / CHANGELOG
  if changelog and log.is_file():
    with open(log, encoding="utf-8", newline="") as handle:
      text = handle.read()
    for patch in mine:
      if patch.upstream.status != "fork-only":
        text = add_bullet(text, patch.changelog)
    texts[CHANGELOG] = text
  return {name: text for name, text in texts.items() if text != old.get(name)}


def add_bullet(log: str, changelog: str) -> str:
  """Puts `Kind: words` as a bullet under what is not released yet."""
  kind, _, words = changelog.partition(":")
  first = re.search(r"^## ", log, re.MULTILINE)
  at = first.start() if first else len(log)
  if not log[at:].startswith(_UNRELEASED):
    log = f"{log[:at]}{_UNRELEASED}\n\n{log[at:]}"
  begin = at + len(_UNRELEASED)
  following = re.compile(r"^## ", re.MULTILINE).search(log, begin)
  stop = following.start() if following else len(log)
  section = log[begin:stop].rstrip()
  bullet = textwrap.fill(
      words.strip(), width=80, initial_indent="  * ",
      subsequent_indent="    ", break_long_words=False,
      break_on_hyphens=False)
  head = re.search(rf"^\* {re.escape(kind)}:?[ ]*$", section,
                   re.MULTILINE | re.IGNORECASE)
  if head is None:
    section += f"\n\n* {kind}\n{bullet}"
  else:
    after = re.compile(r"^\* ", re.MULTILINE).search(section, head.end())
    end = len(section[:after.start()].rstrip()) if after else len(section)
    section = f"{section[:end]}\n{bullet}{section[end:]}"
  return f"{log[:begin]}{section}\n\n{log[stop:]}"
