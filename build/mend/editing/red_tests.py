# SPDX-License-Identifier: Apache-2.0
"""Reads which tests fail on a pristine base from the decorators in their file.

`@red(...)` of tests/testing/red.py, at a test or a class, is read in the text
and never run. What it names is a pattern over cases as
build/probes/pytest_outcomes.py writes them, "Class.test(;name='a';;two=True;)",
for each class of the file that has the test. The cost is a parse of each file
that imports `red`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
import functools
import glob
import itertools
import re
from typing import Any

from mend.editing import expected_failures, keys
from mend.editing.expected_failures import Red
from mend.ground.errors import MendError

IMPORT = "from testing.red import red"
_CALL = re.compile(r"\bred\(")
_KEYWORDS = ("bases", "cases", "api_missing", "also")


@functools.cache  # a command loads the patches more than once
def read(file: str, text: str) -> tuple[Red, ...]:
  """The red tests of a file, in the order in which they count.

  Args:
    file: its path, for messages.
    text: its content.

  Raises:
    MendError: naming file and line, for what the format does not allow.
  """
  if IMPORT not in text:
    return ()
  try:
    tree = ast.parse(text)
  except SyntaxError as e:
    raise MendError(f"{file}, line {e.lineno}: does not parse: {e.msg}",
                    f"edit {file}") from e
  module = _Module(file, tree)
  reds = module.reds()
  if len(_CALL.findall(text)) > module.calls:  # or words of a text
    module.require_all_read()
  return tuple(reds)


class _Module:
  """A test file's classes, and its values that have a name."""

  def __init__(self, file: str, tree: ast.Module):
    self._file, self._tree = file, tree
    self._read: list[ast.Call] = []
    body = list(_flat(tree.body))
    self._classes = {n.name: n for n in body if isinstance(n, ast.ClassDef)}
    self._values = {
        n.targets[0].id: n.value for n in body
        if isinstance(n, ast.Assign) and isinstance(n.targets[0], ast.Name)}

  def reds(self) -> list[Red]:
    """Those of each decorator: what a class says comes after its tests."""
    found: list[tuple[ast.Call, ast.FunctionDef | None, list[str]]] = []
    tests: dict[ast.FunctionDef, list[str]] = {}
    for name in self._test_cases():
      for test in self._tests(self._classes[name]):
        tests.setdefault(test, []).append(f"{name}.{test.name}")
    for test, names in tests.items():
      found += [(call, test, names) for call in _calls(test)]
    for name, node in reversed(self._classes.items()):  # heirs first
      heirs = [f"{c}.*" for c in self._test_cases()
               if node in self._lineage(self._classes[c])]
      found += [(call, None, heirs or [f"{name}.*"]) for call in _calls(node)]
    self._read = [call for call, *_ in found]
    return [red for each in found for red in self._red(*each)]

  @property
  def calls(self) -> int:
    """The number of decorators that were read."""
    return len(self._read)

  def require_all_read(self) -> None:
    """Refuses a `red` that no test has; a walk takes longer than the rest."""
    for call in ast.walk(self._tree):
      if (isinstance(call, ast.Call) and _is_red(call)
          and call not in self._read):
        raise self._refusal(call)("red stands at no test and no class of tests")

  def _test_cases(self) -> list[str]:
    """The classes with a direct or indirect base class of another file."""
    return [name for name, node in self._classes.items()
            if any(_name(b) not in self._classes
                   for c in self._lineage(node) for b in c.bases)]

  def _lineage(self, node: ast.ClassDef) -> list[ast.ClassDef]:
    """A class and those of the file that it inherits from, nearest first."""
    above = [self._classes[_name(b)] for b in node.bases
             if _name(b) in self._classes]
    return [node, *(c for base in above for c in self._lineage(base))]

  def _tests(self, node: ast.ClassDef) -> list[ast.FunctionDef]:
    """The tests of a class, with those that it inherits."""
    found: dict[str, ast.FunctionDef] = {}
    for child in (c for part in self._lineage(node) for c in _flat(part.body)):
      if isinstance(child, ast.FunctionDef):
        found.setdefault(child.name, child)
    return [f for name, f in found.items() if name.startswith("test")]

  def _refusal(self, call: ast.Call) -> keys.Refuse:
    return lambda problem: MendError(
        f"{self._file}, line {call.lineno}: {problem}", f"edit {self._file}")

  def _red(self, call: ast.Call, node: ast.FunctionDef | None,
           names: Sequence[str]) -> list[Red]:
    """A decorator's red tests, once for each reason by release."""
    refuse = self._refusal(call)
    if len(call.args) != 1:
      raise refuse("red takes a reason, and by name " + ", ".join(_KEYWORDS))
    for keyword in call.keywords:
      if keyword.arg not in _KEYWORDS:
        raise refuse(f"red has no {keyword.arg}: wanted {', '.join(_KEYWORDS)}")
    given = {str(k.arg): self._value(k.value, refuse) for k in call.keywords}
    if node:
      ends = _ends(given.get("cases"), node, refuse)
      names = [glob.escape(name) + end for name in names for end in ends]
    elif "cases" in given:
      raise refuse("the tests of a class have no cases in common")
    return expected_failures.read(self._value(call.args[0], refuse), Red(
        tuple(names), "", given.get("bases", ""),
        given.get("api_missing", False), self._file,
        given.get("also", "")), refuse)

  def _value(self, node: ast.expr, refuse: keys.Refuse) -> Any:
    """The value of a literal, or of the module's name of one."""
    if isinstance(node, ast.Name) and node.id in self._values:
      return self._value(self._values[node.id], refuse)
    if isinstance(node, ast.Dict) and None not in node.keys:
      return {self._value(k, refuse): self._value(v, refuse)
              for k, v in zip(node.keys, node.values, strict=True) if k}
    try:
      return ast.literal_eval(node)
    except ValueError as e:
      raise refuse(f"{ast.unparse(node)} is neither a literal nor this file's "
                   "name of one") from e


