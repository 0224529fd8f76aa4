"""Bazel's BUILD files, to which upstream's targets get our modules."""

from mend.trees import starlark
import pytest


@pytest.mark.parametrize("before,after", [
    ('a(name = "t", srcs = ["b.py"])',
     'a(name = "t", srcs = [\n    "a.py",\n    "b.py",\n])'),
    ('a(\n    name = "t",\n    srcs = [\n        "b.py",\n    ],\n)',
     'a(\n    name = "t",\n    srcs = [\n        "a.py",\n        "b.py",\n'
     '    ],\n)'),
    ('a(name = "t", srcs = glob(["x/*"]))',
     'a(name = "t", srcs = glob(["x/*"]) + ["a.py"])'),
    ('a(name = "t", srcs = glob(["*.py"]))',
     'a(name = "t", srcs = glob(["*.py"]))'),
    ('# é\na(name = "t", srcs = glob(["é/**/*.py"]) + [])',
     '# é\na(name = "t", srcs = glob(["é/**/*.py"]) + [\n    "a.py",\n])'),
])
def test_adding_a_source(before, after):
  assert starlark.add_source(before, "t", "a.py") == after
  assert starlark.add_source(after, "t", "a.py") == after


def test_no_such_target():
  with pytest.raises(ValueError, match="no target 'u'"):
    starlark.add_source('a(name = "t", srcs = ["b.py"])', "u", "a.py")


@pytest.mark.parametrize("pattern,file,found", [
    ("lax/**/*.py", "lax/a.py", True), ("lax/**/*.py", "lax/b/a.py", True),
    ("*.py", "lax/a.py", False), ("lax/*.py", "laxxa.py", False),
    ("a.py", "a.py", True), ("lax/**", "lax/b/a.txt", True)])
def test_a_glob(pattern, file, found):
  assert bool(starlark.glob(pattern).fullmatch(file)) == found
