# SPDX-License-Identifier: Apache-2.0
"""Finds places in a Python source by names and node kinds.

The grammar is tree-sitter's (through ast-grep-py), so a source for a newer
Python can be read under an older one, and text outside an edit is untouched.
A place is given by a definition's qualified name and a selector such as
`call:bind#2`: a node kind, an identifier and an ordinal. No line of the
source is ever quoted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import dataclasses
import re

from ast_grep_py import SgNode, SgRoot

DEFINITIONS = ("function_definition", "class_definition")
_BLOCKS = ("block", "module")
# What definitions are in, other than these themselves: no other expression.
_HOLDERS = frozenset((
    "block", "decorated_definition", "expression_statement", "assignment",
    "if_statement", "elif_clause", "else_clause", "for_statement",
    "while_statement", "with_statement", "match_statement", "case_clause",
    "try_statement", "except_clause", "except_group_clause", "finally_clause"))
_IMPORTS = ("import_statement", "import_from_statement",
            "future_import_statement")
# Selector kind -> tree-sitter node kind.
KINDS = {
    "call": "call", "def": "function_definition", "class": "class_definition",
    "assign": "assignment", "augassign": "augmented_assignment",
    "import": "import_statement", "kwarg": "keyword_argument",
    "return": "return_statement", "if": "if_statement", "for": "for_statement",
    "while": "while_statement", "with": "with_statement",
    "raise": "raise_statement", "try": "try_statement",
    "expr": "expression_statement", "assert": "assert_statement",
    "del": "delete_statement",
}
_NAMED_ONLY = ("call", "def", "class", "assign", "augassign", "import", "kwarg")


class NotFound(LookupError):
  """A name or selector matched no place, or more than one."""


@dataclasses.dataclass(frozen=True)
class Selector:
  kind: str
  name: str
  ordinal: int  # 0: the match must be unique

  @classmethod
  def parse(cls, text: str) -> Selector:
    """Reads `kind[:name][#n]`; raises ValueError for anything else."""
    m = re.fullmatch(r"([a-z]+)(?::([A-Za-z_]\w*))?(?:#([1-9]\d*))?", text)
    if not m or m[1] not in KINDS:
      raise ValueError(
          f"selector {text!r} is not kind[:name][#n] with kind one of "
          f"{', '.join(KINDS)}")
    if m[1] in _NAMED_ONLY and not m[2]:
      raise ValueError(f"selector {text!r} needs a name: {m[1]}:NAME")
    return cls(m[1], m[2] or "", int(m[3] or 0))


def start(node: SgNode) -> int:
  return node.range().start.index


def end(node: SgNode) -> int:
  return node.range().end.index


def named(node: SgNode) -> list[SgNode]:
  """The node's named children, comments left out."""
  return [c for c in node.children() if c.is_named() and c.kind() != "comment"]


def lines(found: Sequence[SgNode]) -> str:
  """The lines at which an ambiguous name or selector is found, or ""."""
  if not found:
    return ""
  numbers = ", ".join(str(n.range().start.line + 1) for n in found)
  return f", in line{'' if len(found) == 1 else 's'} {numbers}"


def field(node: SgNode, name: str) -> SgNode:
  child = node.field(name)
  if child is None:
    raise NotFound(f"a {node.kind()} without a {name}")
  return child


def walk(node: SgNode, into_definitions: bool = True) -> Iterator[SgNode]:
  """Every node below `node`, in source order."""
  for child in node.children():
    yield child
    if into_definitions or child.kind() not in DEFINITIONS:
      yield from walk(child, into_definitions)


def _defined(node: SgNode) -> Iterator[SgNode]:
  """The definitions and assignments below `node`, not in other definitions."""
  for child in node.children():
    kind = child.kind()
    if kind in DEFINITIONS or kind == "assignment":
      yield child
    if kind in _HOLDERS:
      yield from _defined(child)


def parse(text: str) -> SgNode:
  return SgRoot(text, "python").root()


def definition_name(node: SgNode) -> str:
  return field(node, "name").text()


def find_definition(root: SgNode, qualname: str, n: int | None) -> SgNode:
  """The def, class or assignment that `qualname` names.

  Args:
    root: the module.
    qualname: dotted, through classes and enclosing functions.
    n: which one, from 1 (from -1 backwards), where a name occurs repeatedly.

  Raises:
    NotFound: there is none, or several and no `n`.
  """
  scope = root
  parts = qualname.split(".")
  for i, part in enumerate(parts):
    inner = scope if scope is root else field(scope, "body")
    found = [d for d in _defined(inner) if _defines(d, part)]
    last = i == len(parts) - 1
    if last and n is not None and -len(found) <= n <= len(found) and n:
      found = [found[n - 1 if n > 0 else n]]
    if len(found) != 1:
      raise NotFound(f"{len(found)} definitions of "
                     f"{'.'.join(parts[:i + 1])!r}{lines(found)}")
    scope = found[0]
  return scope


