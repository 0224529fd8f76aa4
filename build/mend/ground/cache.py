# SPDX-License-Identifier: Apache-2.0
"""The folder that keeps downloads, sources, wheels and environments.

Everything in it is made in a scratch folder and moved into place when whole,
under a lock, so that a killed run leaves nothing that a later one would trust.
What a killed run did leave, later ones clear away; what lies here and has been
changed since it was made is found by its hash, and made again.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import errno
import hashlib
import os
import pathlib
import platform
import shutil
import tempfile
import time

import filelock
from mend.ground import bootstrap
from mend.ground.errors import MendError

_DAY = 24 * 3600.
_HASHES = ".sha256"


def folder(*parts: str) -> pathlib.Path:
  """A folder of the cache, made if need be."""
  path = bootstrap.cache_root().joinpath(*parts)
  try:
    path.mkdir(parents=True, exist_ok=True)
  except OSError as e:
    raise MendError(f"The cache folder {path} can't be made: {e}",
                    "name another: MEND_CACHE=DIR") from e
  return path


def _mark(pid: int) -> str:
  """The prefix of the scratch folders of a process of this machine."""
  return f".mend-{key(platform.node())[:6]}-{pid}-"


def _clear(parent: pathlib.Path) -> None:
  """Removes the scratch folders in `parent` that killed runs have left."""
  host = _mark(0)[:-2]
  for left in parent.glob(".mend-*-*-*"):
    pid = left.name.removeprefix(host).split("-")[0]
    try:
      here = left.name.startswith(host) and pid.isdigit()
      if here:
        os.kill(int(pid), 0)
      if time.time() - left.stat().st_mtime < _DAY:
        continue
    except ProcessLookupError:
      pass
    except OSError:  # another user's, or gone
      continue
    shutil.rmtree(left, ignore_errors=True)


def _scratch_folder() -> pathlib.Path:
  """The cache's own, or the system's where the cache can only be read."""
  path = bootstrap.cache_root() / "scratch"
  nearest = next(p for p in (path, *path.parents) if p.exists())
  if os.access(nearest, os.W_OK):
    return folder("scratch")
  return pathlib.Path(tempfile.gettempdir())


@contextlib.contextmanager
def scratch(parent: pathlib.Path | None = None) -> Iterator[pathlib.Path]:
  """A folder for the block; cleared away later if the process is killed."""
  parent = parent or _scratch_folder()
  _clear(parent)
  with tempfile.TemporaryDirectory(prefix=_mark(os.getpid()), dir=parent,
                                   ignore_cleanup_errors=True) as made:
    yield pathlib.Path(made)


def key(*parts: str) -> str:
  """A short name for anything made from `parts`."""
  return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


@contextlib.contextmanager
def lock(name: str) -> Iterator[None]:
  """Holds other runs of the tool back from `name`.

  Who may not write the lock's file can't write what it guards: a cache that
  can only be read, and has what is wanted, is enough.
  """
  held = filelock.FileLock(bootstrap.cache_root() / "locks" / f"{name}.lock")
  with contextlib.ExitStack() as stack:
    try:
      pathlib.Path(held.lock_file).parent.mkdir(parents=True, exist_ok=True)
      stack.callback(held.release)
      held.acquire()
    except OSError as e:
      if e.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
        raise
    yield


@contextlib.contextmanager
def whole(target: pathlib.Path) -> Iterator[pathlib.Path]:
  """A scratch path beside `target`, moved there only if the block succeeds."""
  target.parent.mkdir(parents=True, exist_ok=True)
  with scratch(target.parent) as near:
    made = near / target.name
    yield made
    if target.is_dir():
      shutil.rmtree(target)
    os.replace(made, target)


def bound(path: pathlib.Path, most: int) -> None:
  """Removes the files of a folder that were used longest ago, and empty ones.

  Args:
    path: the folder.
    most: the bytes that may stay.
  """
  found = []
  for file in path.rglob("*"):
    with contextlib.suppress(OSError):  # another run has removed it
      if file.is_file():
        about = file.stat()
        used = max(about.st_atime, about.st_mtime)
        found.append((used if about.st_size else 0., about.st_size, file))
  for used, size, file in sorted(found, reverse=True):
    most -= size
    if most < 0 or not used:
      file.unlink(missing_ok=True)


def sha256(path: pathlib.Path) -> str:
  digest = hashlib.sha256()
  with open(path, "rb") as handle:
    while chunk := handle.read(1 << 20):
      digest.update(chunk)
  return digest.hexdigest()


def _digest(path: pathlib.Path) -> str:
  """The hash of a file, or of a folder's file names and contents."""
  if path.is_file():
    return sha256(path)
  files = sorted(p for p in path.rglob("*") if p.is_file())
  return hashlib.sha256("".join(
      f"{p.relative_to(path)}\0{sha256(p)}\n" for p in files
      if "__pycache__" not in p.parts).encode()).hexdigest()


def remember(path: pathlib.Path) -> None:
  """Writes down what a finished file or folder of the cache holds."""
  with whole(path.with_name(path.name + _HASHES)) as made:
    made.write_text(_digest(path), encoding="utf-8")


def intact(path: pathlib.Path) -> bool:
  """True if the file or folder is there, as `remember` recorded it."""
  noted = path.with_name(path.name + _HASHES)
  return (path.exists() and noted.is_file()
          and noted.read_text(encoding="utf-8") == _digest(path))
