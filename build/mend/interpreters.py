"""Finds the Pythons of this machine; never downloads one.

`python3.N` on PATH may be a pyenv shim that only prints an error, so every
candidate is run before it is believed.
"""

from __future__ import annotations

from collections.abc import Iterator
import functools
import os
import pathlib
import shutil
import subprocess
import sys

from mend.bases import Base
from mend.errors import MendError

_MINORS = range(10, 20)
_ASK = "import sys, venv; print('%d.%d.%d' % sys.version_info[:3])"


def _candidates() -> Iterator[str]:
  yield from os.environ.get("MEND_PYTHONS", "").split(os.pathsep)
  yield getattr(sys, "_base_executable", None) or sys.executable
  home = pathlib.Path.home()
  pyenv = pathlib.Path(os.environ.get("PYENV_ROOT") or home / ".pyenv")
  uv = pathlib.Path(os.environ.get("UV_PYTHON_INSTALL_DIR")
                    or home / ".local/share/uv/python")
  for folder in (pyenv / "versions", uv):
    if folder.is_dir():
      for version in sorted(folder.iterdir(), reverse=True):
        yield str(version / "bin" / "python3")
  for minor in _MINORS:
    yield shutil.which(f"python3.{minor}") or ""


@functools.cache
def found() -> tuple[tuple[str, str], ...]:
  """(version, path) of each working CPython, in order of preference."""
  seen: dict[str, str] = {}
  tried = set()
  for path in _candidates():
    if not path or path in tried:
      continue
    tried.add(path)
    version = version_of(path)
    if version:
      seen.setdefault(version, path)
  return tuple(seen.items())


def version_of(path: str) -> str:
  """The version of the Python at `path`, or "" where there is none."""
  try:
    done = subprocess.run([path, "-I", "-c", _ASK], capture_output=True,
                          text=True, timeout=30, check=False)
  except (OSError, subprocess.TimeoutExpired):
    return ""
  return done.stdout.strip() if done.returncode == 0 else ""


def for_base(base: Base, wanted: str | None = None,
             lowest: bool = False) -> str:
  """The path of a Python that `base` supports.

  Args:
    base: the release.
    wanted: a version such as "3.12", or None for any: then the running
      Python's own if it fits, else the first found.
    lowest: take the oldest that fits, where none is wanted.

  Raises:
    MendError: there is none; names what was tried.
  """
  fits = [(v, p) for v, p in found() if base.supports(v)
          and (not wanted or (v + ".").startswith(wanted + "."))]
  if not fits:
    tried = ", ".join(f"{v} ({p})" for v, p in found()) or "none that runs"
    raise MendError(
        f"jax {base.version} needs Python {wanted or base.python}. Found: "
        f"{tried}. Looked at $MEND_PYTHONS, the running Python, pyenv's and "
        "uv's folders, and python3.N on PATH.",
        "install such a Python, or name one: MEND_PYTHONS=/path/to/python3")
  if lowest and not wanted:
    fits.sort(key=lambda vp: tuple(int(x) for x in vp[0].split(".")))
  return fits[0][1]
