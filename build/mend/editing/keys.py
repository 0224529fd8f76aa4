# SPDX-License-Identifier: Apache-2.0
"""The rules for values of a patch's keys: types, and places in the tree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
import pathlib
import re
from typing import Any, TypedDict

from mend.ground.errors import MendError
from mend.releases import bases
import msgspec

_Names = list[str]
_Text = str | dict[str, str]  # a table of releases


class _Supersedes(TypedDict, total=False):
  tests: _Names
  why: str
  refusal: str
  bases: str


_Edit = TypedDict("_Edit", {
    "file": str | _Names, "op": str, "code": _Text, "doc": str,
    "in": str | _Names | dict[str, str], "n": int,
    "bases": str, "takes": _Names | dict[str, _Names], "before": _Text,
    "after": _Text, "at": str, "call": _Text, "value": _Text,
    "optional": bool}, total=False)


class _Report(TypedDict, total=False):
  symptom: str
  devices: int
  program: str
  output: str


class _Upstream(TypedDict, total=False):
  status: str
  pr: str
  landed_in: str
  sendable: bool | str
  closes: _Names
  after: _Names
  title: str
  message: str
  guard: bool
  changelog: str
  report: _Report
  edit: list[_Edit]


class _Patch(TypedDict, total=False):
  id: str
  title: str
  why: str
  bases: str
  issues: _Names
  upstream: _Upstream
  modules: _Names
  tests: _Names
  changelog: str
  depends: _Names
  unit_tests: _Names
  reproductions: _Names
  upstream_tests: _Names
  edit: list[_Edit]
  supersedes: list[_Supersedes]
  late_imports: _Names
  proves: _Names


_WORDS = {"str": "text", "int": "a whole number", "bool": "true or false",
          "array": "a list [...]",
          "str | array": "text or a list [...]", "object": "a table",
          "bool | str": "true or a reason", "str | bool": "true or a reason",
          "str | object": "text or a table of releases",
          "array | object": "a list [...] or a table of releases",
          "str | array | object": "text, a list [...] or a table of releases",
          "float": "a number"}


Refuse = Callable[[str], MendError]


def require_types(data: dict[str, Any],
                  refuse: Refuse) -> None:
  """Refuses a value of the wrong type, by its key and the wanted type."""
  try:
    msgspec.convert(data, _Patch)
  except msgspec.ValidationError as e:
    found = re.fullmatch(
        r"Expected `([\w| ]+)`, got `(\w+)` - at `\$\.?(.*)`", str(e))
    if found is None:
      raise refuse(str(e)) from e
    wanted, got, place = found.groups()
    place = re.sub(r"\[(\d+)\]", lambda m: f" {int(m[1]) + 1}", place)
    raise refuse(f"{place.replace('.', ': ')}: wanted "
                 f"{_WORDS.get(wanted, wanted)}, found "
                 f"{_WORDS.get(got, got)}") from e


def require_inside(file: str, where: str,
                   refuse: Refuse) -> None:
  """Refuses a file that is not within the tree, wherever that will be."""
  parts = pathlib.PurePosixPath(file).parts
  if not parts or parts[0] == "/" or ".." in parts or {"\\", ":"} & set(file):
    raise refuse(f"{where}file {file!r} is no path within the tree: it must be "
                 "relative, with / between its parts and without ..")


def check_keys(data: dict, required: Sequence[str], optional: Sequence[str],
                where: str, refuse: Refuse) -> None:
  missing = [k for k in required if k not in data]
  unknown = [k for k in data if k not in (*required, *optional)]
  if missing:
    raise refuse(f"{where}missing key {', '.join(missing)}")
  if unknown:
    raise refuse(f"{where}unknown key {', '.join(unknown)}; the keys are "
                 + ", ".join(dict.fromkeys((*required, *optional))))


def check_specifier(text: str, refuse: Refuse) -> None:
  try:
    bases.check_specifier(text)
  except ValueError as e:
    raise refuse(f"bases = {text!r} is no version specifier such as >=0.6, and "
                 "no line or lines such as C-D") from e
