# SPDX-License-Identifier: Apache-2.0
"""The project's own rules: sizes, originality, packaging."""

import ast
import re
import subprocess
import tarfile

from conftest import ROOT, write
from mend.house import checking, originality
from mend.trees import backend, heads, tree
import pytest

MEND = ROOT / "build" / "mend"
# Each stands on those before it.
STEPS = ("ground", "releases", "editing", "trees", "upstream", "proof",
         "suites", "mutation", "house", "upkeep", "commands")
TOOLS = sorted(p for f in ("build", "live", "tests/build")
               for p in (ROOT / f).rglob("*.py"))
SHIPPED = sorted((ROOT / "jax").rglob("*.py"))


@pytest.mark.parametrize("path", TOOLS, ids=lambda p: p.name)
def test_tools_stay_small(path):
  text = path.read_text(encoding="utf-8")
  assert text.count("\n") < 300
  for node in ast.walk(ast.parse(text)):
    if isinstance(node, ast.FunctionDef):
      assert node.end_lineno - node.lineno < 40, node.name


# These need the function's name to be understood.
LOST = re.compile(r"(Whether|What|Which|How|Where|As|Of|The same) ")


@pytest.mark.parametrize("path", [*TOOLS, *SHIPPED], ids=lambda p: p.name)
def test_summaries_name_their_subject(path):
  for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
    if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
      words = ast.get_docstring(node) or ""
      assert not LOST.match(words), words.partition("\n")[0]


def imported(tree):
  """The modules of the tool that a module's syntax tree imports, by name."""
  for node in ast.walk(tree):
    if isinstance(node, ast.ImportFrom) and node.module.startswith("mend"):
      for alias in node.names:
        path = [*node.module.split("."), alias.name][1:]
        if MEND.joinpath(*path).is_dir() or (
            MEND.joinpath(*path).with_suffix(".py").is_file()):
          yield ".".join(path)
        else:
          yield ".".join(path[:-1])
    elif isinstance(node, ast.Import):
      yield from (a.name for a in node.names if a.name.startswith("mend"))


def circle(arrows):
  """The modules in a circle of imports, and those that import them."""
  while free := [n for n, names in arrows.items() if not names & arrows.keys()]:
    arrows = {n: a for n, a in arrows.items() if n not in free}
  return sorted(arrows)


def test_imports_of_the_tool_run_one_way():
  order = [*STEPS, "cli"]
  assert sorted(STEPS) == sorted(
      p.parent.name for p in MEND.glob("*/__init__.py"))
  assert [p.name for p in MEND.glob("*.py") if p.stem != "__init__"] == [
      "cli.py"]
  arrows = {}
  for path in sorted(MEND.rglob("*.py")):
    here = ".".join(path.relative_to(MEND).with_suffix("").parts)
    names = set(imported(ast.parse(path.read_text(encoding="utf-8"))))
    for name in names:
      assert order.index(name.split(".")[0]) <= order.index(
          here.split(".")[0]), f"{here} imports {name}, which is above it"
    arrows[here] = names
  assert sum(map(len, arrows.values())) > 100
  assert not circle(arrows)  # within a package either


def test_imports_of_jax_mend_run_one_way():
  live, arrows = ROOT / "live", {}
  paths = [live / "jax_mend_startup.py", *(live / "jax_mend").glob("*.py")]
  modules = {p.stem for p in paths}
  for path in paths:
    arrows[path.stem] = names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
      if isinstance(node, ast.ImportFrom) and node.module == "jax_mend":
        names.update(alias.name for alias in node.names)
      elif isinstance(node, ast.ImportFrom):
        names.add(node.module.removeprefix("jax_mend."))
      elif isinstance(node, ast.Import):
        names.update("__init__" if a.name == "jax_mend" else a.name
                     for a in node.names)
    names &= modules
  assert sum(map(len, arrows.values())) > 20
  assert not circle(arrows)


def test_every_module_of_the_tool_is_on_the_drawing():
  page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
  rows = {line.split("|")[1].strip(" `"): line for line in page.splitlines()
          if line.startswith("| `")}
  assert list(rows) == [*STEPS, "cli"][::-1]
  for path in MEND.glob("*/*.py"):
    if path.stem != "__init__":
      assert f"`{path.stem}`" in rows[path.parent.name], path


LONG = ["x = some_function_of(one, two, three)",
        "y = another_function_of_these(x, x)",
        "z = a_third_function_of(x, y, x, y)"]


def hits(ours, theirs, tmp_path):
  write(tmp_path / "theirs" / "a.py", theirs)
  write(tmp_path / "ours" / "b.py", ours)
  known, files, _ = originality.upstream_lines([tmp_path / "theirs"])
  found, our_files, lines = originality.compare(tmp_path / "ours", known)
  assert (files, our_files) == (1, 1) and lines
  return max([h.run for h in found], default=0)


# What tells who calls, how functions are written or what their variables are
# called. Nothing is computed from it.
OF_CALLERS = {"_getframe", "currentframe", "inspect.stack", "dis"} | {
    f"f_{n}" for n in ("back", "code", "globals", "lasti", "locals")} | {
    f"co_{n}" for n in ("code", "consts", "freevars", "names", "varnames")}
# In warnings and errors: at which line of the program.
LINES_IN_MESSAGES = {
    "meshes/explicit_reshard.py": {"f_code"},
    "mend/source_lines.py": {"f_code"},
    "mend/user_warnings.py": {"_getframe", "f_back", "f_code", "f_globals"}}
# Whether a module of JAX that is being imported has a name later.
ASK_FOR_RELEASES = {"mend/releases.py": {"co_names"}}


