# SPDX-License-Identifier: Apache-2.0
"""The generated part of docs/upstream.md: what upstream can have of each patch.

From the patches' `[upstream]` tables; nothing is run.
"""

from __future__ import annotations

from collections.abc import Sequence
import pathlib

from mend.editing import families, patches, sendable
from mend.editing.patches import Patch
from mend.ground import pages, report
from mend.ground.errors import MendError
from mend.releases import bases

PAGE = "docs/upstream.md"
_NAME = "upstream"


def tables(series: Sequence[Patch], known: dict[str, families.Family]) -> str:
  """Sections: what can be sent, what needs a discussion, and what stays.

  Raises:
    MendError: a patch says nothing of upstream.
  """
  silent = [p.id for p in series if not p.upstream.verdict]
  if silent:
    raise MendError(f"{', '.join(silent)}: [upstream] has no `sendable`.",
                    "docs/patches.md says what it may be")
  parts = [_section(sendable.SENDABLE, _sent(series))]
  parts += [_section(verdict, "\n\n".join(
      f"### {name}\n\n" + report.table(("patch", "why"), rows)
      for name in known if (rows := _rows(series, name, verdict))))
            for verdict in (sendable.DISCUSS, sendable.FORK)]
  return "\n\n".join(parts)


def _section(verdict: str, body: str) -> str:
  return f"## {verdict[0].upper()}{verdict[1:]}\n\n{body}"


def _sent(series: Sequence[Patch]) -> str:
  rows = []
  for patch in series:
    if (commit := patch.upstream.commit) is not None:
      closes = ", ".join(f"jax#{issue}" for issue in commit.closes)
      rows.append((f"`{patch.id}`", commit.title, closes or "-",
                   patch.upstream.pr or patch.upstream.status))
  return report.table(("patch", "commit", "ends", "state"), rows)


def _rows(series: Sequence[Patch], family: str,
          verdict: str) -> list[tuple[str, str]]:
  return [(f"`{p.id}`", p.upstream.why) for p in series
          if families.of(p.id) == family and p.upstream.verdict == verdict]


def counted(series: Sequence[Patch]) -> str:
  """README's sentence that counts them."""
  n = {verdict: sum(p.upstream.verdict == verdict for p in series)
       for verdict in (sendable.SENDABLE, sendable.DISCUSS, sendable.FORK)}
  return (f"Of the {len(series)} patches, {n[sendable.SENDABLE]} can be sent "
          f"to upstream, {n[sendable.DISCUSS]} need a discussion\nfirst, and "
          f"{n[sendable.FORK]} are for the fork only ([list]({PAGE})).")


def _parts(root: pathlib.Path) -> list[tuple[pathlib.Path, str]]:
  series = patches.load(root)
  return [(root / "README.md", counted(series)),
          (root / PAGE, tables(series, families.load(root)))]


def write(root: pathlib.Path = bases.ROOT) -> None:
  """Rewrites README's sentence and the generated part of the page."""
  for path, body in _parts(root):
    text = path.read_text(encoding="utf-8")
    path.write_text(pages.replace_between(text, _NAME, body), encoding="utf-8")
    report.say(f"wrote {_NAME} in {path.relative_to(root)}")


def stale(root: pathlib.Path = bases.ROOT) -> list[str]:
  """The pages that no longer match the patches."""
  found = []
  for path, body in _parts(root):
    text = path.read_text(encoding="utf-8")
    if pages.replace_between(text, _NAME, body) != text:
      found.append(f"{path.relative_to(root)}: its {_NAME} does not match "
                   "[upstream] of patches/*.toml")
  return found