def _defines(node: SgNode, name: str) -> bool:
  if node.kind() in DEFINITIONS:
    return definition_name(node) == name
  return (field(node, "left").text() == name
          and node.field("right") is not None)


def find(scope: SgNode, selector: Selector) -> SgNode:
  """The one node in `scope` that `selector` matches.

  In a module, the insides of its functions and classes are not searched.

  Raises:
    NotFound: no match, or several and no ordinal.
  """
  inner = scope if scope.kind() == "module" else (
      scope.field("body") or scope)
  deep = scope.kind() != "module"
  found = [node for node in walk(inner, into_definitions=deep)
           if _matches(node, selector)]
  if selector.ordinal:
    if len(found) < selector.ordinal:
      raise NotFound(f"{len(found)} matches of {selector}{lines(found)}")
    return found[selector.ordinal - 1]
  if len(found) != 1:
    raise NotFound(f"{len(found)} matches of {selector}{lines(found)}")
  return found[0]


def _matches(node: SgNode, selector: Selector) -> bool:
  kind, name = selector.kind, selector.name
  if kind == "import":
    return node.kind() in _IMPORTS and name in bound_by_import(node)
  if node.kind() != KINDS[kind]:
    return False
  if kind == "call":
    return _last_identifier(field(node, "function")) == name
  if kind in ("def", "class"):
    return definition_name(node) == name
  if kind in ("assign", "augassign"):
    return name in _targets(field(node, "left"))
  if kind == "kwarg":
    return field(node, "name").text() == name
  return not name or name in _header_identifiers(node)


def _last_identifier(node: SgNode) -> str:
  if node.kind() == "attribute":
    return field(node, "attribute").text()
  return node.text() if node.kind() == "identifier" else ""


def _targets(node: SgNode) -> set[str]:
  if node.kind() in ("identifier", "attribute"):
    return {_last_identifier(node)}
  if node.kind() == "subscript":
    return _targets(field(node, "value"))
  return set().union(*(_targets(c) for c in named(node)))


def bound_by_import(node: SgNode) -> set[str]:
  """The names that an import statement binds."""
  names = set()
  module = node.field("module_name")
  for child in named(node):
    if module is not None and start(child) == start(module):
      continue
    alias = child.field("alias")
    names.add(alias.text() if alias else child.text())
  return names


def _header_identifiers(node: SgNode) -> set[str]:
  """The identifiers of a statement, its blocks and clauses left out."""
  names: set[str] = set()
  for child in node.children():
    if child.kind() == "identifier":
      names.add(child.text())
    elif child.kind() != "block" and not child.kind().endswith("_clause"):
      names |= _header_identifiers(child)
    elif child.kind() == "with_clause":
      names |= _header_identifiers(child)
  return names


def statement_of(node: SgNode) -> SgNode:
  """The statement that holds `node`, decorators included."""
  parent = node.parent()
  while parent is not None and parent.kind() not in _BLOCKS:
    node, parent = parent, parent.parent()
  return node


def parameter_names(definition: SgNode) -> list[str]:
  """The names of a function's parameters, stars kept, annotations dropped."""
  names = []
  for parameter in named(field(definition, "parameters")):
    if parameter.kind().endswith("_separator"):
      continue
    name = parameter.field("name") or (
        named(parameter)[0] if parameter.kind() == "typed_parameter"
        else parameter)
    names.append(name.text())
  return names


def signature(definition: SgNode) -> str:
  """The name of a function and of its parameters; of a class, its name."""
  name = definition_name(definition)
  if definition.kind() == "class_definition":
    return f"class {name}"
  return f"def {name}({', '.join(parameter_names(definition))})"


def docstring(definition: SgNode) -> SgNode | None:
  """The statement that is a definition's docstring."""
  body = named(field(definition, "body"))
  if body and body[0].kind() == "expression_statement":
    inner = named(body[0])
    if len(inner) == 1 and inner[0].kind() in ("string", "concatenated_string"):
      return body[0]
  return None


def leading_imports(module: SgNode) -> list[SgNode]:
  """The imports of the block that opens a module."""
  found: list[SgNode] = []
  for child in named(module):
    if child.kind() in _IMPORTS:
      found.append(child)
    elif found or child.kind() != "expression_statement":
      break
  return found


def last_leading_import(module: SgNode) -> SgNode | None:
  """The last import of the block of imports that opens a module."""
  return next(reversed(leading_imports(module)), None)


def import_key(statement: str) -> tuple[str, tuple[str, ...]]:
  """The package of an import, and what imports of it are sorted by."""
  words = statement.replace(",", " ").split()
  return words[1].partition(".")[0], (words[1], *words[3:4])
