# SPDX-License-Identifier: Apache-2.0
"""Output for the user: progress of long steps, and tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import contextlib
import dataclasses
import sys
import threading
import time
from typing import Any

_HEARTBEAT = 15  # seconds between lines of a step that goes on
_BAR = 38  # columns for a bar with its count and clock
verbose = False  # whether what else is looked at or printed is shown too


@dataclasses.dataclass(frozen=True)
class Verdict:
  """The result of a command: the one line that comes last.

  Attributes:
    words: what is so.
    next_step: what to do about it; "" where all is well.
  """
  words: str
  next_step: str = ""

  @property
  def good(self) -> bool:
    return not self.next_step

  def __str__(self) -> str:
    return f"OK: {self.words}" if self.good else (
        f"FAILED: {self.words} Next: {self.next_step}")


def plural(n: int, what: str) -> str:
  return f"{n} {what}{'' if n == 1 else 's'}"


def detail(text: str) -> None:
  """Prints a line that only --verbose shows."""
  if verbose:
    say(text)


def say(text: str = "") -> None:
  print(text, flush=True)


@contextlib.contextmanager
def step(text: str) -> Iterator[None]:
  """Announces a step, says that it goes on, and how long it took.

  Goes to standard error: standard output is for results.
  """
  began = time.monotonic()
  done = threading.Event()
  print(f"* {text} ...", file=sys.stderr, flush=True)

  def beat() -> None:
    while not done.wait(_HEARTBEAT):
      print(f"  ... {text}: {time.monotonic() - began:.0f} s", file=sys.stderr,
            flush=True)

  thread = threading.Thread(target=beat, daemon=True)
  thread.start()
  try:
    yield
  finally:
    done.set()
    thread.join()
  took = time.monotonic() - began
  if took > 1:
    print(f"  {text}: {took:.1f} s", file=sys.stderr, flush=True)


class Progress:
  """Progress of many like things: a line for each, or on a terminal a bar.

  The bar shows how many are done, for how long it runs, and one of those that
  run; the lines of what has gone well are not kept there.
  """

  def __init__(self, total: int):
    self._total, self._ended = total, 0
    self._running: dict[str, None] = {}
    self._lock = threading.Lock()
    self._bar: Any = None

  def __enter__(self) -> Progress:
    if sys.stdout.isatty() and not verbose:
      from rich import progress
      # Count and clock come first: what the line has no room for is cut, and
      # that is the end of a name.
      self._bar = progress.Progress(
          progress.MofNCompleteColumn(), progress.TimeElapsedColumn(),
          progress.BarColumn(20),
          progress.TextColumn("{task.description}", markup=False))
      self._task = self._bar.add_task("", total=self._total)
      self._bar.start()
    return self

  def __exit__(self, *_: object) -> None:
    if self._bar:
      self._bar.stop()

  def begin(self, name: str) -> None:
    with self._lock:
      self._running[name] = None
      self._show()

  def end(self, name: str, line: str, good: bool = True) -> None:
    """Counts one as done; prints its line if it failed or there is no bar."""
    with self._lock:
      self._running.pop(name, None)
      self._ended += 1
      if self._bar and not good:
        self._bar.console.print(line, markup=False, highlight=False)
      elif not self._bar:
        say(f"[{self._ended}/{self._total}] {line}")
      self._show(advance=1)

  def _show(self, advance: int = 0) -> None:
    if self._bar:
      others = len(self._running) - 1
      more = f" and {others} more" if others > 0 else ""
      room = self._bar.console.width - _BAR - len(more)
      name = shorten(next(iter(self._running), ""), max(room, 8))
      self._bar.update(self._task, advance=advance, description=name + more)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
  """A Markdown table with its columns aligned."""
  cells = [[str(c).replace("\n", " ").replace("|", "\\|") for c in row]
           for row in (header, *rows)]
  widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
  lines = ["| " + " | ".join(c.ljust(w) for c, w in zip(row, widths)) + " |"
           for row in cells]
  lines.insert(1, "|" + "|".join("-" * (w + 2) for w in widths) + "|")
  return "\n".join(lines)


def show(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
  """Prints a table: fitted to a terminal, else in Markdown, whole."""
  if not sys.stdout.isatty():
    say(table(header, rows))
    return
  from rich.console import Console
  from rich.table import Table
  drawn = Table()
  for name in header:
    drawn.add_column(name, overflow="fold")  # Nothing is cut off.
  drawn.columns[0].no_wrap = not any(" " in str(row[0]) for row in rows)
  for row in rows:
    drawn.add_row(*(str(cell) for cell in row))
  Console(markup=False, highlight=False).print(drawn)


def shorten(text: str, width: int) -> str:
  text = " ".join(text.split())
  return text if len(text) <= width else text[:width - 3] + "..."
