# SPDX-License-Identifier: Apache-2.0
"""The table at the end of each page: its patches, and their files.

A family's first page has those of its patches that `about` in families.toml
doesn't give to another, so that each patch stands on one page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import pathlib
import re

from mend.editing import families, patches
from mend.ground import report
from mend.ground.errors import MendError

PART = "sources"
_IMPORT = re.compile(r"^from ([\w.]+) import (\w+)", re.MULTILINE)


def by_page(series: Sequence[patches.Patch],
            known: Mapping[str, families.Family]
            ) -> dict[str, list[patches.Patch]]:
  """The patches of each page, in the order of the series.

  Raises:
    MendError: families.toml gives a page what is no patch or no page of the
      family, or one patch to two pages.
  """
  found: dict[str, list[patches.Patch]] = {}
  for family in known.values():
    mine = {p.id: p for p in series if families.of(p.id) == family.name}
    found.update((page, []) for page in family.pages)
    for page, names in family.about.items():
      for name in names:
        patch = mine.pop(f"{family.name}/{name}", None)
        if patch is None or page not in family.pages:
          raise MendError(
              f"{families.FILE}: {family.name}: {page} is said to be about "
              f"{name}. Expected: a page and a patch of the family, once.",
              f"edit {families.FILE}")
        found[page].append(patch)
    found[family.pages[0]] += mine.values()
  position = {p.id: i for i, p in enumerate(series)}
  return {page: sorted(those, key=lambda p: position[p.id])
          for page, those in found.items()}


def table(page: str, those: Sequence[patches.Patch]) -> str:
  """A row for each patch: what it is in, what tests it, what reports it."""
  up = "../" * page.count("/")

  def links(files: Sequence[str]) -> str:
    return ", ".join(f"[{pathlib.PurePosixPath(f).stem}]({up}{f})"
                     for f in files)

  return report.table(("patch", "modules", "tests", "reports"), [
      (f"[{p.id.partition('/')[2]}]({up}patches/{p.id}.toml)",
       links(modules(p)), links(p.tests), ", ".join(p.issues))
      for p in those])


def modules(patch: patches.Patch) -> list[str]:
  """The modules called by a patch's edits, or else those it adds."""
  called = [f"{package.replace('.', '/')}/{module}.py"
            for edit in patch.edits for line in edit.imports
            for package, module in _IMPORT.findall(line)]
  added = [m for m in patch.modules
           if not m.startswith(f"{families.GROUND_FLOOR}/")
           and not m.endswith("/__init__.py")]
  return list(dict.fromkeys(called or added))


def parts(series: Sequence[patches.Patch],
          known: Mapping[str, families.Family]) -> list[tuple[str, str, str]]:
  """The page, the part's name and its text, of each page."""
  return [(page, PART, table(page, those))
          for page, those in by_page(series, known).items()]
