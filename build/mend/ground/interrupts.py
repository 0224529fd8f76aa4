# SPDX-License-Identifier: Apache-2.0
"""Ends a run soon after Ctrl-C, whatever its threads are waiting for.

A thread that builds a wheel, or compares files, can't be interrupted, and
Python waits for each. So a signal says at once that the run stops; what can
clear up does; and after `GRACE` seconds the process ends with all that it has
started. What is left then, later runs clear away (`cache`).
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import os
import pathlib
import signal
import sys
import threading
from typing import NoReturn

from mend.ground import bootstrap

GRACE = 2.  # seconds
_said = threading.Event()


def say_stopped() -> int:
  """Prints a stopped run's last line, once; returns its exit code."""
  if not _said.is_set():
    _said.set()
    # At once: another thread may end the process before the end of the line.
    sys.stderr.write(f"{bootstrap.STOPPED}\n")
    sys.stderr.flush()
  return 130


@contextlib.contextmanager
def handled() -> Iterator[None]:
  """Turns Ctrl-C and a termination into a KeyboardInterrupt, and a deadline."""
  if threading.current_thread() is not threading.main_thread():
    yield
    return
  numbers = signal.SIGINT, signal.SIGTERM
  before = [signal.signal(number, _stop) for number in numbers]
  try:
    yield
  except KeyboardInterrupt:
    for number in numbers:  # another one would interrupt the end
      signal.signal(number, signal.SIG_IGN)
    raise
  finally:
    if signal.getsignal(numbers[0]) == _stop:
      for number, handler in zip(numbers, before):
        signal.signal(number, handler)


def _stop(number: int, frame: object) -> NoReturn:
  del number, frame
  os.write(2, b"\n* stopping ...\n")  # print() may be what is interrupted
  timer = threading.Timer(GRACE, _end)
  timer.daemon = True
  timer.start()
  raise KeyboardInterrupt


def _end() -> NoReturn:
  for pid in _descendants(os.getpid()):
    with contextlib.suppress(OSError):
      os.kill(pid, signal.SIGKILL)
  os._exit(say_stopped())


def _descendants(pid: int) -> list[int]:
  """The processes that this one has started, and theirs; none but on Linux."""
  parents: dict[int, list[int]] = {}
  for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
    with contextlib.suppress(OSError, IndexError, ValueError):
      # The name, in parentheses, may hold anything.
      fields = stat.read_text("utf-8", "replace").rpartition(")")[2].split()
      parents.setdefault(int(fields[1]), []).append(int(stat.parent.name))
  found = [pid]
  for one in found:
    found += parents.get(one, [])
  return found[1:]
