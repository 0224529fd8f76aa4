# SPDX-License-Identifier: Apache-2.0
"""Wraps the lines of a Python text that edits made longer than 80 columns.

A line is broken after a comma or an opening bracket, the outermost first, and
an import is put into parentheses. Nothing but white space within brackets
changes, and no line that was there before. What has no brackets stays long.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
import functools
import re
import textwrap

from ast_grep_py import SgNode
from mend.editing import syntax

WIDTH = 80
_OPENING = ("(", "[", "{")
_IMPORT = re.compile(
    r"( *from [\w.]+ import )((?:[\w.]+(?: as \w+)?(?:, )?)+)(  #.*)?")


def wrapped(text: str, old: str) -> str:
  """The text without long lines that another didn't have."""
  return _wrapped(text, frozenset(
      line for line in old.splitlines() if len(line) > WIDTH))


@functools.cache  # export asks for the same texts once for each commit
def _wrapped(text: str, left: frozenset[str]) -> str:
  stuck = set(left)
  while line := _long(text, stuck):
    number, said = line
    broken = _import(said) or _broken(text, number, said)
    if broken is None:
      stuck.add(said)
    else:
      lines = text.splitlines(keepends=True)
      lines[number] = lines[number].replace(said, broken)
      text = "".join(lines)
  return text


def _long(text: str, stuck: Container[str]) -> tuple[int, str] | None:
  """The first long line, and its number from 0."""
  for number, line in enumerate(text.splitlines()):
    if len(line) > WIDTH and line not in stuck:
      return number, line
  return None


def _import(line: str) -> str | None:
  found = _IMPORT.fullmatch(line)
  if not found:
    return None
  head, names, comment = found.groups()
  indent = " " * (len(head) - len(head.lstrip()) + 4)
  body = textwrap.fill(names, WIDTH - 1, initial_indent=indent,
                       subsequent_indent=indent, break_long_words=False)
  return f"{head}({comment or ''}\n{body})"


def _broken(text: str, number: int, line: str) -> str | None:
  """The line in two, at the best of its places; None where it has none."""
  start = sum(len(x) for x in text.splitlines(keepends=True)[:number])
  indent = len(line) - len(line.lstrip())
  best = None
  for at, depth, opened in _places(syntax.parse(text), start, len(line)):
    head, rest = line[:at].rstrip(), line[at:].strip()
    if not rest or len(head) > WIDTH or at <= indent:
      continue
    column = (indent + 4 if head.endswith(_OPENING) else indent
              if opened is None else opened + 1)
    tail = " " * column + rest
    cost = (len(tail) >= len(line), depth, len(tail) > WIDTH, -at)
    if best is None or cost < best[0]:
      best = cost, f"{head}\n{tail}"
  return best[1] if best and not best[0][0] else None


def _places(root: SgNode, start: int,
            length: int) -> Iterator[tuple[int, int, int | None]]:
  """The columns behind commas and opening brackets of a line.

  Yields:
    Column, how many brackets are open there, and the column of the innermost,
    None where another line has it.
  """
  todo: list[tuple[SgNode, int, int | None]] = [(root, 0, None)]
  while todo:
    node, depth, opened = todo.pop()
    if syntax.end(node) <= start or syntax.start(node) >= start + length:
      continue
    if node.kind() in ("string", "comment"):
      continue
    children = node.children()
    if children and children[0].kind() in _OPENING or any(
        c.kind() == "[" for c in children):
      depth += 1
      bracket = next(c for c in children if c.kind() in _OPENING)
      column = syntax.start(bracket) - start
      opened = column if column >= 0 else None
    for child in children:
      at = syntax.end(child) - start
      if child.kind() in (",", *_OPENING) and depth and 0 < at <= length:
        yield at, depth, opened
      todo.append((child, depth, opened))
