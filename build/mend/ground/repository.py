# SPDX-License-Identifier: Apache-2.0
"""The files of the project itself."""

from __future__ import annotations

import fnmatch
import pathlib
import subprocess

from mend.ground.errors import MendError


def text(path: pathlib.Path) -> str:
  """The text of a file of the project, line ends included.

  Raises:
    MendError: it is not there, or no UTF-8.
  """
  back = f"restore it: git -C {path.parent} checkout -- {path.name}"
  try:
    return path.read_bytes().decode("utf-8")
  except FileNotFoundError as e:
    raise MendError(f"There is no file {path}.", back) from e
  except UnicodeDecodeError as e:
    raise MendError(f"{path} is no UTF-8 text: {e.reason} at byte {e.start}.",
                    f"save it as UTF-8, or {back}") from e


def files(root: pathlib.Path) -> list[pathlib.Path]:
  """The files that git tracks, or would; without git, those not ignored."""
  listed = _tracked(root) if (root / ".git").exists() else None
  if listed is None:
    listed = _walked(root, _ignored(root))
  return sorted(p for p in listed if p.is_file())


def _tracked(root: pathlib.Path) -> list[pathlib.Path] | None:
  """The files as git lists them; None where git can't read the checkout."""
  try:
    done = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard",
         "-z"], cwd=root, capture_output=True, text=True, check=False)
  except FileNotFoundError:
    return None
  if done.returncode:
    return None
  return [root / name for name in done.stdout.split("\0") if name]


def _ignored(root: pathlib.Path) -> list[str]:
  path = root / ".gitignore"
  text = path.read_text(encoding="utf-8") if path.is_file() else ""
  return [".git/", *(line for line in text.splitlines()
                     if line and not line.startswith("#"))]


def _walked(root: pathlib.Path, ignored: list[str]) -> list[pathlib.Path]:
  """The files that a .gitignore as simple as ours doesn't ignore."""
  found = []
  for path in root.rglob("*"):
    parts = path.relative_to(root).parts
    if not any(_matches(parts, line) for line in ignored):
      found.append(path)
  return found


def _matches(parts: tuple[str, ...], line: str) -> bool:
  wanted = line.strip("/")
  if "/" in line.rstrip("/"):  # from the root, and all that lies below
    return any(fnmatch.fnmatch("/".join(parts[:n]), wanted)
               for n in range(1, len(parts) + 1))
  return any(fnmatch.fnmatch(part, wanted) for part in parts)
