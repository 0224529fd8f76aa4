# SPDX-License-Identifier: Apache-2.0
"""The startup file of an environment, which only `enable` writes.

Python reads it at each start: `.pth` now, `.start` from Python 3.15 on, where
the lines of a `.pth` with the same name are then left alone.
"""

from __future__ import annotations

import os
import site
import sys

from jax_mend import active, asked
from jax_mend.errors import NotApplied

NAME = "jax_mend_startup"
_HEAD = "# jax_mend: python -m jax_mend disable removes this file\n"
# Where the package has been uninstalled, jax is as it is installed, and the
# first import of it says so: nothing else would.
_PROGRAM = """\
import os, sys
class _Gone:
  def find_spec(self, name, path=None, target=None):
    if name == "jax":
      sys.meta_path.remove(self)
      if sys.stderr and not os.environ.get("JAX_MEND_QUIET"):
        print("jax-mend: it was uninstalled, so jax is not mended; remove what "
              "`enable` left: " + %(path)a, file=sys.stderr)
try:
  import %(name)s
except ModuleNotFoundError:
  if os.environ.get("JAX_MEND", "").lower() not in %(off)r:
    sys.meta_path.insert(0, _Gone())
else:
  %(name)s.enabled()
"""


def _text(path: str, words: str) -> str:
  """The content of the startup file at `path`, for the patches of `words`."""
  if path.endswith(".start"):
    stored = f"{asked.STORED}{words}\n" if words else ""
    return f"{_HEAD}{stored}{NAME}:enabled\n"
  program = _PROGRAM % {"path": path, "name": NAME,
                        "off": asked.OFF}
  # In a scope of its own: what it names is in every Python's `site` else.
  return f"{_HEAD}import sys; exec({ascii(program)}, {{}})\n"


def _folder() -> str:
  """The folder that this package is installed in.

  Raises:
    NotApplied: Python looks for no startup files there.
  """
  here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
  sites = [*site.getsitepackages(), site.getusersitepackages()]
  if os.path.realpath(here) not in [os.path.realpath(s) for s in sites]:
    raise NotApplied(f"jax_mend lies in {here}, where Python reads no startup "
                     "file.", f"{sys.executable} -m pip install ./live in a "
                     "checkout of the project, or pip install "
                     "'git+URL#subdirectory=live'")
  return here


def _paths(folder: str) -> list[str]:
  return [os.path.join(folder, NAME + end) for end in (".pth", ".start")]


def is_enabled() -> bool:
  try:
    return any(os.path.exists(path) for path in _paths(_folder()))
  except NotApplied:
    return False


def enable(words: str = "") -> int:
  """Writes the startup file, if jax can be mended here.

  Args:
    words: those that choose patches; "" for all of them.
  """
  with asked.instead(words):
    active.activate()
  for path in _paths(_folder()):
    try:
      with open(path, "w", encoding="utf-8") as handle:
        handle.write(_text(path, words))
    except OSError as e:
      raise NotApplied(f"{path} can't be written: {e}.", "run it as the owner "
                       "of the environment, or use python -m jax_mend run"
                       ) from e
    print(f"wrote {path}")
  part = f", {words} of it" if words else ""
  print("Every Python of this environment now mends jax as it is imported"
        f"{part}.\n"
        f"To take it back, and before pip uninstall: {sys.executable} -m "
        "jax_mend disable")
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
