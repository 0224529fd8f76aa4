# SPDX-License-Identifier: Apache-2.0
"""Bazel targets of new modules and tests, on Bazel files that are made here."""

from mend.ground.errors import MendError
from mend.trees import build_files, starlark
from mend.trees.build_files import TESTS
import pytest

JAX = """
py_library_providing_imports_info(
    name = "jax",
    srcs = glob(["*.py"]),
    deps = ["//jax/_src:core"],
)
"""
SRC = """
pytype_strict_library(
    name = "core",
    srcs = ["core.py"],
    type_checking = "pyrefly",
    deps = [":util"],
)

pytype_strict_library(
    name = "lax",
    srcs = glob(["lax/*.py"]),
    type_checking = "pyrefly",
    deps = [
        ":core",
        ":util",
    ],
)

pytype_strict_library(
    name = "util",
    srcs = ["util.py"],
    type_checking = "pyrefly",
)
"""
THREE = "\n".join(
    f'jax_multiplatform_test(\n    name = "{n}_test",\n'
    f'    srcs = ["{n}_test.py"],\n    deps = py_deps("absl/testing"),\n)\n'
    for n in ("api", "lax", "tree"))
BUILDS = {"jax/BUILD": JAX, "jax/_src/BUILD": SRC, TESTS: THREE}
FILES = ("jax/__init__.py", "jax/debug.py", "jax/_src/core.py",
         "jax/_src/util.py", "jax/_src/lax/lax.py")


@pytest.fixture
def edited(tmp_path):
  """Edits the Bazel files; the targets by label."""
  for file in FILES:
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text("")

  def run(new, importing=(), every=()):
    found = build_files.edited(BUILDS, tmp_path, new, importing, every)
    return {f"{path.rpartition('/')[0]}:{t.name}": t
            for path, text in found.items() for t in starlark.targets(text)}
  return run


def test_a_module_has_a_target_in_its_place(edited):
  new = {"jax/_src/house/__init__.py": "",
         "jax/_src/house/door.py": "import numpy as np\n"
                                   "from jax._src import core, util\n",
         "jax/_src/house/window.py": "def f():\n"
                                     "  from jax._src.lax import lax\n"}
  found = edited(new, [("jax/_src/lax/lax.py",
                        "from jax._src.house import door as house_door")])
  assert [*found][:7] == [
      "jax:jax", "jax/_src:core", "jax/_src:house", "jax/_src:house_door",
      "jax/_src:house_window", "jax/_src:lax", "jax/_src:util"]
  door = found["jax/_src:house_door"]
  assert door.rule == "pytype_strict_library" and "type_checking" in door.lists
  assert door.strings("srcs") == ["house/door.py"]
  assert door.strings("deps") == [":core", ":house", ":util", "numpy"]
  assert found["jax/_src:house_window"].strings("deps") == [":house"]
  assert found["jax/_src:lax"].strings("deps") == [
      ":core", ":house_door", ":util"]
  assert found["jax:jax"].strings("deps") == [
      "//jax/_src:core", "//jax/_src:house", "//jax/_src:house_door",
      "//jax/_src:house_window"]


def test_modules_that_need_who_needs_them_join_its_target(edited):
  found = edited(
      {"jax/_src/door.py": "from jax._src import core, lock\n",
       "jax/_src/lock.py": "from jax._src import core\n",
       "jax/_src/key.py": "from jax._src import door\n"},
      [("jax/_src/core.py", "from jax._src import door")])
  assert found["jax/_src:core"].strings("srcs") == [
      "core.py", "door.py", "lock.py"]
  assert found["jax/_src:core"].strings("deps") == [":util"]
  assert "jax/_src:door" not in found and "jax/_src:lock" not in found
  assert found["jax/_src:key"].strings("deps") == [":core"]


def test_a_circle_of_upstreams_targets_is_refused(edited):
  with pytest.raises(MendError) as refused:
    edited({"jax/_src/door.py": "from jax._src.lax import lax\n"},
           [("jax/_src/core.py", "from jax._src import door")])
  assert ("jax/_src/door.py -> jax/_src:lax -> jax/_src:core -> "
          "jax/_src/door.py") in refused.value.what


def test_what_a_function_imports_makes_no_circle(edited):
  found = edited(
      {"jax/_src/door.py": "def f():\n  from jax._src.lax import lax\n"},
      [("jax/_src/core.py", "from jax._src import door")])
  assert found["jax/_src:core"].strings("deps") == [":door", ":util"]


def test_a_module_of_jax_itself_is_lent_to_it(edited):
  found = edited({"jax/_src/door.py": "import jax\n"},
                 [("jax/debug.py", "from jax._src import door")])
  assert found["jax/_src:door_file"].rule == "filegroup"
  assert found["jax/_src:door_file"].strings("srcs") == ["door.py"]
  assert found["jax:jax"].names("//jax/_src:door_file")
  assert found["jax:jax"].strings("deps") == ["//jax/_src:core"]


def test_a_name_that_is_taken(edited):
  found = edited({"jax/_src/lax/__init__.py": "", "jax/_src/util/a.py": ""})
  assert found["jax/_src:lax_lib"].strings("srcs") == ["lax/__init__.py"]


def test_a_test_says_what_it_needs_beyond_jax(edited):
  shared = "jax/_src/internal_test_util/doors_testing.py"
  found = edited({
      shared: "import jax\nfrom absl.testing import absltest\n",
      "tests/knock_test.py": "import jax\nimport numpy as np\n"
      "from jax._src.internal_test_util.doors_testing import door\n"
      "from jax._src.lax import lax\nfrom jax._src import core\n"},
      every=["knock_test.py"])
  mine = "internal_test_util_doors_testing"
  assert found["tests:knock_test"].strings("srcs") == ["knock_test.py"]
  assert found["tests:knock_test"].strings("deps") == [
      f"//jax/_src:{mine}", "//jax/_src:lax", "numpy"]
  assert found[f"jax/_src:{mine}"].strings("deps") == ["//jax", "absl/testing"]
  assert f"//jax/_src:{mine}" not in found["jax:jax"].strings("deps")


def test_no_two_tests_stand_at_one_place(edited):
  every = ["lax_a_test.py", "lax_b_test.py", "lax_c_test.py", "old_test.py"]
  alone = [[n for n in edited({f"tests/{test}": ""}, every=every)
            if n.startswith("tests:")] for test in every]
  before = {names[[*names].index(f"tests:{test[:-3]}") - 1]
            for test, names in zip(every[:3], alone)}
  assert before == {"tests:api_test", "tests:lax_test", "tests:tree_test"}
  assert alone[0].index("tests:lax_a_test") == 2  # its place by name
  assert len(alone[3]) == 4  # there are more tests than places
