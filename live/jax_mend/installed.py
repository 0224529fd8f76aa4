# SPDX-License-Identifier: Apache-2.0
"""Finds the jax of this Python, and holds it against the table."""

from __future__ import annotations

from importlib import machinery
import os
import re
import sys

from jax_mend import asked, table as tables, words as words_of
from jax_mend.errors import NotApplied
from jax_mend.table import Table

OFF = "JAX_MEND=0 runs it as it is"
_VERSION = re.compile(rb"^_version\s*=\s*['\"]([^'\"]+)['\"]", re.MULTILINE)
_MANIFEST = os.path.join("_src", "mend_manifest.py")
_WHEEL = ("build the wheel, which needs no finder: python3 build/build.py "
          "build --wheels=jax --base=V in the project's folder")


class Installed:
  """A jax folder: `folder`, its `version`, and whether a wheel mended it."""

  def __init__(self, folder: str):
    self.folder = folder
    self.version = _version_of(folder)
    self.by_wheel = os.path.isfile(os.path.join(folder, _MANIFEST))

  def path(self, file: str) -> str:
    """The path of a file of the table, such as "jax/_src/core.py"."""
    return os.path.join(self.folder, *file.split("/")[1:])

  def read(self, file: str) -> bytes:
    with open(self.path(file), "rb") as handle:
      return handle.read()

  def differing(self, table: Table) -> list[str]:
    """Files that differ from the release's, and our modules already there."""
    found = []
    for file, wanted in table.files.items():
      try:
        same = tables.sha256(self.read(file)) == wanted
      except OSError:
        same = False
      if not same:
        found.append(file)
    return found + [f for f in table.modules if os.path.exists(self.path(f))]


def _version_of(folder: str) -> str:
  try:
    with open(os.path.join(folder, "version.py"), "rb") as handle:
      found = _VERSION.search(handle.read())
  except OSError:
    found = None
  return found[1].decode() if found else "of an unknown release"


def require_files() -> None:
  """Refuses frozen programs and archives: no finder of ours works there."""
  frozen = getattr(sys, "frozen", False) or "__compiled__" in globals()
  if frozen or not os.path.isfile(os.path.join(tables.FOLDER, "index.json")):
    raise NotApplied(
        "jax_mend runs from a frozen program or an archive, where importing "
        "does not go through files.", _WHEEL)


def find() -> Installed:
  """The jax that this Python would import.

  Raises:
    NotApplied: there is none, or it is not a folder of files.
  """
  require_files()
  spec = next(filter(None, (
      finder.find_spec("jax", None) for finder in sys.meta_path
      if not finder.__module__.startswith("jax_mend")
      and hasattr(finder, "find_spec"))), None)
  install = f"{sys.executable} -m pip install 'jax[cpu]=={tables.newest()}'"
  if spec is None:
    raise NotApplied(f"There is no jax in this Python ({sys.executable}).",
                     install)
  _refuse_other(spec, install)
  folder = os.path.abspath(list(spec.submodule_search_locations or ())[0])
  if not isinstance(spec.loader, machinery.SourceFileLoader) or (
      not os.path.isfile(os.path.join(folder, "__init__.py"))):
    raise NotApplied(f"jax is imported from {spec.origin}, an archive or a "
                     "frozen program, which can't be edited.", _WHEEL)
  return Installed(folder)


def _refuse_other(spec: machinery.ModuleSpec, install: str) -> None:
  """Refuses what is found by the name of jax and is not JAX."""
  folders = [os.path.abspath(f) for f in spec.submodule_search_locations or ()]
  if folders and (not os.path.isdir(folders[0]) or  # an archive
                  os.path.isfile(os.path.join(folders[0], "version.py"))):
    return
  shadow = os.path.abspath(spec.origin if spec.has_location and spec.origin
                           else folders[0] if folders else "jax")
  hidden = [f for f in (os.path.join(p or os.getcwd(), "jax") for p in sys.path)
            if f not in folders and os.path.isfile(
                os.path.join(f, "version.py"))]
  if spec.has_location:
    raise NotApplied(
        f"`import jax` gives {shadow}, which is not JAX"
        + (f" and hides the one in {hidden[0]}." if hidden else
           f", and there is no other in this Python ({sys.executable})."),
        f"rename {shadow}, or take its folder off PYTHONPATH and sys.path"
        + ("" if hidden else f"; then {install}"))
  raise NotApplied(f"There is no jax in this Python ({sys.executable}), only a "
                   f"folder of that name: {shadow}.", install)


def table_for(jax: Installed) -> Table:
  """The table of an installed jax, whose files must be the release's own.

  Raises:
    NotApplied: the release is unknown, a file differs, or words choose
      nothing.
  """
  known = list(tables.index()["bases"])
  if jax.version not in known:
    near = tables.nearest(jax.version)
    raise NotApplied(
        f"jax {jax.version} in {jax.folder} is not a release that jax-mend "
        f"{tables.index()['version']} knows: {', '.join(known)}.",
        f'{sys.executable} -m pip install "jax=={near}", the nearest that it '
        f"knows; or, in a checkout of the project, python3 build/build.py "
        f"check --candidate={jax.version} tells how yours differs; {OFF}")
  try:
    table = Table(jax.version, asked.words())
  except words_of.BadWords as e:
    raise asked.refused(e) from e
  other = jax.differing(table)
  if other:
    more = f" and {len(other) - 1} more" if len(other) > 1 else ""
    raise NotApplied(
        f"jax {jax.version} in {jax.folder}: {other[0]}{more} differs from "
        "the release's own.",
        f"{sys.executable} -m pip install --force-reinstall --no-deps "
        f"jax=={jax.version}; {OFF}")
  return table
