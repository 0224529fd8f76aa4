# SPDX-License-Identifier: Apache-2.0
"""Names the series' modules and tests to Bazel, in upstream's BUILD files.

A module is a target of its own below the one that sorts before it, with what it
imports as `deps` (see `bazel_graph`); each target that imports it depends on
it, and `//jax` on all of them, as on upstream's. A test stands as near to its
place by name as no other test of the series does, so that two commits, each
made alone, apply one after the other.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping, Sequence
import pathlib

from mend.editing import families
from mend.trees import bazel_graph, imports, starlark
from mend.trees.bazel_graph import Group, Targets

TESTS = "tests/BUILD"
_TEST_RULE = "jax_multiplatform_test"
_TOP = "jax:jax"
_SHORT = 36  # a longer item is on a line of its own
_OF_TESTS = ("jax/_src:test_util", "jax:test_util")
_OTHERS = {"absl/testing": "absl.testing", "numpy": "numpy"}  # for py_deps
_NAMES = ("BUILD", "BUILD.bazel")
Texts = dict[str, str]


def found_in(tree: pathlib.Path) -> Texts:
  """The Bazel files of jax/ and of tests/, path -> text."""
  paths = [p for name in _NAMES for p in (tree / "jax").rglob(name)]
  paths += [tree / TESTS]
  found = {}
  for path in sorted(paths):
    if path.is_file():
      with open(path, encoding="utf-8", newline="") as handle:
        found[path.relative_to(tree).as_posix()] = handle.read()
  return found


def edited(builds: Texts, tree: pathlib.Path, new: Mapping[str, str],
           importing: Iterable[tuple[str, str]],
           every: Iterable[str]) -> Texts:
  """The Bazel files with the new modules and tests in them.

  Args:
    builds: path -> text.
    tree: the checkout.
    new: new file -> text.
    importing: file of upstream's -> code that is added to it.
    every: the file names of all tests of the project, exported now or not.

  Raises:
    MendError: targets of upstream's would need each other.
  """
  libraries = {p: t for p, t in builds.items() if p != TESTS}
  targets = Targets(libraries, lambda name: (tree / name).is_file())
  files = [f for f in new if f.endswith(".py") and targets.package(f)]
  wanted = bazel_graph.needs(targets, {f: new[f] for f in files}, importing)
  if _TOP in targets.graph:  # which needs each of upstream's in there
    wanted.setdefault(_TOP, set()).update(
        f for f in files if f.startswith("jax/_src/")
        and not f.startswith(families.SHARED))
  groups = bazel_graph.groups(targets, files, wanted)
  made = _Made(builds, targets, new, {
      f: g.target or _label(targets, g.files[0])
      for g in groups for f in g.files})
  for group in groups:
    made.add(group)
  for label in sorted(wanted.keys() & targets.graph.keys()):
    made.depend(label, wanted[label])
  if _TEST_RULE in builds.get(TESTS, ""):
    made.add_tests(every)
  return made.texts()


def _label(targets: Targets, file: str) -> str:
  """The label of a new module's own target."""
  folder = targets.package(file)
  inside = pathlib.PurePosixPath(file).relative_to(folder).with_suffix("")
  parts = [p for p in inside.parts if p not in ("__init__", "_src")]
  label = f"{folder}:{'_'.join(parts)}"
  return f"{label}_lib" if label in targets.graph else label


