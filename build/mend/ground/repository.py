"""The files of the project itself."""

from __future__ import annotations

import pathlib
import subprocess


def files(root: pathlib.Path) -> list[pathlib.Path]:
  """The files that git tracks, or would; every file outside a checkout."""
  done = subprocess.run(
      ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
      cwd=root, capture_output=True, text=True, check=False)
  if done.returncode == 0 and (root / ".git").exists():
    paths = [root / name for name in done.stdout.split("\0") if name]
  else:
    paths = [p for p in root.rglob("*") if "__pycache__" not in p.parts]
  return sorted(p for p in paths if p.is_file())
