# SPDX-License-Identifier: Apache-2.0
"""One room a family: the layout of the patches and of what they name."""

import ast
import re

from conftest import ROOT
from mend.editing import families, patches
import pytest

FAMILIES = families.load()
# What stands on what: a module imports from its own step or from an earlier.
STEPS = {
    "jax._src.array_api": (
        ("byte_order", "cpu_rules", "devices", "dlpack", "placement",
         "unknown_device"),
        ("argument", "complex_values", "nan_extrema"), ("keys", "traced")),
    "jax._src.parameter_map": (
        ("entries", "entry_function", "values"), ("map",), ("stored",),
        ("stages",)),
    "jax._src.replication": (
        ("divergence_option", "pvary", "eager_calls", "eager_transfers",
         "cotangents"),
        ("rules",)),
    "jax._src.sanitizer": (
        ("axes", "digests"), ("sites",), ("findings",), ("comparing",),
        ("bodies",), ("programs",), ("replication",), ("annotated",),
        ("reasons",), ("lines",), ("pictures",), ("showing",)),
    "jax._src.varying": (
        ("context", "types", "carry_types", "reduced", "notes", "contents",
         "verify", "dependences"),
        ("flow", "casts", "retrace", "outdated", "backward", "agreement",
         "requirements"),
        ("retype", "retype_values", "bind", "divergence", "origin_walk",
         "origin"),
        ("rules",), ("autodiff",)),
}


def files(pattern, but=()):
  found = {str(p.relative_to(ROOT)) for p in ROOT.glob(pattern)
           if "__pycache__" not in p.parts}
  return {f for f in found if not f.startswith(tuple(but))}


def is_of_ground_floor(file):
  return file.startswith(f"{families.GROUND_FLOOR}/")


def test_a_patch_ships_files_of_its_own_family_only():
  looked_at = 0
  for patch in patches.load():
    family = FAMILIES[families.of(patch.id)]
    for module in patch.modules:
      assert module in family.outside or is_of_ground_floor(module) or (
          module.startswith(tuple(f"{p}/" for p in family.packages))), (
              f"{patch.id} ships {module}, outside of {family.packages}")
      looked_at += 1
  assert looked_at > 60


def test_every_module_ships_with_a_patch():
  named = {m for p in patches.load() for m in p.modules}
  assert named == files("jax/**/*.py") and named
  assert "jax/__init__.py" not in named


def test_every_test_and_reproduction_belongs_to_a_patch():
  series = patches.load()
  tests = {t for p in series for t in (
      *p.tests, *p.unit_tests, *p.test_helpers)}
  # The libraries' programs are held against all patches together.
  assert tests == files("tests/*/*.py", ["tests/build/", "tests/libraries/"]
                        ) | files("tests/*/testing/*.py")
  assert {r for p in series for r in p.reproductions} == files(
      "reproductions/*/*.py")


def test_nothing_lies_outside_of_the_rooms():
  rooms = set(FAMILIES)
  assert {f.split("/")[1] for f in files("patches/**/*.toml")} - {
      "retired.toml", "upstream.toml", "upstream"} == {
          *rooms, "families.toml"}
  assert {f.split("/")[1] for f in files("tests/**/*.py")} == {
      *rooms, "build", "libraries", families.TESTING.partition("/")[2]}
  assert {f.split("/")[1] for f in files("reproductions/**/*.py")} == rooms
  assert {f.rpartition("/")[0] for f in files("jax/**/*.py")} == {
      families.GROUND_FLOOR,
      *(folder for name in rooms for folder in _folders(name))}


def _folders(name):
  family = FAMILIES[name]
  held = {f for p in family.packages for f in files(f"{p}/**/*.py")}
  return {f.rpartition("/")[0] for f in (*family.outside, *held)}


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_has_its_room_in_four_places(name):
  family = FAMILIES[name]
  assert files(f"patches/{name}/*.toml")
  assert files(f"tests/{name}/*_test.py")
  assert files(f"reproductions/{name}/*.py")
  assert bool(family.package) != family.without.startswith("package: ")
  assert all((ROOT / page).is_file() for page in family.pages)
  assert all(files(f"{p}/*.py") for p in family.packages)


def test_a_package_says_what_it_is_for():
  packages = files("jax/**/__init__.py")
  for file in packages:
    doc = ast.get_docstring(ast.parse((ROOT / file).read_text("utf-8")))
    assert doc and 3 <= doc.count("\n") + 1 <= 40, file
    assert "Begin with" in doc, f"{file} doesn't say where to begin"
  assert len(packages) >= 5


def imports(path):
  """The modules of jax that a module imports, also within functions."""
  for node in ast.walk(ast.parse(path.read_text("utf-8"))):
    if isinstance(node, ast.ImportFrom):
      for alias in node.names:
        yield f"{node.module}.{alias.name}"
    elif isinstance(node, ast.Import):
      yield from (alias.name for alias in node.names)


