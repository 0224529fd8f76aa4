"""The project's own rules: sizes, originality, packaging."""

import ast
import pathlib
import tarfile

from conftest import ROOT, write
from mend import backend, originality, patches, report
import pytest

TOOLS = sorted((ROOT / "build").rglob("*.py"))


@pytest.mark.parametrize("path", TOOLS, ids=lambda p: p.name)
def test_tools_stay_small(path):
  text = path.read_text(encoding="utf-8")
  assert text.count("\n") < 300
  for node in ast.walk(ast.parse(text)):
    if isinstance(node, ast.FunctionDef):
      assert node.end_lineno - node.lineno < 40, node.name


def test_every_module_ships_with_a_patch():
  named = {m for p in patches.load() for m in p.modules}
  there = {str(p.relative_to(ROOT)) for p in (ROOT / "jax").rglob("*.py")}
  assert there and named == there
  assert "jax/__init__.py" not in there


def test_every_test_and_reproduction_belongs_to_a_patch():
  series = patches.load()
  tests = {t for p in series for t in (
      *p.tests, *p.unit_tests, *p.test_helpers)}
  assert tests == {f"tests/{p.name}" for p in (ROOT / "tests").glob("*.py")}
  items = {r for p in series for r in p.reproductions}
  assert items == {f"reproductions/{p.name}"
                   for p in (ROOT / "reproductions").glob("*.py")}


def shared_modules(path):
  """The modules beside a test that it imports, and those that they import."""
  names = set()
  for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
    if isinstance(node, ast.ImportFrom):
      names.add(node.module)
    elif isinstance(node, ast.Import):
      names |= {alias.name for alias in node.names}
  found = {n for n in names if n and (path.parent / f"{n}.py").is_file()}
  return found.union(*(shared_modules(path.parent / f"{n}.py") for n in found))


def test_each_patch_names_what_its_tests_share():
  looked_at = 0
  for patch in patches.load():
    imported = set().union(*(
        shared_modules(ROOT / t) for t in (*patch.tests, *patch.unit_tests)))
    assert imported == {pathlib.Path(h).stem for h in patch.test_helpers}
    looked_at += len(imported)
  assert looked_at


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


def test_three_shared_lines_in_a_row_are_a_copy(tmp_path):
  text = "\n".join(LONG) + "\n"
  assert hits(text, text, tmp_path) == 3
  indented = "def f():\n  " + "\n  pass\n  ".join(LONG) + "\n"
  assert hits(indented, text, tmp_path) == 3


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


def test_tables_are_aligned_and_escape_pipes():
  lines = report.table(("a", "b"), [("1", "x|y"), ("long", "z")]).splitlines()
  assert len({len(line) for line in lines}) == 1 and "x\\|y" in lines[2]
