# SPDX-License-Identifier: Apache-2.0
"""Waits for `import jax`, then turns jax_mend on; costs nothing until then.

For what starts before a program does: the startup file that
`python -m jax_mend enable` writes, and child processes.
"""

from __future__ import annotations

import os
import sys
from typing import Any


class _Refused:
  """A loader that says why jax is not mended: to find is not yet to import."""

  def __init__(self, error: ImportError):
    self._error = error

  def create_module(self, spec: Any) -> None:
    return None

  def exec_module(self, module: Any) -> None:
    raise self._error


class _Waiting:
  """Stands on `sys.meta_path` until jax is asked for."""

  def __init__(self, announce: bool):
    self._announce = announce

  def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
    if name != "jax":
      return None
    try:
      from jax_mend import active
      active.activate()
      finder = active.finder()
    except ImportError as e:
      from importlib import machinery
      return machinery.ModuleSpec(name, _Refused(e))  # type: ignore
    if self in sys.meta_path:
      sys.meta_path.remove(self)
    if finder is None:
      return None
    if self._announce:
      _say(f"jax {finder.table.base} is mended as it is imported: "
           f"{finder.table.described()} (python -m jax_mend status); "
           "JAX_MEND=0 turns it off")
    return finder.find_spec(name, path, target)


def _say(text: str) -> None:
  """Prints a line once, not in every process that this one starts."""
  if sys.stderr is not None and not os.environ.get("JAX_MEND_QUIET"):
    print(f"jax-mend: {text}", file=sys.stderr)
  os.environ["JAX_MEND_QUIET"] = "1"


def start(announce: bool = False) -> None:
  """Turns jax_mend on at the first import of jax.

  Raises:
    ImportError: jax has been imported already.
  """
  folder = os.environ.pop("JAX_MEND_RECORD", None)  # not in its children
  _start(announce)
  if folder:
    from jax_mend import recorder
    recorder.start(folder)


def _start(announce: bool) -> None:
  if os.environ.get("JAX_MEND") == "0" or any(  # active knows other words
      isinstance(f, _Waiting) for f in sys.meta_path):
    return
  if "jax" in sys.modules:
    from jax_mend import active  # raises: it is too late, unless jax is mended
    del active
  else:
    sys.meta_path.insert(0, _Waiting(announce))


def enabled() -> None:
  """Turns jax-mend on aloud: called by the startup file."""
  start(announce=True)
