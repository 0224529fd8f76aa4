# SPDX-License-Identifier: Apache-2.0
"""`build.py where FILE[:LINE]`: what of the project a file belongs to.

For a file of ours: its family, the patches that name it, and their edits,
tests, reproductions and pages. For a file of upstream's: the edits in it; for a
line in a tree that `apply` has written, those of the line's definition.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
import pathlib

from mend.editing import families, patches, syntax
from mend.editing.patches import Patch
from mend.ground import report, repository
from mend.ground.errors import MendError
from mend.ground.report import Verdict
from mend.releases import bases
from mend.trees import imports

Row = tuple[str, str]


def show(place: str, root: pathlib.Path = bases.ROOT) -> Verdict:
  """Prints the rows of a file, or of one of its lines."""
  file, _, line = place.partition(":")
  if line and not line.isdecimal():
    raise MendError(f"{place}: {line!r} is no line.",
                    f"python3 build/build.py where {file}:12")
  path = pathlib.Path(file).absolute()
  file = _from_root(file, root)
  path = path if path.is_file() else root / file
  found = rows(file, patches.load(root), root,
               scope_of(path, int(line)) if line else "")
  if not found:
    raise MendError(
        f"{file} is no file of a patch, and no edit is in it.",
        "name one of ours (jax/, tests/, reproductions/, patches/), or "
        "upstream's as jax/_src/NAME.py")
  report.show(("", file), found)
  return Verdict(f"{len({v for k, v in found if k == 'patch'})} patches.")


def _from_root(file: str, root: pathlib.Path) -> str:
  """The file's path from the project's root, or from that of a tree of jax."""
  here = pathlib.Path(file).resolve()
  if here.is_file() and here.is_relative_to(root):
    return here.relative_to(root).as_posix()
  if here.is_file() and "jax" in here.parts:
    last = len(here.parts) - 1 - here.parts[::-1].index("jax")
    return "/".join(here.parts[last:])
  return pathlib.PurePath(file).as_posix()


def scope_of(path: pathlib.Path, line: int) -> str:
  """The qualified name of the definition that a line is in; "" for none."""
  if not path.is_file():
    return ""
  names = []
  node = syntax.parse(path.read_text(encoding="utf-8"))
  while inner := next((n for n in node.children()
                       if n.range().start.line < line <= n.range().end.line + 1
                       ), None):
    node = inner
    if node.kind() in ("function_definition", "class_definition"):
      names.append(syntax.field(node, "name").text())
  return ".".join(names)


def rows(file: str, series: Sequence[Patch], root: pathlib.Path,
         scope: str = "") -> list[Row]:
  """The rows of a file: the kind of thing, and its name or path.

  Args:
    file: from the project's root, or upstream's.
    series: the patches.
    root: the project's.
    scope: the definition that a line is in; "" for all of the file.
  """
  mine = [p for p in series if file in _files(p)]
  edits = [(p, e) for p in series for e in p.edits if e.file == file
           and (not scope or f"{scope}.".startswith(f"{e.scope}."))]
  if not mine and not edits:
    return []
  those = mine or [*{p.id: p for p, _ in edits}.values()]
  known = families.load(root)
  out: list[Row] = [("definition", scope)] if scope else []
  out += _each("family", (families.of(p.id) for p in those))
  out += _each("page", (page for p in those
                        for page in known[families.of(p.id)].pages))
  for patch in those:
    out.append(("patch", f"{patch.id}: {patch.title}"))
  shown = edits if not mine else [(p, e) for p in mine for e in p.edits]
  out += _each("edit", (
      f"patches/{p.id}.toml: {e.op} in {e.file} {e.scope}".rstrip()
      for p, e in shown))
  if not file.startswith("jax/"):
    out += _each("module", (m for p in those for m in p.modules))
  out += _each("test", _tests(file, those))
  out += _each("reproduction", (r for p in those for r in p.reproductions))
  return out + _each("imported by", _importers(file, root))


def _each(kind: str, names: Iterable[str]) -> list[Row]:
  return [(kind, name) for name in dict.fromkeys(names)]


def _files(patch: Patch) -> tuple[str, ...]:
  return (f"patches/{patch.id}.toml", *patch.modules, *patch.tests,
          *patch.unit_tests, *patch.reproductions)


def _tests(file: str, those: Sequence[Patch]) -> list[str]:
  """The tests of some patches; the one with the file's name comes first."""
  named = f"{pathlib.PurePosixPath(file).stem}_test.py"
  found = [t for p in those for t in (*p.tests, *p.unit_tests)]
  return sorted(found, key=lambda t: not t.endswith(f"/{named}"))


def _importers(file: str, root: pathlib.Path) -> list[str]:
  """The files of ours that import a module, by its dotted name."""
  dotted = file.removeprefix("tests/").removesuffix(".py").replace("/", ".")
  return [other for folder in ("jax", "tests", "reproductions", "benchmarks")
          for path in sorted((root / folder).rglob("*.py"))
          if (other := path.relative_to(root).as_posix()) != file
          and not other.startswith("tests/build/")
          and dotted in imports.names_in(repository.text(path))]
