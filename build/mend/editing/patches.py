# SPDX-License-Identifier: Apache-2.0
"""Reads `patches/series` and its TOML files; refuses what is not a patch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
import dataclasses
import functools
import pathlib
import re

from mend.editing import (
    expected_failures, families, keys, red_tests, sendable)
from mend.editing.edit import Edit, listed, read as edits_of, spelled
from mend.editing.expected_failures import Red, Supersedes
from mend.editing.keys import Refuse
from mend.editing.live_modules import module_of_live
from mend.editing.sendable import Upstream
from mend.ground import report, repository
from mend.ground.arguments import did_you_mean
from mend.ground.errors import MendError
from mend.releases import bases
from mend.releases.bases import Base

_ID = re.compile(r"[a-z][a-z0-9_]*/[a-z][a-z0-9_]*")
_REQUIRED = ("id", "title", "why", "bases", "upstream", "tests", "changelog")
_OPTIONAL = ("issues", "modules", "depends", "unit_tests", "reproductions",
             "edit", "supersedes", "upstream_tests", "late_imports", "proves")
_FILES = ("modules", "tests", "unit_tests", "reproductions")
_SUPERSEDES_KEYS = ("tests", "why", "reason", "refusal", "bases")


@dataclasses.dataclass(frozen=True)
class Patch:
  """One fix: its metadata, the files that it adds and its edits."""
  id: str
  title: str
  why: str
  bases: str
  issues: tuple[str, ...]
  upstream: Upstream
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
  late_imports: tuple[str, ...] = ()
  proves: tuple[str, ...] = ()
  upstream_names: dict[str, str] = dataclasses.field(default_factory=dict)

  def edits_for(self, base: Base) -> tuple[Edit, ...]:
    """The edits for a release, as spelled: `placing` says in which files."""
    return tuple(e for e in self.edits
                 if not e.bases or base.within(e.bases))


def load(root: pathlib.Path = bases.ROOT) -> tuple[Patch, ...]:
  """The series, in order, checked.

  Raises:
    MendError: naming the patch, the key and the file, for anything that the
      format does not allow.
  """
  series = root / "patches" / "series"
  lines = {i: line.split("#")[0].strip() for i, line in enumerate(
      repository.text(series).splitlines(), 1)}
  for number, name in lines.items():
    _require_file(root, name, number)
  names = [name for name in lines.values() if name]
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


def _require_file(root: pathlib.Path, name: str, number: int) -> None:
  """Refuses a line of the series that names no patch."""
  folder = root / "patches"
  if name and not (folder / f"{name}.toml").is_file():
    near = did_you_mean(name, [p.relative_to(folder).with_suffix("").as_posix()
                               for p in folder.glob("*/*.toml")])
    raise MendError(
        f"patches/series, line {number}: there is no patch {name!r}: no file "
        f"patches/{name}.toml{near or '.'}",
        f"correct line {number} of patches/series, or take it out")


def load_patch(root: pathlib.Path, name: str) -> Patch:
  path = root / "patches" / f"{name}.toml"
  data = bases.read_toml(path)

  def refuse(problem: str) -> MendError:
    return MendError(f"patch {name}: {problem}", f"edit patches/{name}.toml")

  keys.check_keys(data, _REQUIRED, _OPTIONAL, "", refuse)
  keys.require_types(data, refuse)
  data["modules"] = data.get("modules", [])
  if data["id"] != name or not _ID.fullmatch(name):
    raise refuse(f"its id is {data['id']!r}, wanted its path, FAMILY/NAME")
  keys.check_specifier(data["bases"], refuse)
  _check_files(root, data, refuse)
  data["depends"] = [*data.get("depends", []), *data.get("proves", [])]
  _add_shared(root, data)
  red = tuple(r for file in data["tests"] for r in red_tests.read(
      file, repository.text(root / file)) if _may_meet(data["bases"], r.bases))
  imports = functools.partial(families.implied_imports, families.load(root),
                              root=root)
  found = tuple(edit for i, e in enumerate(data.get("edit", []))
                for edit in edits_of(name, i + 1, e, refuse, imports))
  _check_purpose(data, refuse)
  return Patch(
      id=name, title=data["title"], why=data["why"], bases=data["bases"],
      issues=tuple(data.get("issues", ())),
      upstream=sendable.read(name, data["upstream"], refuse, imports),
      changelog=data["changelog"], red=red, edits=found,
      supersedes=tuple(_supersedes(i + 1, s, red, refuse)
                       for i, s in enumerate(data.get("supersedes", []))),
      **{key: tuple(data.get(key, ())) for key in (
          "modules", "tests", "depends", "unit_tests", "reproductions",
          "upstream_tests", "test_helpers", "late_imports", "proves")},
      upstream_names=_upstream_names(root, data, refuse))


def _add_shared(root: pathlib.Path, data: dict) -> None:
  """Adds the shared files that a patch's own files need."""
  own = [*families.packages(root, data["modules"]), *data["modules"]]
  called = re.findall(r"\bmend_(\w+)", "\n".join(
      code for edit in data.get("edit", []) for code in spelled(edit)))
  direct = [f for name in dict.fromkeys(called)
            if (root / (f := f"{families.GROUND_FLOOR}/{name}.py")).is_file()]
  floor = sorted({*direct, *families.shared(
      root, families.GROUND_FLOOR, [*own, *direct])})
  data["modules"] = [*families.packages(root, floor), *floor, *own]
  data["test_helpers"] = families.shared(root, families.TESTING, [
      *data["tests"], *data.get("unit_tests", [])])


