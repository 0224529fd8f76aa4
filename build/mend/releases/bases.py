# SPDX-License-Identifier: Apache-2.0
"""The upstream releases that the fork is built on; the data is bases.toml."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import functools
import pathlib
import re
import sys
from typing import Annotated, Literal

from mend.ground import repository
from mend.ground.arguments import did_you_mean
from mend.ground.errors import MendError
import msgspec
from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

if sys.version_info >= (3, 11):
  import tomllib
else:
  import tomli as tomllib

ROOT = pathlib.Path(__file__).resolve().parents[3]
BASES_FILE = ROOT / "build" / "bases.toml"
_LAST_MINOR = 99  # of a Python 3 that will not be
LINES = re.compile(r"([A-Z])(?:-([A-Z]))?")


@dataclasses.dataclass(frozen=True)
class Base:
  """One pinned upstream release.

  Attributes:
    version: the release, such as "0.6.0".
    sha256: of its source distribution.
    python: the Pythons that it supports, as a version specifier.
    requirements: what its proof and tests run on, pinned.
    line: the letter of its line, a row of releases with one dialect; "" of a
      release that is none of ours.
    proof: "whole", or "sample" of a release whose line is proven on others.
    twin_of: the release that this one is but for `version.py`, which is checked
      and stands for it; or "".
  """
  version: str
  sha256: str
  python: str
  requirements: tuple[str, ...]
  line: str = ""
  proof: str = "whole"
  twin_of: str = ""

  def supports(self, python: str) -> bool:
    return SpecifierSet(self.python).contains(python)

  def within(self, specifier: str) -> bool:
    """True if `specifier` (a patch's `bases`) names the base.

    Args:
      specifier: version specifiers, lines ("C", "C-D"), or both, with commas:
        all of them must hold.
    """
    return _is_within(self.version, self.line, specifier)

  @property
  def mended(self) -> str:
    """The version of the wheel that is built on this base."""
    return self.version + suffix()


@functools.cache  # a run asks it some hundred thousand times
def _is_within(version: str, line: str, specifier: str) -> bool:
  parts = [part.strip() for part in specifier.split(",")]
  lines = [m for part in parts if (m := LINES.fullmatch(part))]
  versions = ",".join(part for part in parts if not LINES.fullmatch(part))
  return SpecifierSet(versions).contains(version) and all(
      m[1] <= line <= (m[2] or m[1]) for m in lines)


class _Row(msgspec.Struct, forbid_unknown_fields=True):
  """A [[base]] of bases.toml."""
  version: str
  sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
  python: str
  requirements: list[str]
  line: Annotated[str, msgspec.Meta(pattern="^[A-Z]$")]
  proof: Literal["whole", "sample"] = "whole"
  twin_of: str = ""


class _File(msgspec.Struct, forbid_unknown_fields=True):
  """The whole of bases.toml."""
  release: Annotated[int, msgspec.Meta(ge=1)]
  base: Annotated[list[_Row], msgspec.Meta(min_length=1)]


def check_specifier(text: str) -> None:
  """Raises ValueError for what `Base.within` can't read."""
  for part in text.split(","):
    if not LINES.fullmatch(part.strip()):
      SpecifierSet(part)  # InvalidSpecifier is a ValueError


def read_toml(path: pathlib.Path) -> dict:
  """Raises MendError with the file's name where it can't be read."""
  try:
    return tomllib.loads(repository.text(path).replace("\r\n", "\n"))
  except tomllib.TOMLDecodeError as e:
    raise MendError(f"{path} is no valid TOML: {e}", f"edit {path}") from e


@functools.cache
def _data() -> dict:
  """The file's content, whose keys and types are those of `_File`."""
  data = read_toml(BASES_FILE)
  names = [str(b.get("version")) for b in data.get("base", [])
           if isinstance(b, dict)]
  try:
    msgspec.convert(data, _File)
    for base in data["base"]:
      Version(base["version"])
      SpecifierSet(base["python"])
      if base.get("twin_of", names[0]) not in names:
        raise ValueError(f"{base['version']} is the twin of no release here")
    if len(set(names)) < len(names):
      raise ValueError("a release is there twice")
  except ValueError as e:  # msgspec's, packaging's and ours
    number = re.search(r"\$\.base\[(\d+)\]", str(e))
    whose = f", [[base]] {int(number[1]) + 1}" if number else ""
    raise MendError(f"{BASES_FILE}{whose}: {e}.", "correct it, or restore it: "
                    f"git -C {BASES_FILE.parent} checkout -- {BASES_FILE.name}"
                    ) from e
  return data


def release() -> int:
  """Our own release number, the N of `+mend.N`."""
  return int(_data()["release"])


def suffix() -> str:
  """The end of a mended wheel's version, after its release's."""
  return f"+mend.{release()}"


@functools.cache
def releases() -> tuple[Base, ...]:
  """Every release that is mended, oldest first."""
  found = [Base(**{**b, "requirements": tuple(b["requirements"])})
           for b in _data()["base"]]
  return tuple(sorted(found, key=lambda b: Version(b.version)))


def forget() -> None:
  """Reads bases.toml again when it is asked next."""
  for read in (_data, releases, all_bases, whole, representatives):
    read.cache_clear()


@functools.cache
def all_bases() -> tuple[Base, ...]:
  """Every release but twins, for which another one stands; oldest first."""
  return tuple(b for b in releases() if not b.twin_of)


def twins(origins: Sequence[Base]) -> tuple[Base, ...]:
  """The releases that these stand for."""
  versions = {b.version for b in origins}
  return tuple(b for b in releases() if b.twin_of in versions)


@functools.cache
def whole() -> tuple[Base, ...]:
  """Every release that is proven by all tests, oldest first."""
  return tuple(b for b in all_bases() if b.proof == "whole")


@functools.cache
def representatives() -> tuple[Base, ...]:
  """The newest whole release of each line, the columns of a table."""
  newest = {b.line: b for b in whole()}
  return tuple(newest.values())


def span(specifier: str) -> str:
  """The releases of a specifier in words; "" for all releases."""
  runs: list[list[str]] = []
  open_run = False
  for base in releases():
    if base.within(specifier):
      runs = runs if open_run else [*runs, []]
      runs[-1].append(base.version)
    open_run = base.within(specifier)
  if sum(map(len, runs)) == len(releases()):
    return ""
  return ", ".join(r[0] if len(r) == 1 else f"{r[0]} to {r[-1]}" for r in runs)


def pythons(base: Base) -> str:
  """The Pythons that a base supports, in words: "3.11 to 3.13"."""
  *minors, last = [n for n in range(_LAST_MINOR + 1) if base.supports(f"3.{n}")]
  first = minors[0] if minors else last
  if last == _LAST_MINOR:
    return f"3.{first} or newer"
  return f"3.{first}" + (f" to 3.{last}" if minors else "")


def nearest(version: str, python: str = "") -> Base:
  """The newest release that is no newer than `version`, or else the oldest.

  Args:
    version: of jax; what is no version stands for the newest.
    python: only releases that this Python supports, if there is one.
  """
  found = [b for b in releases() if not python or b.supports(python)]
  found = found or [*releases()]
  try:
    wanted = Version(Version(version).public)
  except InvalidVersion:
    return found[-1]
  return [found[0], *(b for b in found if Version(b.version) <= wanted)][-1]


def get(version: str) -> Base:
  for base in releases():
    if base.version == version:
      return base
  known = ", ".join(b.version for b in releases())
  near = did_you_mean(version, known.split(", "))
  raise MendError(f"jax {version} is not a base release of Mend ({known})"
                  f"{near or '.'}",
                  f"the nearest, --base={nearest(version).version}, or "
                  "--base=V with V one of them, or all")


def default_base() -> Base:
  """The newest base that the running Python supports."""
  running = ".".join(str(n) for n in sys.version_info[:3])
  fitting = [b for b in all_bases() if b.supports(running)]
  if not fitting:
    raise MendError(
        f"No base release supports Python {running}: " + ", ".join(
            f"{b.version} needs {b.python}" for b in all_bases()) + ".",
        "run the command with a Python that one of them supports")
  return fitting[-1]


def _of_line(name: str) -> tuple[Base, ...]:
  found = tuple(b for b in all_bases() if b.within(name))
  if not found:
    lines = ", ".join(dict.fromkeys(b.line for b in all_bases()))
    raise MendError(f"--base={name}: no release is of that line.",
                    f"choose one of {lines}, or one as C-D for several")
  return found


def chosen(option: str | None) -> tuple[Base, ...]:
  """The bases that `--base=` means: some, of lines, `all`, or the default."""
  if option is not None and not all(v.strip() for v in option.split(",")):
    raise MendError("--base= names no release.",
                    "--base=V with one of "
                    + ", ".join(b.version for b in all_bases()) + ", or all")
  if option == "all":
    return all_bases()
  if option:
    named = [_of_line(v) if LINES.fullmatch(v) else (get(v),)
             for v in map(str.strip, option.split(","))]
    return tuple(dict.fromkeys(b for found in named for b in found))
  return (default_base(),)


def one(option: str | None) -> Base:
  """The only base of `--base=`, for a command that works on one."""
  found = chosen(option)
  if len(found) != 1:
    raise MendError(f"--base={option} names several bases; this command takes "
                    "one.", f"--base={found[-1].version}, then the next")
  return found[0]