@pytest.mark.parametrize("package", STEPS)
def test_imports_run_one_way(package):
  folder = ROOT / package.replace(".", "/")
  step = {name: n for n, names in enumerate(STEPS[package]) for name in names}
  there = {p.stem for p in folder.iterdir() if p.stem[0] != "_"}
  assert there <= set(step), "name each module's step here"
  arrows = {}
  for path in sorted(folder.rglob("*.py")):
    parts = path.relative_to(folder).with_suffix("").parts
    if parts[-1] == "__init__":
      continue
    here, arrows[".".join(parts)] = parts[0], set()
    for name in imports(path):
      if name.startswith(package + "."):
        there = name.removeprefix(package + ".").split(".")
        assert step[there[0]] <= step[here], (
            f"{path.relative_to(ROOT)} imports {name}, which stands on it")
        arrows[".".join(parts)].add(".".join(there[:len(parts)]))
  assert sum(map(len, arrows.values())) >= 7
  while arrows:  # within a step, too, nothing goes in a circle
    free = [n for n, names in arrows.items() if not names & arrows.keys()]
    assert free, f"these import each other: {sorted(arrows)}"
    arrows = {n: a for n, a in arrows.items() if n not in free}


def test_families_stand_by_themselves():
  packages = {p.replace("/", "."): f.name for f in FAMILIES.values()
              for p in f.packages}
  for package, name in packages.items():
    for path in (ROOT / package.replace(".", "/")).rglob("*.py"):
      for imported in imports(path):
        for other, owner in packages.items():
          assert owner == name or not imported.startswith(other + "."), (
              f"{path} of {name} imports {imported}")


def test_the_ground_floor_imports_no_family():
  packages = [p.replace("/", ".") for f in FAMILIES.values()
              for p in f.packages]
  floor = sorted(files(f"{families.GROUND_FLOOR}/*.py"))
  for file in floor:
    for imported in imports(ROOT / file):
      assert not imported.startswith(tuple(packages)), (
          f"{file} imports {imported}, which stands on it")
  assert len(floor) > 5


def test_each_patch_ships_what_its_modules_import_of_the_ground_floor():
  package, looked_at = families.GROUND_FLOOR.replace("/", "."), 0
  for patch in patches.load():
    for module in patch.modules:
      for name in imports(ROOT / module):
        if name.startswith(package + "."):
          file = name.removeprefix(package + ".").partition(".")[0]
          assert f"{families.GROUND_FLOOR}/{file}.py" in patch.modules, (
              f"{patch.id}: {module} imports {name}")
          looked_at += 1
  assert looked_at > 100


def release_questions(text):
  """The places in a module that ask what a release of JAX has: (line, code).

  By ``hasattr`` or ``getattr`` with a default of a module of JAX or of what it
  imports from one, by the parameters of a function, by a version, or by an
  import that may fail. What a value has that a user or a trace handed over is
  another question.
  """
  tree = ast.parse(text)
  upstream = {
      (alias.asname or alias.name).partition(".")[0]
      for node in ast.walk(tree)
      if isinstance(node, ast.ImportFrom | ast.Import)
      for alias in node.names
      if f"{getattr(node, 'module', None) or alias.name}.".startswith(
          ("jax.", "jaxlib."))}
  for node in ast.walk(tree):
    if (isinstance(node, ast.Call) and len(node.args) > 1 and
        (ast.unparse(node.func), len(node.args)) in (
            ("hasattr", 2), ("getattr", 3)) and
        re.fullmatch(r"[\w.]+", asked := ast.unparse(node.args[0])) and
        asked.partition(".")[0] in upstream):
      yield node.lineno, ast.unparse(node)
    elif isinstance(node, ast.Attribute) and (
        node.attr == "co_varnames" or node.attr.startswith("__version") and
        ast.unparse(node).startswith("jax")):
      yield node.lineno, ast.unparse(node)
    elif isinstance(node, ast.Try) and any(
        isinstance(name, ast.Name) and
        name.id in ("ImportError", "ModuleNotFoundError")
        for handler in node.handlers if handler.type
        for name in ast.walk(handler.type)):
      yield node.lineno, ast.unparse(node.body[0])


@pytest.mark.parametrize("line", [
    "hasattr(core, 'typeof')", "getattr(core.Var, 'suffix', None)",
    "hasattr(State, 'value')", "f.__code__.co_varnames", "jax.__version_info__",
    "try:\n  import jaxlib.cpu_sparse\nexcept ImportError:\n  pass"])
def test_questions_are_recognized(line):
  head = "import jax\nfrom jax._src import core\nfrom jax.x import State\n"
  assert len(list(release_questions(head + line))) == 1
  for other in ("hasattr(x, 'aval')", "getattr(core, name)", "np.__version__"):
    assert not list(release_questions(head + other))


def test_the_ground_floor_alone_asks_what_a_release_has():
  # It asks for PyTorch, which the user has or hasn't installed.
  others = {"jax/experimental/torch_xla.py": 1}
  looked_at = 0
  for file in sorted(files("jax/**/*.py")):
    looked_at += 1
    if not is_of_ground_floor(file):
      found = list(release_questions((ROOT / file).read_text("utf-8")))
      assert len(found) <= others.get(file, 0), (
          f"{file} asks what a release has: {found}. Ask "
          f"{families.GROUND_FLOOR}/releases.py.")
  assert looked_at > 100


def shared_modules(path):
  """The files of the modules below tests/ that a test, and they, import."""
  found = set()
  for name in imports(path):
    for module in (name, name.rpartition(".")[0]):
      file = ROOT / "tests" / f"{module.replace('.', '/')}.py"
      if module and file.is_file():
        found.add(file)
  return found.union(*map(shared_modules, found))


def test_each_patch_names_what_its_tests_share():
  looked_at = 0
  for patch in patches.load():
    imported = set().union(*(
        shared_modules(ROOT / t) for t in (*patch.tests, *patch.unit_tests)))
    assert {str(f.relative_to(ROOT)) for f in imported} == set(
        patch.test_helpers), patch.id
    looked_at += len(imported)
  assert looked_at
