# SPDX-License-Identifier: Apache-2.0
"""Tells which run of a comparison is made, and shows what it prints."""

from __future__ import annotations

from collections.abc import Callable, Sequence
import os
import sys
import time

_EVERY = 30.  # seconds between two words on one run


class Progress:
  """Prints to standard error.

  Args:
    told: whether to name each run.
    shown: which of "stdout" and "stderr" of the runs to hand on.
    most: how many runs there can be.
  """

  def __init__(self, told: bool = False, shown: Sequence[str] = (),
               most: int = 0):
    self._told = told and sys.stderr is not None
    self._shown = shown if sys.stderr is not None else ()
    self._most, self._count = most, 0
    self._began = time.monotonic()

  def begun(self, folder: str, words: str) -> Callable[[float], None]:
    """Tells of a run; what is returned is told its seconds, again and again.

    Args:
      folder: of the run, with its "stdout" and "stderr".
      words: the value of JAX_MEND.
    """
    self._count += 1
    name = f"run {self._count}, {_named(os.path.basename(folder), words)}"
    self._say(f"{name}; {time.monotonic() - self._began:.0f} s so far, at most "
              f"{max(self._most - self._count, 0)} more runs after it")
    files = [open(os.path.join(folder, n), "wb+") for n in self._shown]
    last = 0.

    def look(seconds: float) -> None:
      nonlocal last
      for file in files:
        if data := file.read():
          sys.stderr.buffer.write(data)
          sys.stderr.flush()
      if seconds - last > _EVERY:
        last = seconds
        self._say(f"{name}, for {seconds:.0f} s")

    return look

  def _say(self, text: str) -> None:
    if self._told:
      print(f"jax-mend: {text}", file=sys.stderr, flush=True)


def _named(folder: str, words: str) -> str:
  if folder.startswith("without"):
    return "mended with fewer patches" if words != "0" else "with no patch"
  return {"stock": "stock", "again": "stock once more", "mended": "mended",
          "mended_again": "mended once more",
          "ordinary": "a small program of jax-mend's own"}.get(folder, folder)