def _flat(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
  """Statements, and those of an `if` in its place."""
  for node in body:
    if isinstance(node, ast.If):
      yield from _flat([*node.body, *node.orelse])
    else:
      yield node


def _name(node: ast.expr) -> str:
  """A name, or "" of another expression."""
  return node.id if isinstance(node, ast.Name) else ""


def _is_red(node: ast.expr) -> bool:
  return isinstance(node, ast.Call) and _name(node.func) == "red"


def _calls(node: ast.FunctionDef | ast.ClassDef) -> list[ast.Call]:
  """The decorators that are a `red`."""
  return [d for d in node.decorator_list
          if isinstance(d, ast.Call) and _is_red(d)]


def _ends(cases: Any, node: ast.FunctionDef,
          refuse: keys.Refuse) -> list[str]:
  """The ends of patterns of cases, of which one must fit."""
  if cases is None:
    return ["(*"]
  if isinstance(cases, list) and not any(isinstance(c, dict) for c in cases):
    cases = {_first(node): cases}
  known = ["", *_parameters(node)]
  found = []
  for each in cases if isinstance(cases, list) else [cases]:
    if not isinstance(each, dict) or not each or not set(each) <= set(known):
      raise refuse(f"cases {each!r}: wanted values by parameters, of "
                   + ", ".join(known[1:]))
    values = [v if isinstance(v, list) else [v] for v in each.values()]
    found += [_end(dict(zip(each, v, strict=True)))
              for v in itertools.product(*values)]
  if not found:
    raise refuse("cases names none")
  return found


def _first(node: ast.FunctionDef) -> str:
  """The parameter that a list of values is of; "" for the names of cases."""
  named = any(isinstance(part, ast.Attribute)
              and part.attr == "named_parameters"
              for decorator in node.decorator_list
              for part in ast.walk(decorator))
  return "" if named else (*_parameters(node), "")[0]


def _parameters(node: ast.FunctionDef) -> list[str]:
  """The names of a method's parameters."""
  given = node.args
  rest = [a for a in (given.vararg, given.kwarg) if a]
  return [a.arg for a in (*given.args[1:], *given.kwonlyargs, *rest)]


def _end(case: Mapping[str, Any]) -> str:
  """The end of a pattern of the cases with these values."""
  named = repr(case[""]) if "" in case else ""
  fields = (f";{k}={v!r};" for k, v in sorted(case.items()) if k)
  return "*".join(["(" + glob.escape(named), *map(glob.escape, fields), ""])
