# SPDX-License-Identifier: Apache-2.0
"""Applies the series to a source tree."""

from __future__ import annotations

from collections.abc import Container, Sequence
import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess

from mend.editing import edits, operations, patches, placing, splice, syntax
from mend.editing.edit import Edit
from mend.ground import cache
from mend.ground.errors import MendError
from mend.releases import bases
from mend.releases.bases import Base
from mend.trees import manifests

MANIFEST = manifests.FILE
_COMPILE = """
import sys
for path in sys.argv[1:]:
  source = open(path, encoding='utf-8').read()
  try:
    compile(source, path, 'exec', dont_inherit=True)
  except (SyntaxError, ValueError) as e:
    print(path, e, sep='\\t')
"""


@dataclasses.dataclass(frozen=True)
class Result:
  """A mended base: file name -> whole new text.

  Attributes:
    base: the release.
    edited: the files of upstream's that change.
    added: the files that are new.
    patches: the ids of the patches, in order.
    edits: how many were made.
    splices: those that make an edited Python file of the pristine one.
    version: of the wheel; one of some patches only is marked by its content.
  """
  base: Base
  edited: dict[str, str]
  added: dict[str, str]
  patches: tuple[str, ...]
  edits: int
  splices: dict[str, tuple[splice.Splice, ...]]
  version: str

  @property
  def files(self) -> dict[str, str]:
    return {**self.edited, **self.added}


read = placing.read


def write(path: pathlib.Path, text: str) -> None:
  path.parent.mkdir(parents=True, exist_ok=True)
  with open(path, "w", encoding="utf-8", newline="") as handle:
    handle.write(text)


def mended(series: Sequence[patches.Patch], base: Base, source: pathlib.Path,
           root: pathlib.Path = bases.ROOT, part: bool = False,
           only: Container[str] | None = None,
           checkout: pathlib.Path | None = None) -> Result:
  """Works out every edited and added file; writes nothing.

  Args:
    series: the patches; those for other bases are left out.
    base: the release that `source` is.
    source: its pristine tree (a folder with `jax/` in it).
    root: where the patches' modules lie.
    part: whether the series is not the project's whole one.
    only: make the edits of these files and no others.
    checkout: a git checkout of the same release, whose files other than
      Python's are edited instead (see `checkout.mended`).

  Raises:
    MendError: an edit's place is missing or not unique, two edits overlap, or
      a module stands where the base has one.
  """
  mine = patches.for_base(series, base)
  by_file = _by_file(mine, base, source, checkout, only)
  edited, splices = {}, {}
  for file, todo in by_file.items():
    place = source if todo[0].python else checkout or source
    edited[file], splices[file] = _edit_file(place, file, todo, base)
  added = _modules(mine, base, source, root)
  version = base.mended + (_part_of(edited, added) if part else "")
  added[MANIFEST] = manifests.text(base, mine, version)
  count = sum(bool(e.number) for todo in by_file.values() for e in todo)
  return Result(base, edited, added, tuple(p.id for p in mine), count, splices,
                version)


def _by_file(mine: Sequence[patches.Patch], base: Base, source: pathlib.Path,
             checkout: pathlib.Path | None,
             only: Container[str] | None) -> dict[str, list[Edit]]:
  """The edits of each file that is there, or must be."""
  found: dict[str, list[Edit]] = {}
  for edit in (e for p in mine for e in placing.with_imports(
      p, placing.placed(p, base, source))):
    place = source if edit.python else checkout or source
    if only is not None and edit.file not in only:
      continue
    if (place / edit.file).is_file() or not edit.optional:
      found.setdefault(edit.file, []).append(edit)
  order = placing.in_order if checkout else list
  return {file: order(placing.once(todo)) for file, todo in found.items()}


def _part_of(*texts: dict[str, str]) -> str:
  """The suffix of the version of a wheel that has some patches only."""
  text = json.dumps(texts, sort_keys=True)
  return f".p{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _modules(mine: Sequence[patches.Patch], base: Base, source: pathlib.Path,
             root: pathlib.Path) -> dict[str, str]:
  found = {}
  for patch in mine:
    for module in patch.modules:
      if (source / module).exists():
        raise MendError(
            f"patch {patch.id}: {module} already exists in jax {base.version}.",
            "rename the module, or limit the patch's `bases`")
      found[module] = read(root / module)
  return found


