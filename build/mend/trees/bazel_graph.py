# SPDX-License-Identifier: Apache-2.0
"""Upstream's Bazel targets as a graph, and where new modules stand in it.

A module has a target of its own, as upstream's have, if nothing that it needs
needs it. Python lets modules import each other in a circle; Bazel does not:
such modules are sources of one target. Where two targets of upstream's would
need each other the modules are refused.

Cost: one strongly-connected-components search over all targets of jax/.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
import dataclasses
import functools
import pathlib

from mend.ground.errors import MendError
from mend.trees import imports, starlark

Graph = dict[str, set[str]]  # label or new file -> what it needs


@dataclasses.dataclass(frozen=True)
class Group:
  """New modules that are sources of one target.

  Attributes:
    files: the modules.
    target: the label of upstream's that they join; "" for one of their own.
    needs: the labels and other new files that they need.
  """
  files: tuple[str, ...]
  target: str
  needs: frozenset[str]


class Targets:
  """The library targets of a tree, by label: `jax/_src:core`."""

  def __init__(self, builds: Mapping[str, str],
               exists: Callable[[str], bool]):
    """Reads Bazel files.

    Args:
      builds: path of each file in the tree -> text.
      exists: whether the tree has a file.
    """
    self.exists = exists
    self._folders = sorted((str(pathlib.PurePosixPath(b).parent)
                            for b in builds), key=len, reverse=True)
    self.by_label = {
        f"{pathlib.PurePosixPath(path).parent}:{t.name}": t
        for path, text in builds.items() for t in starlark.targets(text)}
    self.graph: Graph = {
        label: {absolute(d, label) for d in target.strings("deps")
                if d.startswith((":", "//"))}
        for label, target in self.by_label.items()}
    self._holders: dict[str, str] = {}

  def package(self, file: str) -> str:
    """The folder of the Bazel file that a file belongs to; "" for none."""
    return next((f for f in self._folders if file.startswith(f"{f}/")), "")

  def holder(self, file: str) -> str:
    """The label of the library that has a file among its sources, or ""."""
    if file not in self._holders:
      folder = self.package(file)
      inside = file.removeprefix(f"{folder}/")
      found = [(not t.names(inside), label)
               for label, t in self.by_label.items()
               if label.startswith(f"{folder}:") and t.holds(inside)
               and "test" not in t.rule and t.rule != "filegroup"]
      self._holders[file] = min(found)[1] if found else ""
    return self._holders[file]

  def file_of(self, name: str, new: Iterable[str]) -> str:
    """The file of the module that a dotted name is, or is in; "" for none."""
    parts = name.split(".")
    while parts and parts[0] == "jax":
      for file in ("/".join(parts) + ".py", "/".join(parts) + "/__init__.py"):
        if file in new or self.exists(file):
          return file
      parts.pop()
    return ""


def absolute(dep: str, label: str) -> str:
  """A dependency as a label of the whole tree."""
  if dep.startswith(":"):
    return f"{label.partition(':')[0]}{dep}"
  path = dep.removeprefix("//")
  return path if ":" in path else f"{path}:{path.rpartition('/')[2]}"


def needs(targets: Targets, new: Mapping[str, str],
          importing: Iterable[tuple[str, str]]) -> Graph:
  """Dependencies of the new modules, and of upstream's targets on them.

  Args:
    targets: upstream's.
    new: new module -> text.
    importing: file of upstream's -> code that is added to it.
  """
  found: Graph = {}

  def need(node: str, file: str) -> None:
    other = file if file in new else targets.holder(file)
    if other and other != node:
      found.setdefault(node, set()).add(other)

  for file, text in new.items():
    found.setdefault(file, set())
    for name in imports.at_import(text):
      need(file, targets.file_of(name, new))
    for folder in pathlib.PurePosixPath(file).parents:
      if (package := f"{folder}/__init__.py") in new:
        need(file, package)
  for file, code in importing:
    if holder := targets.holder(file):
      for name in imports.at_import(code):
        need(holder, targets.file_of(name, new))
  return found


def groups(targets: Targets, new: Sequence[str], wanted: Graph) -> list[Group]:
  """The new modules, each with those that must be in its target.

  Args:
    targets: upstream's.
    new: the new modules.
    wanted: of `needs`.

  Raises:
    MendError: targets of upstream's would need each other.
  """
  graph = {n: targets.graph.get(n, set()) | wanted.get(n, set())
           for n in {*targets.graph, *wanted}}
  found = []
  for component in components(graph):
    mine = [f for f in new if f in component]
    theirs = sorted(n for n in component if n in targets.graph)
    if len(theirs) > 1 and mine:
      raise MendError(
          f"{mine[0]} would make Bazel targets need each other in a circle: "
          f"{_circle(graph, mine[0], component)}.",
          f"import what it needs of {theirs[0]} inside of a function, or "
          "move it into a module of its own")
    if mine:
      outside = set[str]().union(*(wanted.get(n, ()) for n in component))
      found.append(Group(tuple(mine), theirs[0] if theirs else "",
                         frozenset(outside - component)))
  return found


def _circle(graph: Graph, start: str, component: set[str]) -> str:
  """A shortest way from a node back to itself."""
  before, todo = {n: start for n in graph[start] & component}, [
      *sorted(graph[start] & component)]
  while todo and start not in before:
    node = todo.pop(0)
    for other in sorted(graph.get(node, set()) & component):
      if other not in before:
        before[other] = node
        todo.append(other)
  way, node = [start], before[start]
  while node != start:
    way.append(node)
    node = before[node]
  return " -> ".join([start, *reversed(way[1:]), start])


def components(graph: Graph) -> list[set[str]]:
  """The strongly connected components, each after those that it needs."""
  index: dict[str, int] = {}
  low: dict[str, int] = {}
  open_, found = list[str](), list[set[str]]()

  def visit(node: str) -> None:
    index[node] = low[node] = len(index)
    open_.append(node)
    for other in sorted(graph.get(node, ())):
      if other not in index:
        visit(other)
        low[node] = min(low[node], low[other])
      elif other in open_:
        low[node] = min(low[node], index[other])
    if low[node] == index[node]:
      at = open_.index(node)
      found.append({*open_[at:]})
      del open_[at:]

  for node in sorted(graph):
    if node not in index:
      visit(node)
  return found


@functools.cache
def short(label: str, package: str) -> str:
  """A label as a Bazel file of `package` writes it."""
  folder, _, name = label.partition(":")
  if folder == package:
    return f":{name}"
  return f"//{folder}" if folder.rpartition("/")[2] == name else f"//{label}"
