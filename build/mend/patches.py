"""Reads `patches/series` and its TOML files; refuses what is not a patch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
import dataclasses
import pathlib
import re
import textwrap

from mend import bases, syntax
from mend.bases import Base
from mend.edit import MAX_LINES, NEEDS, Edit
from mend.errors import MendError
from packaging.specifiers import InvalidSpecifier, SpecifierSet

Refuse = Callable[[str], MendError]
STATUSES = ("not-sent", "sent", "merged", "rejected", "fork-only")
_REQUIRED = ("id", "title", "why", "bases", "issues", "upstream", "modules",
             "tests", "changelog")
_OPTIONAL = ("depends", "unit_tests", "reproductions", "red", "edit",
             "supersedes", "upstream_tests", "test_helpers")
_SUPERSEDES_KEYS = ("tests", "why", "bases")
_RED_KEYS = ("tests", "reason", "bases", "api_missing")
_EDIT_KEYS = ("file", "op", "code", "doc", "in", "n", "bases", "takes",
              "before", "after", "at", "call", "value", "optional")


@dataclasses.dataclass(frozen=True)
class Red:
  """Tests that fail on a pristine base, and what their failure must say."""
  tests: tuple[str, ...]
  reason: str
  bases: str = ""
  api_missing: bool = False


@dataclasses.dataclass(frozen=True)
class Supersedes:
  """Tests of upstream ("file.py Class.test") that a patch fails on purpose."""
  tests: tuple[str, ...]
  why: str
  bases: str = ""


@dataclasses.dataclass(frozen=True)
class Patch:
  """One fix: its metadata, the files that it adds and its edits."""
  id: str
  title: str
  why: str
  bases: str
  issues: tuple[str, ...]
  upstream: dict[str, str]
  modules: tuple[str, ...]
  tests: tuple[str, ...]
  changelog: str
  depends: tuple[str, ...] = ()
  unit_tests: tuple[str, ...] = ()
  test_helpers: tuple[str, ...] = ()
  reproductions: tuple[str, ...] = ()
  upstream_tests: tuple[str, ...] = ()
  red: tuple[Red, ...] = ()
  edits: tuple[Edit, ...] = ()
  supersedes: tuple[Supersedes, ...] = ()

  def edits_for(self, base: Base) -> tuple[Edit, ...]:
    return tuple(e for e in self.edits
                 if not e.bases or base.within(e.bases))


def load(root: pathlib.Path = bases.ROOT) -> tuple[Patch, ...]:
  """The series, in order, checked.

  Raises:
    MendError: naming the patch, the key and the file, for anything that the
      format does not allow.
  """
  series = root / "patches" / "series"
  if not series.is_file():
    raise MendError(f"There is no {series}.",
                    "restore it: git checkout -- patches")
  names = [line.split("#")[0].strip()
           for line in series.read_text(encoding="utf-8").splitlines()]
  names = [name for name in names if name]
  twice = {name for name in names if names.count(name) > 1}
  if twice:
    raise MendError(f"patches/series names {', '.join(twice)} twice.",
                    "keep one line of each in patches/series")
  loaded = tuple(load_patch(root, name) for name in names)
  for i, patch in enumerate(loaded):
    late = set(patch.depends) - {p.id for p in loaded[:i]}
    if late:
      raise MendError(
          f"patch {patch.id} depends on {', '.join(sorted(late))}, which does "
          "not stand before it in patches/series.", "reorder patches/series")
  return loaded


def load_patch(root: pathlib.Path, name: str) -> Patch:
  path = root / "patches" / f"{name}.toml"
  data = bases.read_toml(path)

  def refuse(problem: str) -> MendError:
    return MendError(f"patch {name}: {problem}", f"edit patches/{name}.toml")

  _check_keys(data, _REQUIRED, _OPTIONAL, "", refuse)
  if data["id"] != name:
    raise refuse(f"its id is {data['id']!r}, wanted its file's name")
  if data["upstream"].get("status") not in STATUSES:
    raise refuse(f"upstream.status is {data['upstream'].get('status')!r}, "
                 f"wanted one of {', '.join(STATUSES)}")
  _check_specifier(data["bases"], refuse)
  files: list[str] = []
  for key in ("modules", "tests", "unit_tests", "test_helpers",
              "reproductions"):
    files += data.get(key, [])
  for file in files:
    if not (root / file).is_file():
      raise refuse(f"it names {file}, which does not exist")
  for file in data.get("upstream_tests", []):
    _check_specifier(file.partition(" ")[2], refuse)
  red = tuple(_red(r, refuse) for r in data.get("red", []))
  found = tuple(_edit(name, i + 1, e, refuse)
                for i, e in enumerate(data.get("edit", [])))
  return Patch(
      id=name, title=data["title"], why=data["why"], bases=data["bases"],
      issues=tuple(data["issues"]), upstream=data["upstream"],
      changelog=data["changelog"], red=red, edits=found,
      supersedes=tuple(_supersedes(s, refuse)
                       for s in data.get("supersedes", [])),
      **{key: tuple(data.get(key, ())) for key in (
          "modules", "tests", "depends", "unit_tests", "reproductions",
          "upstream_tests", "test_helpers")})


def _check_keys(data: dict, required: Sequence[str], optional: Sequence[str],
                where: str, refuse: Refuse) -> None:
  missing = [k for k in required if k not in data]
  unknown = [k for k in data if k not in (*required, *optional)]
  if missing:
    raise refuse(f"{where}missing key {', '.join(missing)}")
  if unknown:
    raise refuse(f"{where}unknown key {', '.join(unknown)}; the keys are "
                 f"{', '.join((*required, *optional))}")


def _check_specifier(text: str, refuse: Refuse) -> None:
  try:
    SpecifierSet(text)
  except InvalidSpecifier as e:
    raise refuse(
        f"bases = {text!r} is no version specifier such as >=0.6") from e


def _red(data: dict, refuse: Refuse) -> Red:
  _check_keys(data, ("tests", "reason"), _RED_KEYS, "red: ", refuse)
  _check_specifier(data.get("bases", ""), refuse)
  try:
    re.compile(data["reason"])
  except re.error as e:
    raise refuse(f"red: reason {data['reason']!r} is no regular expression: "
                 f"{e}") from e
  return Red(tuple(data["tests"]), data["reason"], data.get("bases", ""),
             data.get("api_missing", False))


def _supersedes(data: dict, refuse: Refuse) -> Supersedes:
  _check_keys(data, ("tests", "why"), _SUPERSEDES_KEYS, "supersedes: ", refuse)
  _check_specifier(data.get("bases", ""), refuse)
  return Supersedes(tuple(data["tests"]), data["why"], data.get("bases", ""))


def _edit(patch: str, number: int, data: dict, refuse: Refuse) -> Edit:
  where = f"edit {number}: "
  _check_keys(data, ("file", "op"), _EDIT_KEYS, where, refuse)
  op = data["op"]
  if op not in NEEDS:
    raise refuse(f"{where}unknown op {op!r}; the operations are "
                 f"{', '.join(NEEDS)}")
  for need in NEEDS[op]:
    either = need if isinstance(need, tuple) else (need,)
    if sum(key in data for key in either) != 1:
      raise refuse(f"{where}{op} needs {' or '.join(either)}"
                   + (", exactly one" if len(either) > 1 else ""))
  _check_specifier(data.get("bases", ""), refuse)
  _check_code(data, where, refuse)
  for key in ("before", "after", "call", "value"):
    if key in data and op != "add_text":
      try:
        syntax.Selector.parse(data[key])
      except ValueError as e:
        raise refuse(f"{where}{key}: {e}") from e
  if data.get("at", "start") not in ("start", "end"):
    raise refuse(f"{where}at is {data['at']!r}, wanted start or end")
  rest = {k: v for k, v in data.items() if k not in ("in", "takes")}
  takes = tuple(data["takes"]) if "takes" in data else None
  return Edit(patch=patch, number=number, scope=data.get("in", ""),
                    takes=takes, **rest)


def _check_code(data: dict, where: str, refuse: Refuse) -> None:
  code = textwrap.dedent(data.get("code", "")).strip("\n")
  if code.count("\n") + 1 > MAX_LINES:
    raise refuse(f"{where}code has {code.count(chr(10)) + 1} lines, at most "
                 f"{MAX_LINES}: put the rest into a module")


def for_base(series: Iterable[Patch], base: Base) -> tuple[Patch, ...]:
  """The patches of the series that apply to `base`."""
  return tuple(p for p in series if base.within(p.bases))


def require_known(series: Iterable[Patch], names: Iterable[str]) -> None:
  known = {p.id for p in series}
  for name in names:
    if name not in known:
      raise MendError(f"There is no patch {name!r}; the series has "
                      f"{', '.join(sorted(known))}.", "choose among these")


def with_needed(series: Sequence[Patch], name: str) -> tuple[Patch, ...]:
  """The patch and all that it depends on, in the series' order."""
  require_known(series, [name])
  wanted = {name}
  for patch in reversed(series):  # what a patch needs stands before it
    if patch.id in wanted:
      wanted.update(patch.depends)
  return tuple(p for p in series if p.id in wanted)


def select(series: Sequence[Patch], names: Sequence[str]) -> tuple[Patch, ...]:
  """The named patches, in the series' order.

  Raises:
    MendError: a name is unknown, or a patch that one needs is not chosen.
  """
  require_known(series, names)
  chosen = tuple(p for p in series if p.id in names)
  for patch in chosen:
    unmet = [d for d in patch.depends if d not in names]
    if unmet:
      raise MendError(
          f"patch {patch.id} depends on {', '.join(unmet)}, not chosen.",
          f"add it: --patches={','.join([*unmet, *names])}")
  return chosen
