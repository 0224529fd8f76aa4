# SPDX-License-Identifier: Apache-2.0
"""Errors of Mend's own end with the section of a page, which is there."""

import ast

from conftest import ROOT, write
from headings import anchors
import pytest

SOURCES = {p.relative_to(ROOT / "jax/_src").as_posix(): ast.parse(
    p.read_text(encoding="utf-8")) for p in (ROOT / "jax/_src").rglob("*.py")}
FUNCTIONS = (ast.FunctionDef, ast.ClassDef)

# What is raised without a section, by module and class, and the reason.
WITHOUT = {
    ("ahead_of_time/ended_traces.py", "escaped_tracer_error"): "JAX's own",
    ("ahead_of_time/stored_executables.py", "UnpicklingError"):
        "of a file that is no stored executable",
    ("array_api/unknown_device.py", "AttributeError"): "Python's protocols",
    ("compute_on_ahead/stages.py", "AttributeError"): "Python's own words",
    ("mapped_refs/eager_refs.py", "_MetRef"): "caught",
    ("mend/releases.py", "RuntimeError"): "of a module of Mend's, not a user's",
    ("meshes/explicit_reshard.py", "ValueError"): "caught",
    ("meshes/own_signature.py", "TypeError"): "caught",
    ("parameter_map/entry_function.py", "ValueError"): "each has a main",
    ("parameter_map/stages.py", "ValueError"): "a refusal that was kept",
    ("parameter_map/values.py", "ValueError"): "quoted in one that has it",
    ("sanitizer/findings.py", "ReplicationError"): "a finding, no refusal",
    ("varying/rules/loops.py", "TypeError"): "a refusal that is passed on",
}


def is_link(node):
  return (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
          and ast.unparse(node.func) == "pages.see")


def links(sources):
  """Each section that a module names, with the place in the module."""
  return [(f"{name}:{node.lineno}", ast.literal_eval(node.args[0]))
          for name, tree in sources.items()
          for node in ast.walk(tree) if is_link(node)]


def test_each_section_is_there():
  found = links(SOURCES)
  there = {page.name: anchors(page) for page in (ROOT / "docs").glob("*.md")}
  lost = [f"{place} names {section}" for place, section in found
          if section.partition("#")[2] not in there.get(
              section.partition("#")[0], ())]
  assert not lost, lost
  assert len(found) > 80
  assert len({section for _, section in found}) > 30


def names_in(node):
  """Names that an expression reads, those of a module after its own."""
  for n in ast.walk(node):
    if isinstance(n, ast.Name):
      yield n.id
    elif isinstance(n, ast.Attribute):
      yield ast.unparse(n)


def unraised(node):
  """A definition's nodes, but for the errors that it raises itself."""
  yield node
  for child in ast.iter_child_nodes(node):
    if not isinstance(child, ast.Raise):
      yield from unraised(child)


def linking(tree):
  """The functions and classes of a module whose text has a section's name."""
  known = {n.name: list(unraised(n)) for n in tree.body
           if isinstance(n, FUNCTIONS)}
  more = {name for name, nodes in known.items() if any(map(is_link, nodes))}
  found = set()
  while more - found:
    found |= more
    more = {name for name, nodes in known.items() for n in nodes
            if isinstance(n, ast.Name) and n.id in found}
  return found


def imported(tree, by_module):
  """The linking functions of other modules, by their names in this one."""
  for node in tree.body:
    for alias in node.names if isinstance(node, ast.ImportFrom) else ():
      module = f"{node.module}.{alias.name}".replace("jax._src.", "", 1)
      for name in by_module.get(module.replace(".", "/") + ".py", ()):
        yield f"{alias.asname or alias.name}.{name}"


def raised(tree):
  """The errors that a module makes: the function, and the call."""
  for function in tree.body:
    for node in ast.walk(function):
      if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
        yield function, node.exc
      elif isinstance(node, (ast.Return, ast.Assign)) and isinstance(
          node.value, ast.Call) and ast.unparse(node.value.func).endswith(
              ("Error", "type(error)")):
        yield function, node.value


def has_link(function, error, known):
  """True if an error's text has a section's name, as far as assigned."""
  todo, seen = [error], set()
  while todo:
    node = todo.pop()
    if any(map(is_link, ast.walk(node))) or known.intersection(names_in(node)):
      return True
    new = set(names_in(node)) - seen
    seen |= new
    todo += [n.value for n in ast.walk(function) if isinstance(n, ast.Assign)
             and new.intersection(map(ast.unparse, n.targets))]
  return False


def without_link(sources):
  """The errors without a section, by module and class; how many there are."""
  by_module = {name: linking(tree) for name, tree in sources.items()}
  found, count = set(), 0
  for name, tree in sources.items():
    known = by_module[name] | set(imported(tree, by_module))
    for function, error in raised(tree):
      count += 1
      if not has_link(function, error, known):
        found.add((name, ast.unparse(error.func).rpartition(".")[2]))
  return found, count


def test_each_error_has_a_section_or_a_reason():
  found, count = without_link(SOURCES)
  assert found == set(WITHOUT)
  assert count > 90


@pytest.mark.parametrize("code,missing", [
    ("def f():\n  raise ValueError('no')\n", {("a.py", "ValueError")}),
    ("def f():\n  raise ValueError('no' + pages.see('a.md#b'))\n", set()),
    ("def text():\n  return 'no' + pages.see('a.md#b')\n"
     "def f():\n  said = text()\n  raise ValueError(said)\n", set()),
    ("def f():\n  said = 'no'\n  raise ValueError(said)\n",
     {("a.py", "ValueError")})])
def test_an_error_without_a_section_is_found(code, missing):
  assert without_link({"a.py": ast.parse(code)}) == (missing, 1)


def test_a_section_is_found_in_another_module():
  text = "def text():\n  return 'no' + pages.see('a.md#b')\n"
  error = ("from jax._src.a import b as other\n"
           "def f():\n  raise ValueError(other.text())\n")
  both = {"a/b.py": ast.parse(text), "c.py": ast.parse(error)}
  assert without_link(both) == (set(), 1)


def test_a_section_that_is_no_literal_is_refused():
  with pytest.raises(ValueError):
    links({"a.py": ast.parse("pages.see(name)")})


def test_anchors_are_as_github_makes_them(tmp_path):
  page = write(tmp_path / "a.md",
               "# In `shard_map`, twice\n```\n# code\n```\n### A-b: c (d)\n")
  assert anchors(page) == {"in-shard_map-twice", "a-b-c-d"}
