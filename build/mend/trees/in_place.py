# SPDX-License-Identifier: Apache-2.0
"""Edits an existing source tree, such as a git checkout: all of it or nothing.

The new files are written and parsed beside the tree first. Then each takes its
place, with what stood there kept until all do; if one can't, or the process is
killed in between, all that was there is put back (by the next run, then).
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil

from mend.ground import cache, report
from mend.ground.errors import MendError
from mend.releases.bases import Base
from mend.trees import tree
from mend.trees.tree import MANIFEST, Result

_COMMIT = re.compile(r"^_git_hash\b.*['\"]([0-9a-f]{40})['\"]", re.MULTILINE)
_STAGED = ".mend-staged"
_UNDO = ".mend-undo"  # in the tree: what it was, until all files are in place
_NEW = "added.json"  # in there: the files that were not there before


def release_commit(base: Base, pristine: pathlib.Path) -> str:
  """The commit that the release was made from; not each has a tag.

  Newer source distributions have its hash in their jax/version.py.
  """
  file = pristine / "jax" / "version.py"
  found = _COMMIT.search(tree.read(file)) if file.is_file() else None
  return f"the tag jax-v{base.version}" + (
      f" (commit {found[1]})" if found else "")


def require_pristine(result: Result, pristine: pathlib.Path,
                     target: pathlib.Path) -> None:
  """Refuses a tree that is mended, or whose files are not the base's own."""
  if not (target / "jax" / "version.py").is_file():
    raise MendError(f"{target} is no jax source tree: it has no "
                    "jax/version.py.",
                    "name the folder that holds jax/: --tree=DIR")
  if (target / MANIFEST).exists():
    raise MendError(
        f"{target} is already mended: it has {MANIFEST}.",
        "start from an unmodified tree (git stash -u, git checkout)")
  _require_inside(result, target)
  other = [name for name in result.edited
           if not (target / name).is_file()
           or (pristine / name).is_file()
           and tree.read(target / name) != tree.read(pristine / name)]
  other += [name for name in result.added if (target / name).exists()]
  if other:
    more = f" and {len(other) - 1} more" if len(other) > 1 else ""
    raise MendError(
        f"{target} is not an unmodified jax {result.base.version}: "
        f"{other[0]}{more} differs from the release's.",
        f"check out {release_commit(result.base, pristine)}, or name the base "
        "that the tree is: --base=V; for a checkout of no base, such as main: "
        "export --candidate=DIR")


def _require_inside(result: Result, target: pathlib.Path) -> None:
  """Refuses to write through a symbolic link to somewhere else."""
  top = target.resolve()
  for name in result.files:
    led = (target / name).resolve()
    if not led.is_relative_to(top):
      raise MendError(
          f"{target / name} leads out of the tree, to {led}, by a symbolic "
          "link; nothing was written.",
          "replace the link by the files themselves, or name another tree: "
          "--tree=DIR")


def write(result: Result, pristine: pathlib.Path, target: pathlib.Path,
               python: str) -> None:
  """Writes the edits onto an existing, unmodified tree.

  Raises:
    MendError: the tree is already mended, a file that is to be edited is not
      the base's own, or one can't be written; the tree is as it was then.
  """
  restore(target)
  require_pristine(result, pristine, target)
  tree.require_writable(target)
  try:
    with cache.whole(target / _STAGED) as staged:
      for name, text in result.files.items():
        tree.write(staged / name, text)
      tree.check_syntax(result, pristine, staged, python)
    _keep(result, target)
    # The manifest goes last: it is what says that the tree is mended.
    for name in sorted(result.files, key=lambda n: n == MANIFEST):
      (target / name).parent.mkdir(parents=True, exist_ok=True)
      os.replace(target / _STAGED / name, target / name)
    shutil.rmtree(target / _UNDO)
  except OSError as e:
    restore(target)
    raise MendError(f"{target} can't be written ({e}); it is as it was.",
                    "see that its files may be written and the disk has room, "
                    "then run the same command again") from e
  except BaseException:
    restore(target)
    raise
  finally:
    shutil.rmtree(target / _STAGED, ignore_errors=True)


def _keep(result: Result, target: pathlib.Path) -> None:
  """Copies what is about to change to where `restore` finds it."""
  with cache.whole(target / _UNDO) as undo:
    for name in result.edited:
      (undo / name).parent.mkdir(parents=True, exist_ok=True)
      shutil.copy2(target / name, undo / name)
    tree.write(undo / _NEW, json.dumps(sorted(result.added)))


def restore(target: pathlib.Path) -> None:
  """Puts back what a run that did not end has changed; else does nothing."""
  undo = target / _UNDO
  if not undo.is_dir():
    return
  for name in json.loads(tree.read(undo / _NEW)):
    path = target / name
    path.unlink(missing_ok=True)
    while path.parent != target and path.parent.is_dir() and not any(
        path.parent.iterdir()):  # a folder that we had made
      path = path.parent
      path.rmdir()
  for kept in undo.rglob("*"):
    if kept.is_file() and kept.name != _NEW:
      shutil.copy2(kept, target / kept.relative_to(undo))
  shutil.rmtree(undo)
  shutil.rmtree(target / _STAGED, ignore_errors=True)
  report.say(f"{target} is as it was before a run that did not end.")
