# SPDX-License-Identifier: Apache-2.0
"""Finds the Pythons of this machine; never downloads one.

What findpython lists (pyenv's, uv's, asdf's, those on PATH) may be a shim that
only prints an error, so every candidate is run before it is believed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import functools
import os
import pathlib
import subprocess
import sys

import findpython
from mend.ground.errors import MendError
from mend.releases.bases import Base

# No jaxlib is made for other implementations or for free-threaded builds.
_ASK = ("import sys, sysconfig, venv; "
        "sys.exit(sys.implementation.name != 'cpython' "
        "or bool(sysconfig.get_config_var('Py_GIL_DISABLED')) "
        "or print('%d.%d.%d' % sys.version_info[:3]))")


def _candidates() -> Iterator[str]:
  yield from os.environ.get("MEND_PYTHONS", "").split(os.pathsep)
  yield getattr(sys, "_base_executable", None) or sys.executable
  for kind in findpython.ALL_PROVIDERS.values():
    if provider := kind.create():
      yield from sorted((str(p.executable) for p in provider.find_pythons()),
                        reverse=True)


@functools.cache
def found() -> tuple[tuple[str, str], ...]:
  """(version, path) of each working CPython, in order of preference."""
  seen: dict[str, str] = {}
  tried = set()
  for path in _candidates():
    real = os.path.realpath(path)
    # Shims are slow, and the Pythons behind them are listed themselves.
    if not path or real in tried or pathlib.Path(path).parent.name == "shims":
      continue
    tried.add(real)
    version = version_of(path)
    if version:
      seen.setdefault(version, path)
  return tuple(seen.items())


def version_of(path: str) -> str:
  """The version of the CPython at `path`, or "" where there is none."""
  try:
    done = subprocess.run([path, "-I", "-c", _ASK], capture_output=True,
                          text=True, timeout=30, check=False)
  except (OSError, subprocess.TimeoutExpired):
    return ""
  return done.stdout.strip() if done.returncode == 0 else ""


def _fitting(base: Base, wanted: str | None = None) -> list[tuple[str, str]]:
  return [(v, p) for v, p in found() if base.supports(v)
          and (not wanted or (v + ".").startswith(wanted + "."))]


def _ordered(pair: tuple[str, str]) -> tuple[int, ...]:
  return tuple(int(x) for x in pair[0].split("."))


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
  fits = _fitting(base, wanted)
  if not fits:
    raise missing([base], wanted)
  return min(fits, key=_ordered)[1] if lowest and not wanted else fits[0][1]


def newer(base: Base) -> tuple[str, str] | None:
  """(version, path) of the newest Python for `base` beside the oldest."""
  fits = sorted(_fitting(base), key=_ordered)
  if not fits or _ordered(fits[0])[:2] == _ordered(fits[-1])[:2]:
    return None
  return fits[-1]


def split(chosen: Sequence[Base], wanted: str | None = None,
          ) -> tuple[list[Base], list[Base]]:
  """The bases that some Python of this machine supports, and the others."""
  here = [base for base in chosen if _fitting(base, wanted)]
  return here, [base for base in chosen if base not in here]


def missing(lacking: Sequence[Base], wanted: str | None = None) -> MendError:
  """The error for bases that no Python is found for."""
  tried = ", ".join(f"{v} ({p})" for v, p in found()) or "none that runs"
  needs = "; ".join(f"jax {b.version} needs Python {b.python}"
                    for b in lacking)
  also = f", and --python_version={wanted} was given" if wanted else ""
  return MendError(
      f"{needs}{also}. Found: {tried}. Looked at $MEND_PYTHONS, the running "
      "Python, pyenv's, uv's and asdf's folders, and PATH, for CPython with "
      "its lock.",
      "install such a Python (pyenv install, uv python install), or name one: "
      "MEND_PYTHONS=/path/to/python3")