def asks_for(tree):
  """The names by which a module asks about callers, code and classes' names."""
  for node in ast.walk(tree):
    if isinstance(node, ast.Attribute):
      yield from (node.attr, ast.unparse(node))
    elif isinstance(node, (ast.Import, ast.ImportFrom)):
      module = getattr(node, "module", None)
      yield from (n for a in node.names for n in (a.name, f"{module}.{a.name}"))
      yield module
    elif isinstance(node, ast.Compare) and any(
        map(is_name_of_class, [node.left, *node.comparators])):
      yield "the name of a class"


def is_name_of_class(node):
  text = ast.unparse(node)
  return text.endswith((".__name__", ".__qualname__")) and (
      "type(" in text or ".__class__." in text) or (
          text.startswith("getattr(") and "'__name__'" in text)


def test_no_module_asks_who_calls_it_or_what_a_class_is_called():
  looked_at, folder = 0, ROOT / "jax" / "_src"
  for path in sorted(folder.rglob("*.py")):
    where = str(path.relative_to(folder))
    names = set(asks_for(ast.parse(path.read_text(encoding="utf-8"))))
    asked = names & {*OF_CALLERS, "the name of a class"}
    allowed = LINES_IN_MESSAGES.get(where, set()) | ASK_FOR_RELEASES.get(
        where, set())
    assert asked <= allowed, f"{where} asks for {sorted(asked - allowed)}"
    assert LINES_IN_MESSAGES.get(where, set()) <= asked, f"{where}: no longer"
    looked_at += 1
  assert looked_at > 100, f"looked at {looked_at} modules only"


@pytest.mark.parametrize("code", [
    "import sys\nsys._getframe(1)", "import dis", "from dis import opname",
    "import inspect\ninspect.currentframe()", "from inspect import stack",
    "f.__code__.co_varnames", "frame.f_back.f_locals['x']",
    "type(e).__name__ == 'WriteEffect'", "type(e).__name__ in _EFFECTS",
    "e.__class__.__name__ != 'ShardMapTrace'",
    "getattr(f, '__name__', '') == '_callback'"])
def test_asking_is_found(code):
  assert {*asks_for(ast.parse(code))} & {*OF_CALLERS, "the name of a class"}


def test_three_shared_lines_in_a_row_are_a_copy(tmp_path):
  text = "\n".join(LONG) + "\n"
  assert hits(text, text, tmp_path) == 3
  indented = "def f():\n  " + "\n  pass\n  ".join(LONG) + "\n"
  assert hits(indented, text, tmp_path) == 3


def test_two_shared_lines_of_a_checkout_are_a_copy_unless_they_are_idiom(
    tmp_path):
  text = "\n".join(LONG[:2]) + "\n"
  write(tmp_path / "ours" / "b.py", text)
  for count, longest in ((originality.IDIOM, 2), (originality.IDIOM + 1, 0)):
    for n in range(count):
      write(tmp_path / "theirs" / "tests" / f"t{n}_test.py", text)
    known, files, lines = originality.lines_of_substance([tmp_path / "theirs"])
    assert (files, lines) == (count, 2 * count)
    found, *_ = originality.compare(tmp_path / "ours", known)
    assert max([h.run for h in found], default=0) == longest


def test_broken_runs_imports_and_licences_are_none(tmp_path):
  text = "\n".join(LONG) + "\n"
  broken = "\n".join([LONG[0], LONG[1], "q = ours_and_only_ours(1, 2, 3, 4)",
                      LONG[2]]) + "\n"
  assert hits(broken, text, tmp_path) == 2
  header = "# Licensed under the Apache License\n" + "# some words here\n" * 9
  imports = "from some.long.package.name import (\n" + "".join(
      f"    a_rather_long_name_number_{i}_of_many,\n" for i in range(5)) + ")\n"
  mine = "value = something_of_our_own_here(1, 2)\n"
  assert hits(header + imports + mine, header + imports, tmp_path) == 0


def test_the_sdist_has_the_project_and_no_upstream_file(tmp_path):
  name = backend.build_sdist(str(tmp_path), {"base": "0.6.0"})
  assert name == "jax-0.6.0+mend.1.tar.gz"
  with tarfile.open(tmp_path / name) as tar:
    names = tar.getnames()
  for file in ("PKG-INFO", "build/build.py", "patches/series"):
    assert f"jax-0.6.0+mend.1/{file}" in names
  assert not any(n.endswith("jax/__init__.py") for n in names)


@pytest.mark.parametrize("states, words", [
    (("exact", "exact"), "exact on all"),
    (("-", "exact"), "exact on 0.6.0"),
    (("gone", "exact"), "gone on 0.5.3; exact on 0.6.0"),
])
def test_status_says_where_a_patch_stands_how(states, words):
  assert checking.in_words(dict(zip(("0.5.3", "0.6.0"), states))) == words


def test_each_file_opens_with_its_licence_in_a_line():
  listed = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT,
                          capture_output=True, text=True, check=True)
  files = listed.stdout.split()
  assert len(files) > 500
  without = [f for f in files if not re.match(
      rf"(#!.*\n)?{re.escape(heads.LINE)}", tree.read(ROOT / f))]
  assert not without


def test_what_is_for_upstream_has_its_notice():
  text = heads.for_upstream(heads.LINE + '"""A module."""\n')
  first, *_, last, module = text.splitlines()
  assert first == "# Copyright 2026 The JAX Authors."
  assert (last, module) == ("# limitations under the License.",
                            '"""A module."""')
  assert "[" not in text and all(
      line.startswith("#") for line in text.splitlines()[:-1])
  other = '"""Another\'s."""\n'
  assert heads.for_upstream(other) == other
