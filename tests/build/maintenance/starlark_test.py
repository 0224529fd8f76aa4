# SPDX-License-Identifier: Apache-2.0
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
    ('a(name = "t", srcs = glob(["*.py"], exclude = ["a.py"]))',
     'a(name = "t", srcs = glob(["*.py"], exclude = ["a.py"]) + ["a.py"])'),
    ('# é\na(name = "t", srcs = glob(["é/**/*.py"]) + [])',
     '# é\na(name = "t", srcs = glob(["é/**/*.py"]) + [\n    "a.py",\n])'),
])
def test_adding_a_source(before, after):
  more = starlark.Additions({("t", "srcs"): ["a.py"]})
  assert starlark.added(before, more) == after
  assert starlark.added(after, more) == after


def test_dependencies_are_in_order():
  text = ('a(\n    name = "t",\n    deps = [\n        ":b",\n        "//z",\n'
          '    ] + py_deps("numpy"),\n)\n')
  more = starlark.Additions()
  for item in ("//a:x", ":c", ":a", ":b", ":c"):
    more.item("t", "deps", item)
  found = starlark.added(text, more)
  assert starlark.targets(found)[0].strings("deps") == [
      ":a", ":b", ":c", "//a:x", "//z", "numpy"]
  assert starlark.added(found, more) == found


@pytest.mark.parametrize("before", [
    'a(\n    name = "t",\n)\n', 'a(name = "t")\n'])
def test_a_target_without_dependencies(before):
  more = starlark.Additions({("t", "deps"): [":b", ":a"]})
  found = starlark.added(before + "\nb(name = 'u')\n", more)
  assert starlark.targets(found)[0].strings("deps") == [":a", ":b"]
  assert '    deps = [\n        ":a",\n        ":b",\n    ],\n)\n' in found


def test_rules_below_others():
  text = 'a(name = "t")\n\na(name = "u")\n'
  more = starlark.Additions(rules={"t": ['a(name = "t2")', 'a(name = "t1")'],
                                   "u": ['a(name = "v")']})
  assert [t.name for t in starlark.targets(starlark.added(text, more))] == [
      "t", "t1", "t2", "u", "v"]
  end = starlark.Additions(rules={"": ['a(name = "w")']})
  assert starlark.added(text, end) == text + '\na(name = "w")\n'


def test_no_such_target():
  with pytest.raises(ValueError, match="no target 'u'"):
    starlark.added('a(name = "t", srcs = ["b.py"])',
                   starlark.Additions({("u", "srcs"): ["a.py"]}))


@pytest.mark.parametrize("pattern,file,found", [
    ("lax/**/*.py", "lax/a.py", True), ("lax/**/*.py", "lax/b/a.py", True),
    ("*.py", "lax/a.py", False), ("lax/*.py", "laxxa.py", False),
    ("a.py", "a.py", True), ("lax/**", "lax/b/a.txt", True)])
def test_a_glob(pattern, file, found):
  assert bool(starlark.glob(pattern).fullmatch(file)) == found
