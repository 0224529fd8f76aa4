# SPDX-License-Identifier: Apache-2.0
"""Frozen lines of releases: proven as they are, mended no further.

A family of patches/families.toml that is about one line says so (`frozen`), and
how many patches that line has (`most_patches`): none is added to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mend.editing import families, patches
from mend.ground import report
from mend.releases import bases


def lines(known: Mapping[str, families.Family]) -> set[str]:
  """The letters of the lines that are frozen."""
  return {f.frozen for f in known.values() if f.frozen}


def faults(series: Sequence[patches.Patch],
           known: Mapping[str, families.Family]) -> list[str]:
  """A sentence for each frozen line that has more patches than it had."""
  found = []
  for family in known.values():
    if not family.frozen:
      continue
    releases = [b for b in bases.releases() if b.line == family.frozen]
    count = sum(any(b.within(p.bases) for b in releases) for p in series)
    if not releases or not count:
      found.append(f"{families.FILE}: {family.name}: frozen = "
                   f"{family.frozen!r} is no line that a patch is for")
    elif count > family.most_patches:
      found.append(
          f"line {family.frozen} is frozen with {family.most_patches} patches, "
          f"and {count} apply to it: a new one begins after "
          f"{releases[-1].version}")
  return found


def good(series: Sequence[patches.Patch],
         known: Mapping[str, families.Family]) -> bool:
  """True if no patch is added to a frozen line; says which line has one."""
  wrong = faults(series, known)
  for line in wrong:
    report.say(f"FROZEN: {line}")
  report.say(f"Frozen lines: {', '.join(sorted(lines(known))) or 'none'}; "
             f"{len(series)} patches looked at, {len(wrong)} faults.")
  return bool(series) and not wrong
