# SPDX-License-Identifier: Apache-2.0
"""Tells which patches' code runs while a program is traced.

An edit calls a function of our modules, by the name that its import gives the
module. These functions are wrapped as their modules are imported, and note the
patches whose edits name them. An edit that calls none leaves no evidence.
"""

from __future__ import annotations

from collections.abc import Callable
import functools
import re
import threading
import types
from typing import Any

from jax_mend import active

_IMPORT = re.compile(r"from (jax\._src\.\S+) import (\w+) as (\w+)")
_NAMED = re.compile(r"\b(\w+)\.(\w+)")
_Owners = dict[str, dict[str, set[str]]]  # module -> function -> patches


def owners(pieces: list[tuple[str, str]]) -> _Owners:
  """The patches whose edits name each function.

  Args:
    pieces: the texts of edits, and the patch of each.
  """
  modules = {alias: f"{package}.{module}" for text, _ in pieces
             for package, module, alias in _IMPORT.findall(text)}
  found: _Owners = {}
  for text, patch in pieces:
    for alias, name in _NAMED.findall(text):
      if alias in modules:
        found.setdefault(modules[alias], {}).setdefault(name, set()).add(patch)
  return found


def silent(pieces: list[tuple[str, str]]) -> set[str]:
  """The patches that have an edit and name no function in any."""
  named = {p for functions in owners(pieces).values()
           for found in functions.values() for p in found}
  return {patch for _, patch in pieces} - named


def pieces_of(table: Any) -> list[tuple[str, str]]:
  """The texts of a table's edits, and their patches."""
  return [(text, patch) for file in table.files
          for _, _, text, patch in table.pieces(file)]


class Touched(threading.local):
  """The patches whose code has run in this thread, with the functions."""

  def __init__(self) -> None:
    self.found: dict[str, dict[str, None]] = {}

  def taken(self, clear: bool = True) -> dict[str, list[str]]:
    """The notes since they were last taken."""
    found = {p: [*f] for p, f in self.found.items()}
    if clear:
      self.found.clear()
    return found


def watch(touched: Touched) -> None:
  """Notes in `touched` which patches' edits call our functions, and which."""
  finder = active.finder()
  if finder is None:
    return
  for module, functions in owners(pieces_of(finder.table)).items():
    finder.hook(module, functools.partial(_wrap, functions, touched))


def _wrap(functions: dict[str, set[str]], touched: Touched,
          module: types.ModuleType) -> None:
  for name, patches in functions.items():
    f = getattr(module, name, None)
    label = f"{module.__name__.removeprefix('jax._src.')}.{name}"
    note = functools.partial(_noting, label=label, patches=sorted(patches),
                             touched=touched)
    if isinstance(f, types.FunctionType):
      setattr(module, name, note(f))
    elif isinstance(f, property) and f.fget:
      setattr(module, name, property(note(f.fget), doc=f.__doc__))


def _noting(f: Callable[..., Any], label: str, patches: list[str],
            touched: Touched) -> Callable[..., Any]:

  @functools.wraps(f)
  def noting(*args: Any, **kwargs: Any) -> Any:
    for patch in patches:
      touched.found.setdefault(patch, {})[label] = None
    return f(*args, **kwargs)

  return noting
