"""The folder that keeps downloads, sources, wheels and environments.

Everything in it is made in a scratch folder and moved into place when whole,
under a lock, so that a killed run leaves nothing that a later one would trust.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import hashlib
import os
import pathlib
import shutil
import tempfile

from mend import bootstrap
from mend.errors import MendError


def folder(*parts: str) -> pathlib.Path:
  """A folder of the cache, made if need be."""
  path = bootstrap.cache_root().joinpath(*parts)
  try:
    path.mkdir(parents=True, exist_ok=True)
  except OSError as e:
    raise MendError(f"The cache folder {path} can't be made: {e}",
                    "name another: MEND_CACHE=DIR") from e
  return path


def key(*parts: str) -> str:
  """A short name for anything made from `parts`."""
  return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


@contextlib.contextmanager
def lock(name: str) -> Iterator[None]:
  """Holds other runs of the tool back from `name` (POSIX only)."""
  path = folder("locks") / f"{name}.lock"
  with open(path, "w", encoding="utf-8") as handle:
    try:
      import fcntl
    except ImportError:  # Windows: no other run is held back
      yield
      return
    fcntl.flock(handle, fcntl.LOCK_EX)
    yield


@contextlib.contextmanager
def whole(target: pathlib.Path) -> Iterator[pathlib.Path]:
  """A scratch path beside `target`, moved there only if the block succeeds."""
  target.parent.mkdir(parents=True, exist_ok=True)
  with tempfile.TemporaryDirectory(
      prefix=".mend-", dir=target.parent) as scratch:
    made = pathlib.Path(scratch) / target.name
    yield made
    if target.is_dir():
      shutil.rmtree(target)
    os.replace(made, target)


def sha256(path: pathlib.Path) -> str:
  digest = hashlib.sha256()
  with open(path, "rb") as handle:
    while chunk := handle.read(1 << 20):
      digest.update(chunk)
  return digest.hexdigest()