def _edit_file(source: pathlib.Path, file: str, todo: Sequence[Edit],
               base: Base) -> tuple[str, tuple[splice.Splice, ...]]:
  path = source / file
  if not path.is_file():
    raise MendError(
        f"{todo[0].label}, base {base.version}: there is no {file}.",
        "python3 build/build.py check shows every edit's state")
  def refuse(edit: Edit, found: syntax.NotFound) -> MendError:
    return MendError(
        f"{edit.label}, base {base.version}: wanted exactly one place; "
        f"found: {found}.",
        f"python3 build/build.py check --base={base.version}, then edit "
        f"patches/{edit.patch}.toml")

  try:
    return edits.apply(operations.parsed(read(path)), todo, refuse)
  except splice.Overlap as e:
    raise MendError(f"base {base.version}: two edits touch the same text: {e}.",
                    "make one of them smaller, or merge them") from e


def alone(result: Result, source: pathlib.Path,
          file: str) -> dict[str, str]:
  """An edited file as each of its edits alone makes it, by the edit's label."""
  text, found = read(source / file), {}
  for one in result.splices[file]:
    mine = [s for s in result.splices[file] if s.owner == one.owner]
    found[one.owner] = splice.apply(text, mine)
  return found


def check_syntax(result: Result, source: pathlib.Path, folder: pathlib.Path,
                 python: str) -> None:
  """Compiles the files below `folder` with the Python at `python`.

  tree-sitter reads broken Python without a word, so a real parser decides.

  Raises:
    MendError: one does not parse; names the edits that alone make it so.
  """
  bad = _unreadable([folder / name for name in result.files
                     if name.endswith(".py")], python)
  if not bad:
    return
  file = str(next(iter(bad)).relative_to(folder))
  edit = ""
  if file in result.splices:
    with cache.scratch() as scratch:
      paths: dict[pathlib.Path, str] = {}
      for label, text in alone(result, source, file).items():
        paths[scratch / str(len(paths)) / file] = label
        write([*paths][-1], text)
      edit = ", ".join(paths[p] for p in _unreadable([*paths], python))
  raise MendError(
      f"{edit or file}, base {result.base.version}: the edited file does not "
      f"parse: {next(iter(bad.values()))}",
      f"correct the `code` in {_home(edit)}")


def _home(label: str) -> str:
  """The file of the patch that an edit's label begins with."""
  found = re.match(r"patch ([^,]+),", label)
  return f"patches/{found[1]}.toml" if found else "the patches of that file"


def _unreadable(paths: Sequence[pathlib.Path],
                python: str) -> dict[pathlib.Path, str]:
  """The files that this Python can't parse, and why."""
  done = subprocess.run([python, "-I", "-W", "ignore", "-c", _COMPILE, *paths],
                        capture_output=True, text=True, check=True)
  found = (line.split("\t", 1) for line in done.stdout.splitlines())
  return {pathlib.Path(path): why for path, why in found}


def write_copy(result: Result, source: pathlib.Path, target: pathlib.Path,
               python: str) -> None:
  """Writes the whole mended tree to `target`, which must be new or empty."""
  require_empty(target)
  with _scratch(target) as made:
    shutil.copytree(source, made)
    for name, text in result.files.items():
      write(made / name, text)
    _tag_version(made, result)
    check_syntax(result, source, made, python)


def _scratch(
    target: pathlib.Path) -> contextlib.AbstractContextManager[pathlib.Path]:
  if target.is_dir():
    target.rmdir()
  try:
    target.parent.mkdir(parents=True, exist_ok=True)
  except OSError as e:
    raise MendError(f"The output folder {target} can't be made: {e}",
                    "name another: --output_path=DIR") from e
  return cache.whole(target)


def require_empty(target: pathlib.Path) -> None:
  if target.exists() and (not target.is_dir() or any(target.iterdir())):
    raise MendError(f"The output folder {target} is not empty.",
                    "name a new or empty one: --output_path=DIR")
  require_writable(target)


def require_writable(target: pathlib.Path) -> None:
  """Refuses a folder that can't be written, before any work is done."""
  existing = target
  while not existing.exists():
    existing = existing.parent
  if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
    raise MendError(f"The output folder {target} can't be written: {existing} "
                    "is no folder that you may write to.",
                    "name another: --output_path=DIR")


def _tag_version(folder: pathlib.Path, result: Result) -> None:
  """Puts the local version into the metadata, and only there.

  `jax.__version__` stays the base's: other packages parse it by hand.
  """
  tag = result.version.removeprefix(result.base.version)
  write(folder / "setup.cfg", f"[egg_info]\ntag_build = {tag}\ntag_date = 0\n")
