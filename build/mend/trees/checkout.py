# SPDX-License-Identifier: Apache-2.0
"""A git checkout of jax: its tests, Bazel files and change log.

A source distribution has no tests, Bazel files or change log; a checkout has.
There, the series also brings its tests to upstream's folder (`test_files`) and
names its modules and tests to Bazel (`build_files`). Where it is asked for, its
bullets go into the change log's section for what is not released yet.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
import dataclasses
import pathlib
import re
import textwrap

from mend.editing import patches, placing
from mend.releases import bases
from mend.releases.bases import Base
from mend.trees import build_files, manifests, test_files, tree, wrapping

CHANGELOG = "CHANGELOG.md"
_UNRELEASED = "## Unreleased"


def tests(mine: Sequence[patches.Patch]) -> dict[str, tuple[str, ...]]:
  """The series' test files, each with the modules that it shares."""
  return {test: patch.test_helpers for patch in mine
          for test in (*patch.tests, *patch.unit_tests)}


def mended(series: Sequence[patches.Patch], base: Base, source: pathlib.Path,
           place: pathlib.Path, root: pathlib.Path = bases.ROOT,
           part: bool = False, only: Container[str] | None = None,
           changelog: bool = False) -> tree.Result:
  """Works out the edited and added files as commits on a checkout have them.

  Args:
    series: the patches; those for other bases are left out.
    base: the release that `source` is.
    source: its pristine tree.
    place: the checkout.
    root: where the patches' modules lie.
    part: whether the series is not the project's whole one.
    only: make the edits of these files and no others.
    changelog: whether the change log has a bullet for each patch.

  Raises:
    MendError: as `tree.mended`.
  """
  mine = patches.for_base(series, base)
  made = tree.mended(mine, base, source, root, part, only, place)
  kept = {f: wrapping.wrapped(
      t, tree.read((source if f.endswith(".py") else place) / f))
          for f, t in made.edited.items()}
  new = {**made.added, **test_files.texts(mine, root)}
  manifest = new.pop(manifests.FILE)
  last = {manifests.FILE: ""} if any(
      pathlib.PurePath(manifests.FILE).stem in t
      for f, t in made.added.items() if f != manifests.FILE) else {}
  kept.update(edited(mine, place, {**new, **last},
                     _importing(mine, base, source), root, changelog))
  return dataclasses.replace(made, edited=kept,
                             added={**new, manifests.FILE: manifest})


def _importing(mine: Sequence[patches.Patch], base: Base,
               source: pathlib.Path) -> list[tuple[str, str]]:
  """The code that edits add to modules outside of any definition, by file."""
  return [(e.file, e.code) for p in mine for e in placing.with_imports(
      p, placing.placed(p, base, source))
          if e.python and not e.scope and e.op in ("add_import", "append")]


def edited(mine: Sequence[patches.Patch], place: pathlib.Path,
           new: Mapping[str, str], importing: Iterable[tuple[str, str]],
           root: pathlib.Path, changelog: bool = False) -> dict[str, str]:
  """The checkout's Bazel files with the series in them.

  Args:
    mine: the patches for the base.
    place: the checkout.
    new: new file -> text, tests included.
    importing: file of upstream's -> code that is added to it.
    root: the folder of the project.
    changelog: whether the change log has a bullet for each patch.

  Returns:
    file name -> whole new text, of those files only that it has.
  """
  old = build_files.found_in(place)
  texts = build_files.edited(old, place, new, importing, test_files.every(root))
  log = place / CHANGELOG
  if changelog and log.is_file():
    text = tree.read(log)
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
