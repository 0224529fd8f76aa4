# SPDX-License-Identifier: Apache-2.0
"""The patches touched by a change, by its files."""

from __future__ import annotations

from collections.abc import Sequence

from mend.editing import patches
from mend.ground import process
from mend.ground.errors import MendError
from mend.releases import bases


def since(revision: str) -> frozenset[str]:
  """The files changed since a branch left `revision`.

  None for the zeros that stand for no revision where a branch is new.

  Raises:
    MendError: the revision isn't in this clone.
  """
  if not revision.strip("0"):
    return frozenset()
  try:
    text = process.run(
        ["git", "-C", bases.ROOT, "diff", "--name-only", f"{revision}..."],
        what="Comparing with " + revision, next_step="git fetch")
  except MendError as e:
    raise MendError(f"--since={revision}: {e.what}", "a revision that this "
                    "clone has: git fetch, or git log") from e
  return frozenset(text.splitlines())


def touched(series: Sequence[patches.Patch],
            files: frozenset[str]) -> frozenset[str]:
  """The ids of the patches whose edits, modules or tests are among files."""
  return frozenset(
      p.id for p in series if not files.isdisjoint(
          (f"patches/{p.id}.toml", *p.modules, *p.tests, *p.unit_tests)))
