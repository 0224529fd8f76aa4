# SPDX-License-Identifier: Apache-2.0
"""Reads `patches/families.toml`: the rooms that patches and their files are in.

A family has a folder of its name in patches/, tests/ and reproductions/, and
one for its modules under jax/_src. Upstream keeps its tests in one folder, so
there a test file is called by its family's prefix and its own name; what tests
share is a module of `jax._src.internal_test_util` there.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import functools
import pathlib
import re
from typing import Any

from mend.ground import repository
from mend.ground.errors import MendError
from mend.releases import bases

FILE = "patches/families.toml"
# What families share: no patch names it, and each has what it imports of it.
GROUND_FLOOR = "jax/_src/mend"
TESTING = "tests/testing"  # and tests/FAMILY/testing
SHARED = "jax/_src/internal_test_util"  # upstream's folder for such modules
_HELPERS = "testing"  # the folder of a family's shared test modules


@dataclasses.dataclass(frozen=True)
class Family:
  """A family: a kind of report and all that is mended for it."""
  name: str
  summary: str
  pages: tuple[str, ...]
  prefix: str  # of its tests' names in upstream's folder
  formerly: tuple[str, ...] = ()  # names that it had, which users may have set
  package: str = ""  # of its modules, if it has one
  beside: tuple[str, ...] = ()  # other packages of its modules
  outside: tuple[str, ...] = ()  # files that ship and aren't in a package
  without: str = ""  # the folders that it has no need of, and why
  frozen: str = ""  # the line that it is about, if that is mended no further
  most_patches: int = 0  # that apply to that line
  # The patches that a page is about, by the page; the first has the others.
  about: dict[str, list[str]] = dataclasses.field(default_factory=dict)

  @property
  def packages(self) -> tuple[str, ...]:
    """All packages of its modules."""
    return (self.package, *self.beside) if self.package else ()


def load(root: pathlib.Path = bases.ROOT) -> dict[str, Family]:
  """The families by name, in the order that pages show them.

  Raises:
    MendError: the file is missing, or a family lacks a key or has one more.
  """
  found = {}
  for name, data in bases.read_toml(root / FILE).items():
    try:
      settings: dict[str, Any] = {
          k: tuple(v) if isinstance(v, list) else v for k, v in data.items()}
      found[name] = Family(name, **settings)
    except (AttributeError, TypeError) as e:
      raise MendError(f"{FILE}: family {name}: {e}", f"edit {FILE}") from e
  return found


def former(root: pathlib.Path = bases.ROOT) -> dict[str, str]:
  """The families' present names by those that they had before."""
  return {name: f.name for f in load(root).values() for name in f.formerly}


def of(patch: str) -> str:
  """The family of a patch, by the patch's id."""
  return patch.partition("/")[0]


def upstream_name(families: dict[str, Family], file: str) -> str:
  """The path of a test, or of a module that tests share, in upstream's tree.

  Raises:
    KeyError: the file is not in the folder of a family.
  """
  top, family, *inner = pathlib.PurePosixPath(file).parts
  if top != "tests" or not inner:
    raise KeyError(file)
  stem = pathlib.PurePosixPath(file).stem
  if f"{top}/{family}" == TESTING:
    return f"{SHARED}/{stem}_{_HELPERS}.py"
  name = f"{families[family].prefix}{stem}"
  return (f"{SHARED}/{name}_{_HELPERS}.py" if inner[:1] == [_HELPERS]
          else f"tests/{name}.py")


@functools.cache
def _modules(packages: tuple[str, ...], root: pathlib.Path) -> dict[str, str]:
  """The modules of a family's packages by name, and the package of each.

  What an edit's code calls must have a name of its own: of two that share one
  neither is found.
  """
  paths = [p for package in packages for p in (root / package).rglob("*.py")
           if p.stem != "__init__"]
  stems = [p.stem for p in paths]
  return {p.stem: ".".join(p.parent.relative_to(root).parts) for p in paths
          if stems.count(p.stem) == 1}


def implied_imports(families: dict[str, Family], code: str,
                    root: pathlib.Path = bases.ROOT) -> tuple[str, ...]:
  """The imports that an edit's code needs for its names FAMILY_MODULE.

  A module of the ground floor is called mend_MODULE.

  Args:
    families: those that have packages.
    code: of the edit.
    root: where the packages lie.

  Returns:
    `from PACKAGE import MODULE as FAMILY_MODULE` for each module of ours that
    the code names so, in the code's order.
  """
  found = []
  packages_by_name = {f.name: f.packages for f in families.values()}
  packages_by_name["mend"] = (GROUND_FLOOR,)
  own = set(re.findall(r"\bimport \w+ as (\w+)", code))  # where it is used
  for name in dict.fromkeys(re.findall(r"(?<![\w.])[a-z]\w*", code)):
    if name in own:
      continue
    for family, folders in packages_by_name.items():
      module = name.removeprefix(f"{family}_")
      if module != name:
        package = _modules(folders, root).get(module)
        if package:
          found.append(f"from {package} import {module} as {name}")
  return tuple(dict.fromkeys(found))


def shared(root: pathlib.Path, folder: str,
           files: Sequence[str]) -> list[str]:
  """The modules of shared folders that files import, directly or indirectly.

  Args:
    root: the folder of the repository.
    folder: GROUND_FLOOR or TESTING; others import from it one module a line.
    files: Python files.
  """
  package = folder.removeprefix("tests/").replace("/", ".")
  own = "" if folder == GROUND_FLOOR else r"(?:\w+\.)?"  # also of a family
  imported = re.compile(
      rf"^ *from ({own}{re.escape(package)})(?: import |\.)(\w+)", re.MULTILINE)
  top = folder.removesuffix(package.replace(".", "/"))
  found: dict[str, None] = {}
  todo = list(files)
  while todo:
    text = repository.text(root / todo.pop())
    for where, name in imported.findall(text):
      file = f"{top}{where.replace('.', '/')}/{name}.py"
      if file not in found and (root / file).is_file():
        found[file] = None
        todo.append(file)
  return sorted(found)


def packages(root: pathlib.Path, modules: Sequence[str]) -> list[str]:
  """The `__init__.py` of each package of ours that a module is in."""
  found = [str(pathlib.PurePosixPath(folder) / "__init__.py")
           for module in modules
           for folder in reversed(pathlib.PurePosixPath(module).parents)]
  return [f for f in dict.fromkeys(found)
          if f not in modules and (root / f).is_file()]