class _Made:
  """Bazel files while the new modules come into them."""

  def __init__(self, texts: Texts, targets: Targets, new: Mapping[str, str],
               labels: Mapping[str, str]):
    self.old, self.targets, self.new = texts, targets, new
    self.labels = labels  # new file -> its target
    self.more = collections.defaultdict[str, starlark.Additions](
        starlark.Additions)

  def texts(self) -> Texts:
    return {path: starlark.added(text, self.more[path])
            for path, text in self.old.items()}

  def _file(self, folder: str) -> str:
    return next(p for n in _NAMES if (p := f"{folder}/{n}") in self.old)

  def _deps(self, needed: Iterable[str], label: str) -> list[str]:
    """Labels as the file of `label` writes them."""
    found = {self.labels.get(n, n) for n in needed} - {label}
    return sorted((bazel_graph.short(n, label.partition(":")[0])
                   for n in found), key=starlark.order)

  def add(self, group: Group) -> None:
    """Makes a target, or adds to upstream's."""
    label = self.labels[group.files[0]]
    folder, _, name = label.partition(":")
    path = self._file(folder)
    if not group.target:
      self.more[path].rule(self._before(path, name), self._rule(group, label))
      return
    for file in group.files:
      inside = file.removeprefix(f"{folder}/")
      if self.targets.package(file) != folder:
        inside = self._lent(file)
      self.more[path].item(name, "srcs", inside)
    self.depend(label, group.needs)

  def _before(self, path: str, name: str) -> str:
    """The library of a Bazel file below which a new one stands."""
    mine = [t.name for t in starlark.targets(self.old[path])
            if "librar" in t.rule]
    return max((n for n in mine if n < name), default=mine[0] if mine else "")

  def _lent(self, file: str) -> str:
    """A file that is a source of another package's target, by its label."""
    label = _label(self.targets, file)
    folder, _, name = label.partition(":")
    path, inside = self._file(folder), file.removeprefix(f"{folder}/")
    self.more[path].rule(
        self._before(path, name), f'filegroup(\n    name = "{name}_file",\n'
        f'    srcs = ["{inside}"],\n    visibility = ["//jax:internal"],\n)')
    return f"//{label}_file"

  def _rule(self, group: Group, label: str) -> str:
    folder = label.partition(":")[0]
    rule, checked = _house_rule(self.old[self._file(folder)])
    inside = [f.removeprefix(f"{folder}/") for f in sorted(group.files)]
    deps = _listed("deps", self._deps(group.needs, label))
    deps = _with_others(deps, [self.new[f] for f in group.files])
    settings = [f'name = "{label.partition(":")[2]}",',
                _listed("srcs", inside),
                'type_checking = "pyrefly",' if checked else "", deps]
    return f"{rule}(\n" + "".join(f"    {s}\n" for s in settings if s) + ")"

  def depend(self, label: str, needed: Iterable[str]) -> None:
    """Adds to the `deps` of upstream's target what they lack."""
    folder, _, name = label.partition(":")
    path = self._file(folder)
    there = self.targets.graph[label]
    for need, dep in ((n, bazel_graph.short(n, folder)) for n in sorted(
        {self.labels.get(n, n) for n in needed} - {label})):
      if need not in there:
        self.more[path].item(name, "deps", dep)

  def add_tests(self, every: Iterable[str]) -> None:
    """Makes a target of each new test in upstream's folder of tests."""
    folder = TESTS.partition("/")[0]
    known = [t for t in starlark.targets(self.old[TESTS])
             if t.rule.endswith("_test")]
    place = _places([t.name for t in known], every)
    shared = self._reached()
    for file in sorted(self.new):
      test = file.removeprefix(f"{folder}/")
      if not test.endswith("_test.py") or test == file or any(
          t.holds(test) for t in known):
        continue
      found = {self.targets.file_of(name, self.new)
               for name in imports.names_in(self.new[file])}
      labels = {self.labels.get(f) or self.targets.holder(f)
                for f in found if f} - shared - {""}
      deps = _with_others(_listed("deps", sorted(
          bazel_graph.short(n, folder) for n in labels)), [self.new[file]])
      self.more[TESTS].rule(
          place.get(test, ""),
          f'{_TEST_RULE}(\n    name = "{test.removesuffix(".py")}",\n'
          f'    srcs = ["{test}"],\n    {deps}\n)')

  def _reached(self) -> set[str]:
    """The targets that each test has without naming them."""
    todo, found = [_TOP, *_OF_TESTS], {*self.labels.values()} - {
        n for f, n in self.labels.items() if f.startswith(families.SHARED)}
    while todo:
      label = todo.pop()
      if label not in found or label == _TOP:
        found.add(label)
        todo += self.targets.graph.get(label, set()) - found
    return found


def _with_others(deps: str, texts: Iterable[str]) -> str:
  """A setting of dependencies with the packages of others that texts import."""
  said = {name for text in texts for name in imports.names_in(text)}
  mine = [p for p, module in _OTHERS.items()
          if any(n == module or n.startswith(f"{module}.") for n in said)]
  if not mine:
    return deps
  body = f'"{mine[0]}"' if len(mine) == 1 else (
      "[\n" + "".join(f'        "{p}",\n' for p in mine) + "    ]")
  return (f"{deps.removesuffix(',')} + " if deps else "deps = ") + (
      f"py_deps({body}),")


def _listed(setting: str, items: Sequence[str]) -> str:
  if not items:
    return ""
  if len(items) == 1 and len(items[0]) < _SHORT:
    return f'{setting} = ["{items[0]}"],'
  body = "".join(f'        "{item}",\n' for item in items)
  return f"{setting} = [\n{body}    ],"


def _house_rule(text: str) -> tuple[str, bool]:
  """The rule of most libraries in a Bazel file; whether types are checked."""
  mine = [t for t in starlark.targets(text) if "librar" in t.rule
          and "imports_info" not in t.rule]
  if not mine:
    return "py_library", False
  rules = collections.Counter(t.rule for t in mine)
  rule = rules.most_common(1)[0][0]
  checked = sum("type_checking" in t.lists for t in mine)
  return rule, 2 * checked > len(mine)


def _places(known: Sequence[str], tests: Iterable[str]) -> dict[str, str]:
  """The target of upstream's below which each test stands.

  A target has one test below it, as long as there are as many targets as
  tests: text that two commits add at one place would conflict.
  """
  names = [k.removesuffix("_test") for k in known]
  free, place = list[int](), dict[str, str]()
  for test in sorted({*tests}) if known else ():
    free = free or [*range(len(known))]
    name = test.removesuffix("_test.py")
    before = max((n for n in names if n <= name), default=names[0])
    wanted = names.index(before)
    at = min(free, key=lambda i: abs(i - wanted))
    free.remove(at)
    place[test] = known[at]
  return place
