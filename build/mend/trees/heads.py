# SPDX-License-Identifier: Apache-2.0
"""Heads of files: a line here, a notice in what is to be upstream's.

Each file of ours names its licence in one line (SPDX). Upstream's own open with
the notice at the end of the licence, and its check wants that of new files, so
a commit that is made for upstream has it in the line's place.
"""

from __future__ import annotations

from mend.releases import bases

LINE = "# SPDX-License-Identifier: Apache-2.0\n"
_OWNER = "Copyright 2026 The JAX Authors."


def notice() -> str:
  """The notice, as comments, from the appendix of LICENSE."""
  text = (bases.ROOT / "LICENSE").read_text(encoding="utf-8")
  _, _, rest = text.rpartition("[name of copyright owner]\n")
  lines = [line.removeprefix("   ") for line in rest.splitlines()]
  return "".join(f"# {line}".rstrip() + "\n" for line in [_OWNER, *lines])


def for_upstream(text: str) -> str:
  """The text of a file, with the notice if it opens with our line."""
  if not text.startswith(LINE):
    return text
  return notice() + text.removeprefix(LINE)
