# SPDX-License-Identifier: Apache-2.0
"""Keeps byte code, and the text it comes from, in the user's cache folder.

A folder for each table; in it byte code for each interpreter, and the text
that runs, for debuggers and editors to show. Nothing read from here decides
what runs but byte code that has this interpreter's magic number and file name.
Where the folder can't be written, everything works without it.
"""

from __future__ import annotations

from importlib import util
import marshal
import os
import sys
import tempfile
import types


def root() -> str:
  """`$JAX_MEND_CACHE`, or jax-mend in the user's cache folder."""
  named = os.environ.get("JAX_MEND_CACHE")
  if named:
    return os.path.abspath(os.path.expanduser(named))
  home = os.path.expanduser("~")
  if not os.path.isabs(home):  # no home at all
    home = tempfile.gettempdir()
  if sys.platform == "win32":
    base = os.environ.get("LOCALAPPDATA") or home
  elif sys.platform == "darwin":
    base = os.path.join(home, "Library", "Caches")
  else:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(home, ".cache")
  return os.path.join(base, "jax-mend")


class Store:
  """The part of the cache that belongs to the table named `key`."""

  def __init__(self, key: str):
    level = sys.flags.optimize
    tag = f"{sys.implementation.cache_tag}{f'.opt-{level}' if level else ''}"
    self._texts = os.path.join(root(), key, "mended")
    self._codes = os.path.join(root(), key, tag)

  def text_path(self, file: str) -> str:
    """The file name that tracebacks show for a served file.

    Under LC_ALL=C a folder's name can be one that is no text; jaxlib takes
    none such, so it is shown escaped, and names no file then.
    """
    path = self._text_file(file)
    try:
      path.encode("utf-8")
    except UnicodeEncodeError:
      return path.encode("ascii", "backslashreplace").decode("ascii")
    return path

  def _text_file(self, file: str) -> str:
    return os.path.join(self._texts, *file.split("/"))

  def code_path(self, file: str) -> str:
    return os.path.join(self._codes, *file.split("/")) + "c"

  def code(self, file: str) -> types.CodeType | None:
    """The byte code that is kept, if this interpreter can run it."""
    try:
      with open(self.code_path(file), "rb") as handle:
        data = handle.read()
      if data[:4] != util.MAGIC_NUMBER:
        return None
      code = marshal.loads(memoryview(data)[4:])
    except (OSError, EOFError, ValueError, TypeError):
      return None
    # A cache folder that was moved names files that are no longer there.
    named = getattr(code, "co_filename", None) == self.text_path(file)
    return code if named else None

  def keep(self, file: str, text: bytes, code: types.CodeType) -> None:
    """Keeps both; PYTHONDONTWRITEBYTECODE is about folders of sources."""
    _write(self._text_file(file), text)
    _write(self.code_path(file), util.MAGIC_NUMBER + marshal.dumps(code))


def _write(path: str, data: bytes) -> None:
  """Puts a whole file there, or nothing: another process may read it."""
  scratch = f"{path}.{os.getpid()}"
  try:
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    with open(scratch, "xb") as handle:
      handle.write(data)
    os.replace(scratch, path)
  except OSError:
    try:
      os.unlink(scratch)
    except OSError:
      pass
