# SPDX-License-Identifier: Apache-2.0
"""Ends what a comparison has started, however the comparison itself ends.

Each program is run as a group of processes. A keeper, a small process of its
own, reads from a pipe which group runs. When the pipe is closed, also by the
death of the command, it ends the group and removes the temporary folder.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import os
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any

_KEEPER = """\
import os, shutil, signal, sys
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
  signal.signal(number, signal.SIG_IGN)
group = 0
for line in sys.stdin.buffer:
  group = int(line)
if group:
  try:
    os.killpg(group, signal.SIGKILL)
  except ProcessLookupError:
    pass
shutil.rmtree(sys.argv[1], ignore_errors=True)
"""
_LOOK = .02  # seconds between looks at a process or at its input
_PATIENCE = 1.  # seconds in which standard input may end before a run


class Keeper:
  """A temporary folder, and the process that cleans up.

  Attributes:
    folder: the folder, which is gone when the keeper has been closed.
  """

  def __init__(self) -> None:
    self._temporary = tempfile.TemporaryDirectory(prefix="jax-mend-")
    self.folder = self._temporary.name
    self._process: subprocess.Popen[bytes] | None = None
    if os.name != "nt":
      self._process = subprocess.Popen(
          [sys.executable, "-I", "-S", "-c", _KEEPER, self.folder],
          stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
          stderr=subprocess.DEVNULL, start_new_session=True, cwd="/")

  def watch(self, group: int) -> None:
    """Has a group of processes ended with this one; 0 for none."""
    if self._process and self._process.stdin:
      with contextlib.suppress(OSError):  # somebody has ended the keeper
        self._process.stdin.write(b"%d\n" % group)
        self._process.stdin.flush()

  def close(self) -> None:
    self._temporary.cleanup()
    if self._process and self._process.stdin:
      with contextlib.suppress(OSError):
        self._process.stdin.close()
      self._process.wait()


class Ended(BaseException):
  """A signal has ended the command, whose `number` it is."""

  def __init__(self, number: int):
    super().__init__(number)
    self.number = number


@contextlib.contextmanager
def keeping() -> Iterator[Keeper]:
  """A keeper, in a block that SIGTERM and SIGHUP end as an error does."""

  def end(number: int, frame: Any) -> None:
    raise Ended(number)

  before = {}
  if threading.current_thread() is threading.main_thread():
    for name in ("SIGTERM", "SIGHUP"):
      number = getattr(signal, name, None)
      if number and signal.getsignal(number) != signal.SIG_IGN:  # nohup
        before[number] = signal.signal(number, end)
  keeper = Keeper()
  try:
    yield keeper
  finally:
    keeper.close()
    for number, handler in before.items():
      signal.signal(number, handler)


class Input:
  """The standard input of the command, which each run is given.

  What comes is written to a file, and is handed on from there. If it has not
  ended, a run is given what there is, and then what comes.
  """

  def __init__(self, folder: str):
    self._path = os.path.join(folder, "stdin")
    self._over = threading.Event()
    self._said = False
    with open(self._path, "wb"):
      pass
    if sys.stdin is None or sys.stdin.closed or sys.stdin.isatty():
      self._over.set()
      return
    pump = threading.Thread(target=self._pump, args=[sys.stdin.fileno()],
                            daemon=True)
    pump.start()
    if stat.S_ISREG(os.fstat(sys.stdin.fileno()).st_mode):
      pump.join()

  def _pump(self, source: int) -> None:
    with open(self._path, "ab", buffering=0) as file:
      with contextlib.suppress(OSError):
        while data := os.read(source, 1 << 16):
          file.write(data)
    self._over.set()

  @contextlib.contextmanager
  def given(self) -> Iterator[Any]:
    """The standard input of a run, as `Popen` takes it."""
    if self._over.wait(_PATIENCE):
      with open(self._path, "rb") as file:
        yield file
      return
    if not self._said and sys.stderr:
      self._said = True
      print("jax-mend: standard input is still open: each run is given what "
            "comes of it (< /dev/null gives it none)", file=sys.stderr)
    yield subprocess.PIPE

  def feed(self, process: Any) -> None:
    """Writes to a run that reads a pipe, as long as it runs."""
    if process.stdin:
      threading.Thread(target=self._feed, args=[process], daemon=True).start()

  def _feed(self, process: Any) -> None:
    with contextlib.suppress(OSError), process.stdin as pipe:
      with open(self._path, "rb") as file:
        while process.returncode is None:
          over = self._over.is_set()
          if data := file.read(1 << 16):
            pipe.write(data)
            pipe.flush()
          elif over:
            break
          else:
            time.sleep(_LOOK)


def wait(process: Any, limit: float, look: Any) -> tuple[int | None, int]:
  """Waits for a process, and ends its group.

  Args:
    process: the head of a group.
    limit: seconds.
    look: called with the seconds so far, again and again.

  Returns:
    the exit status, None if it hung, and the peak of its memory.
  """
  began, ended = time.monotonic(), None
  try:
    while (seconds := time.monotonic() - began) < limit and not ended:
      look(seconds)
      ended = _ended(process)
      if not ended:
        time.sleep(_LOOK)
    look(seconds)
  finally:
    _kill(process)
  return ended or (None, 0)


def _ended(process: Any) -> tuple[int | None, int] | None:
  """The exit status and the peak of the memory of a process that has ended."""
  if not hasattr(os, "wait4"):
    return None if process.poll() is None else (process.returncode, 0)
  pid, status, usage = os.wait4(process.pid, os.WNOHANG)
  if not pid:
    return None
  process.returncode = os.waitstatus_to_exitcode(status)
  return process.returncode, usage.ru_maxrss * (
      1 if sys.platform == "darwin" else 1024)


def _kill(process: Any) -> None:
  """Ends a program, with the processes that it has started."""
  if hasattr(os, "killpg"):
    with contextlib.suppress(ProcessLookupError):  # all have ended
      os.killpg(process.pid, signal.SIGKILL)
  if process.returncode is None:
    process.kill()
    process.wait()