def _check_files(root: pathlib.Path, data: dict, refuse: Refuse) -> None:
  for file in (f for key in _FILES for f in data.get(key, [])):
    keys.require_inside(file, "", refuse)
    if not (root / file).is_file():
      raise refuse(f"it names {file}, which does not exist")
  for file in data.get("upstream_tests", []):
    keys.check_specifier(file.partition(" ")[2], refuse)


def _upstream_names(root: pathlib.Path, data: dict,
                    refuse: Refuse) -> dict[str, str]:
  """The names, in upstream's tests, of the files that go there."""
  known, found = families.load(root), {}
  for key in ("tests", "unit_tests", "test_helpers"):
    for file in data.get(key, []):
      try:
        found[file] = families.upstream_name(known, file)
      except (KeyError, ValueError) as e:
        raise refuse(f"{file} is not in tests/FAMILY, for a family of "
                     f"{families.FILE}") from e
  return found


@functools.cache
def _may_meet(one: str, other: str) -> bool:
  """True unless only other releases have what the second is of.

  A test file can be of two patches, of one for older and one for newer
  releases.
  """
  having = [b for b in bases.releases() if b.within(one)]
  return not having or any(b.within(other) for b in having)


def _supersedes(number: int, data: dict, red: tuple[Red, ...],
                refuse: Refuse) -> Supersedes:
  where = f"supersedes {number}: "
  needed = ("refusal",) if "refusal" in data else ("tests", "reason")
  keys.check_keys(data, ("why", *needed), _SUPERSEDES_KEYS, where, refuse)
  keys.check_specifier(data.get("bases", ""), refuse)
  if "refusal" in data:
    if "tests" in data or "reason" in data:
      raise refuse(f"{where}a refusal has no tests of upstream and no reason")
    if data["refusal"] not in (r.reason for r in red):
      raise refuse(f"{where}no red test of this patch has the reason "
                   f"{data['refusal']!r}, so no test shows that refusal")
    return Supersedes((), data["why"], "", data.get("bases", ""),
                      data["refusal"])
  expected_failures.check_reason(data["reason"], where, refuse)
  return Supersedes(tuple(data["tests"]), data["why"], data["reason"],
                    data.get("bases", ""))


def _check_purpose(data: dict, refuse: Refuse) -> None:
  """A patch changes something, or says which others' work its tests show."""
  bare = not data.get("edit") and not data["modules"]
  if bare != bool(data.get("proves")):
    raise refuse("it has no edit and no module: name the patches that its "
                 "tests are about, proves = [...]" if bare else
                 "`proves` is for a patch of tests only")
  edited = {f for e in data.get("edit", []) for f in listed(e["file"])}
  for file in data.get("late_imports", []):
    if file not in edited:
      raise refuse(f"late_imports names {file}, which no edit of it is in")


def for_base(series: Iterable[Patch], base: Base) -> tuple[Patch, ...]:
  """The patches of the series that apply to `base`."""
  return tuple(p for p in series if base.within(p.bases))


def is_part(series: Iterable[Patch], whole: Iterable[Patch],
            base: Base) -> bool:
  """True if `series` lacks patches of `whole` that are for `base`."""
  return len(for_base(series, base)) < len(for_base(whole, base))


def require_known(series: Iterable[Patch], names: Iterable[str]) -> None:
  known = {p.id for p in series}
  for name in names:
    if name not in known:
      near = did_you_mean(name, sorted(known))
      raise MendError(f"There is no patch {name!r}{near or '.'}",
                      "choose among those of python3 build/build.py status")


def with_needed(series: Sequence[Patch], name: str) -> tuple[Patch, ...]:
  """The patch and all that it depends on, in the series' order."""
  require_known(series, [name])
  wanted = {name}
  for patch in reversed(series):  # what a patch needs stands before it
    if patch.id in wanted:
      wanted.update(patch.depends)
  return tuple(p for p in series if p.id in wanted)


def select(series: Sequence[Patch], names: Sequence[str],
           base: Base | None = None) -> tuple[Patch, ...]:
  """The patches that words choose, in the series' order.

  Args:
    series: the patches.
    names: families and patches, and "-NAME" for what is left out, as jax-mend
      reads them.
    base: the release that they are for; None for all of them.

  Raises:
    MendError: a word is unknown, or what is chosen needs what is left out.
  """
  if not names:
    raise MendError("no patch is named.", "python3 build/build.py status")
  words = module_of_live("jax_mend/words")
  try:
    choice = words.choose(
        names, [p.id for p in series], {p.id: p.depends for p in series},
        None if base is None else [p.id for p in for_base(series, base)],
        families.former())
  except words.BadWords as e:
    raise MendError(f"--patches={','.join(names)}: {e}.",
                    "choose among those of python3 build/build.py status"
                    ) from e
  if choice.added:
    report.say(f"With what they need: {', '.join(choice.added)}")
  if choice.dropped:
    report.say("Without these, which need what is left out: "
               + ", ".join(choice.dropped))
  return tuple(p for p in series if p.id in choice.patches)
