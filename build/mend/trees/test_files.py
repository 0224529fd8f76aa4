# SPDX-License-Identifier: Apache-2.0
"""The series' tests as upstream's folder has them.

That folder has no folders in it, so a test has another name there. Upstream's
pytest puts no folder on the path (`--import-mode=importlib`), so what tests
share is a module of `jax._src.internal_test_util`, as upstream's own is, and
the imports of it are written again, in their alphabetical place. Here pytest
runs all tests; upstream's files can be run alone, so these lines are added.
Tests that run the programs of a page of docs/ stay here: upstream does not get
the page.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
import functools
import pathlib
import re
import sys

from mend.editing import families, patches, syntax
from mend.ground import repository
from mend.trees import imports, wrapping

_SHARED = families.SHARED.replace("/", ".")
_PAGES = "pages"  # the shared module that runs pages
_FROM = re.compile(r"^( *)from ([\w.]+) import (?!\()(.+?)((?:  #.*)?)$",
                   re.MULTILINE)
_STATEMENT = re.compile(r"import [\w.]+|from [\w.]+ import ")
_IMPORT = re.compile(r"^(?:from|import) (\w+)", re.MULTILINE)
_WHOLE = re.compile(r"^( *)import ([\w.]+) as (\w+)", re.MULTILINE)


def names(mine: Iterable[patches.Patch], root: pathlib.Path) -> dict[str, str]:
  """The test files and what they share, by our name: upstream's name."""
  known = {ours: theirs for p in mine
           for ours, theirs in p.upstream_names.items()}
  tests = [f for p in mine for f in (*p.tests, *p.unit_tests)]
  dotted = {_dotted(f): f for f in known}
  reads = {f: _reads(repository.text(root / f), dotted) for f in known}
  found = {f: known[f] for f in tests if not _of_page(reads[f])}
  todo = [*found]
  while todo:
    for file in reads[todo.pop()]:
      if file not in found:
        found[file] = known[file]
        todo.append(file)
  return {ours: found[ours] for ours in known if ours in found}


def _of_page(files: Iterable[str]) -> bool:
  return any(pathlib.PurePosixPath(f).stem == _PAGES for f in files)


def _reads(text: str, known: Mapping[str, str]) -> list[str]:
  """The shared modules that a text imports, of those by dotted name."""
  said = {prefix for name in imports.names_in(text)
          for prefix in (name, name.rpartition(".")[0])}
  return [known[n] for n in sorted(said & known.keys())]


@functools.cache
def _dotted(file: str) -> str:
  """The name by which a module below tests/ is imported."""
  inside = pathlib.PurePosixPath(file).relative_to("tests").with_suffix("")
  return ".".join(inside.parts)


def texts(mine: Sequence[patches.Patch], root: pathlib.Path) -> dict[str, str]:
  """The test files and what they share, as upstream has them.

  Returns:
    Path in upstream's tree -> text.
  """
  mapped = names(mine, root)
  modules = {_dotted(ours): pathlib.PurePath(theirs).stem
             for ours, theirs in mapped.items()
             if theirs.startswith(families.SHARED)}
  return {theirs: renamed(
      runnable(text) if ours.endswith("_test.py") else text, modules)
          for ours, theirs in mapped.items()
          for text in [repository.text(root / ours)]}


def runnable(text: str) -> str:
  """The text of a test that takes absl's flags, with what runs it alone."""
  if "parse_flags_with_absl()" not in text or "absltest.main(" in text:
    return text
  first = next(found for found in _IMPORT.finditer(text)
               if found[1] not in sys.stdlib_module_names).start()
  loader = "testLoader=jtu.JaxTestLoader()" if "as jtu\n" in text else ""
  return (f"{text[:first]}from absl.testing import absltest\n{text[first:]}"
          f"\n\nif __name__ == '__main__':\n  absltest.main({loader})\n")


def renamed(text: str, modules: Mapping[str, str]) -> str:
  """A text that imports shared modules by upstream's names for them.

  Args:
    text: of a test file.
    modules: our dotted name of a module -> its stem there.
  """
  def of_members(found: re.Match[str]) -> str:
    indent, module, members, comment = found.groups()
    if module in modules:
      return (f"{indent}from {_SHARED}.{modules[module]} import "
              f"{members}{comment}")
    lines = []
    for member in members.split(", "):
      name, _, other = member.partition(" as ")
      stem = modules.get(f"{module}.{name}")
      lines.append(f"{indent}from {_SHARED} import {stem} as {other or name}"
                   if stem else f"{indent}from {module} import {member}")
    return "\n".join(line + comment for line in lines) if any(
        f"{module}.{m.partition(' as ')[0]}" in modules
        for m in members.split(", ")) else found[0]

  def whole(found: re.Match[str]) -> str:
    indent, module, name = found.groups()
    return (f"{indent}from {_SHARED} import {modules[module]} as {name}"
            if module in modules else found[0])

  made = _WHOLE.sub(whole, _FROM.sub(of_members, text))
  for module, stem in modules.items():  # members in brackets
    made = made.replace(f"from {module} import (",
                        f"from {_SHARED}.{stem} import (")
  return text if made == text else wrapping.wrapped(_in_order(made), text)


def _in_order(text: str) -> str:
  """The text with each block of imports that has a shared module's sorted."""
  blocks = text.split("\n\n")
  return "\n\n".join(_sorted(b) if f"\nfrom {_SHARED}" in f"\n{b}" else b
                     for b in blocks)


def _sorted(block: str) -> str:
  """A block of imports in the order of their modules, what is around as is."""
  head, statements, tail = list[str](), list[str](), list[str]()
  depth = 0
  for line in block.split("\n"):
    if depth and not tail:
      statements[-1] += f"\n{line}"
    elif _STATEMENT.match(line) and not tail:
      statements.append(line)
    else:
      (tail if statements else head).append(line)
      continue
    depth += line.count("(") - line.count(")")
  statements.sort(key=lambda s: syntax.import_key(s.replace("(", " "))[1])
  return "\n".join([*head, *statements, *tail])


def every(root: pathlib.Path) -> list[str]:
  """The names of all tests of the project in upstream's folder."""
  known = families.load(root)
  return sorted(
      pathlib.PurePosixPath(families.upstream_name(
          known, path.relative_to(root).as_posix())).name
      for family in known
      for path in (root / "tests" / family).glob("*_test.py"))
