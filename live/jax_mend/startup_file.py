"""The startup file of an environment, which only `enable` writes.

Python reads it at each start: `.pth` now, `.start` from Python 3.15 on, where
the lines of a `.pth` with the same name are then left alone.
"""

from __future__ import annotations

import os
import site
import sys

from jax_mend import active
from jax_mend.errors import NotApplied

NAME = "jax_mend_startup"
# Does nothing where the package has been uninstalled.
_TEXTS = {
    ".pth": ("# jax_mend: python -m jax_mend disable removes this file\n"
             f"import sys; exec('try:\\n  import {NAME}\\nexcept "
             f"ModuleNotFoundError:\\n  pass\\nelse:\\n  {NAME}.enabled()')\n"),
    ".start": (f"# jax_mend: python -m jax_mend disable removes this file\n"
               f"{NAME}:enabled\n"),
}


def _folder() -> str:
  """The folder that this package is installed in.

  Raises:
    NotApplied: Python looks for no startup files there.
  """
  here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
  sites = [*site.getsitepackages(), site.getusersitepackages()]
  if os.path.realpath(here) not in [os.path.realpath(s) for s in sites]:
    raise NotApplied(f"jax_mend lies in {here}, where Python reads no startup "
                     "file.", f"{sys.executable} -m pip install jax-mend into "
                     "the environment")
  return here


def _paths(folder: str) -> list[str]:
  return [os.path.join(folder, NAME + suffix) for suffix in _TEXTS]


def is_enabled() -> bool:
  try:
    return any(os.path.exists(path) for path in _paths(_folder()))
  except NotApplied:
    return False


def enable() -> int:
  """Writes the startup file, if jax can be mended here."""
  active.activate()
  for path, text in zip(_paths(_folder()), _TEXTS.values()):
    try:
      with open(path, "w", encoding="utf-8") as handle:
        handle.write(text)
    except OSError as e:
      raise NotApplied(f"{path} can't be written: {e}.", "run it as the owner "
                       "of the environment, or use python -m jax_mend run"
                       ) from e
    print(f"wrote {path}")
  print("Every Python of this environment now mends jax as it is imported.\n"
        f"To take it back: {sys.executable} -m jax_mend disable")
  return 0


def disable() -> int:
  """Removes what `enable` wrote."""
  removed = [path for path in _paths(_folder()) if os.path.exists(path)]
  for path in removed:
    try:
      os.unlink(path)
    except OSError as e:
      raise NotApplied(f"{path} can't be removed: {e}.",
                       "remove it as the owner of the environment") from e
    print(f"removed {path}")
  if not removed:
    print("Nothing to remove: it was not enabled.")
  return 0
