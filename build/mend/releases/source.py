# SPDX-License-Identifier: Apache-2.0
"""The pristine source of a base: fetched by name, verified by hash."""

from __future__ import annotations

import functools
import pathlib
import re
import shutil
import sys
import tarfile

from mend.ground import cache, process, report
from mend.ground.errors import MendError
from mend.releases.bases import BASES_FILE, Base


def sdist(base: Base) -> pathlib.Path:
  """The source distribution of `base`, downloaded once.

  Raises:
    MendError: pip can't get it, or its hash is not the pinned one.
  """
  target = cache.folder("sdists") / f"jax-{base.version}.tar.gz"
  with cache.lock(f"sdist-{base.version}"):
    if target.is_file() and cache.sha256(target) == base.sha256:
      return target
    with report.step(f"downloading the source of jax {base.version}"):
      with cache.scratch() as scratch:
        _download(base, scratch)
        found = scratch / target.name
        verify(found, base)
        found.replace(target)
  return target


def _download(base: Base, folder: pathlib.Path) -> None:
  wanted = folder / "requirements.txt"
  wanted.write_text(f"jax=={base.version} --hash=sha256:{base.sha256}\n",
                    encoding="utf-8")
  try:
    process.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps",
         "--no-binary", "jax", "--no-build-isolation",
         "--ignore-requires-python", "--require-hashes", "--dest", folder,
         "-r", wanted],
        env=process.same_packages(),
        what=f"Downloading jax {base.version} (sha256 {base.sha256}) with pip",
        next_step="check the network and pip's index settings (pip config "
        "list), then run the same command again")
  except MendError as e:
    if "DO NOT MATCH THE HASHES" not in e.what:
      raise
    got = re.search(r"\bGot\s+([0-9a-f]{64})", e.what)
    raise _wrong_hash(f"jax-{base.version}.tar.gz",
                      got[1] if got else "another", base) from e


def verify(archive: pathlib.Path, base: Base) -> None:
  if not archive.is_file():
    raise MendError(f"pip brought no {archive.name}.",
                    "run the same command again")
  got = cache.sha256(archive)
  if got != base.sha256:
    raise _wrong_hash(archive.name, got, base)


def _wrong_hash(name: str, got: str, base: Base) -> MendError:
  return MendError(
      f"{name} has the wrong hash: sha256 {got}, wanted {base.sha256}, of "
      "build/bases.toml.", "if that line of bases.toml was edited, restore it "
      f"(git -C {BASES_FILE.parent} checkout -- {BASES_FILE.name}); if not, do "
      "not use that file: it is from another index (pip config list)")


def pristine(base: Base) -> pathlib.Path:
  """The unpacked, unedited source of `base`; treat it as read-only."""
  return _pristine(base, cache.folder("sources"))


@functools.cache  # what it holds is compared once a run
def _pristine(base: Base, folder: pathlib.Path) -> pathlib.Path:
  archive = sdist(base)
  target = folder / f"jax-{base.version}-{base.sha256[:12]}"
  with cache.lock(f"source-{base.version}"):
    if cache.intact(target):
      return target
    with report.step(f"unpacking jax {base.version}"):
      with cache.whole(target) as made:
        unpack(archive, made)
      cache.remember(target)
  return target


def unpack(archive: pathlib.Path, target: pathlib.Path) -> None:
  """Unpacks an archive with one top folder to `target`."""
  with cache.scratch(target.parent) as scratch:
    with tarfile.open(archive) as tar:
      if sys.version_info >= (3, 12):
        tar.extractall(scratch, filter="data")
      else:
        tar.extractall(scratch)  # verified by hash before
    (top,) = scratch.iterdir()
    shutil.move(top, target)
  for path in target.rglob("*"):  # the archive's modes differ by base
    path.chmod(0o755 if path.is_dir() else 0o644)


def files(base: Base) -> set[pathlib.Path]:
  """The files of a release's package but version.py, which names it."""
  folder = pristine(base) / "jax"
  return {p.relative_to(folder) for p in folder.rglob("*")
          if p.is_file()} - {pathlib.Path("version.py")}


def differences(one: Base, other: Base) -> list[pathlib.Path]:
  """The files beside version.py in which two releases differ."""
  sides = [pristine(base) / "jax" for base in (one, other)]
  return [name for name in sorted(files(one) | files(other))
          if not all((side / name).is_file() for side in sides)
          or len({(side / name).read_bytes() for side in sides}) > 1]
