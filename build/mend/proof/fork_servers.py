# SPDX-License-Identifier: Apache-2.0
"""Processes that begin with jax already imported.

Importing jax and pytest costs more than most test files and programs do. One
server for each Python imports them once and forks a child for each job
(build/probes/fork_server.py); no backend has been started by then, so a child
is as good as a new process. Where that can't be relied on, `Servers` has none,
and the caller starts a process of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import contextlib
import itertools
import json
import os
import pathlib
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from typing import IO, Any, Protocol

from mend.ground import process
from mend.proof import kept
from mend.releases import bases
from mend.releases.bases import Base

_SERVER = bases.ROOT / "build" / "probes" / "fork_server.py"
_LOST = 255  # the exit status of a child whose server is gone
_MOST = 48  # servers at a time: each has 75 MB of its own, an imported jax
stopping = threading.Event()  # the run ends: so do the processes of its tests


class Process(Protocol):
  """The interface of a server's child and of a subprocess.Popen."""
  pid: int
  returncode: Any

  def poll(self) -> int | None: ...

  def wait(self, timeout: float | None = None) -> int: ...


def kill(child: Process) -> None:
  """Ends the child and those that it started, and waits for it."""
  try:
    os.killpg(child.pid, signal.SIGKILL)
  except (AttributeError, ProcessLookupError):
    if isinstance(child, subprocess.Popen):
      child.kill()
  child.wait()


def processor_time(pid: int) -> float:
  """The seconds of processor time of a process; 0. if they are unknown."""
  try:
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
  except OSError:
    return 0.
  # The name, in parentheses, may hold anything.
  user, system = fields.rpartition(")")[2].split()[11:13]
  return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


class Child:
  """A process that a server has forked."""

  def __init__(self) -> None:
    self.pid = 0
    self.returncode: int | None = None
    self.started = threading.Event()
    self.ended = threading.Event()

  def poll(self) -> int | None:
    return self.returncode

  def wait(self, timeout: float | None = None) -> int:
    if not self.ended.wait(timeout):
      raise subprocess.TimeoutExpired("a forked child", timeout or 0.)
    assert self.returncode is not None
    return self.returncode

  def end(self, code: int) -> None:
    self.returncode = code
    self.started.set()
    self.ended.set()


class Server:
  """One Python that has imported what its children need.

  Args:
    python: the interpreter.
    preload: the modules to import; "module:name" calls a function too.
    env: additional environment variables, for all its children too.
  """

  def __init__(self, python: str | pathlib.Path, preload: Sequence[str],
               env: Mapping[str, str]):
    self._errors = tempfile.TemporaryFile()
    self._process = subprocess.Popen(
        [str(python), str(_SERVER)], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=self._errors, text=True,
        env=process.environment(env),
        cwd=tempfile.gettempdir(), start_new_session=True)
    self._lock = threading.Lock()
    self._jobs: dict[int, Child] = {}
    self._gone = False
    self._numbers = itertools.count()
    self._greeting: queue.Queue[int] = queue.Queue()
    assert self._process.stdin and self._process.stdout
    self._requests: IO[str] = self._process.stdin
    self._listener = threading.Thread(
        target=self._listen, args=(self._process.stdout,), daemon=True)
    self._listener.start()
    with contextlib.suppress(OSError):
      self._ask({"preload": list(preload)})
    # Another thread would not be there in a child, whatever it was holding.
    self.usable = self._greeting.get() == 1

  def _ask(self, record: dict[str, Any]) -> None:
    self._requests.write(json.dumps(record) + "\n")
    self._requests.flush()

  def _listen(self, answers: IO[str]) -> None:
    for line in answers:
      answer = json.loads(line)
      if "ready" in answer:
        self._greeting.put(answer["threads"])
        continue
      child = self._jobs[answer["job"]]
      if "pid" in answer:
        child.pid = answer["pid"]
        child.started.set()
      else:
        child.end(answer["exit"])
    self._greeting.put(0)
    with self._lock:
      self._gone = True
      for child in self._jobs.values():
        if child.returncode is None:
          child.end(_LOST)

  def start(self, *, output: pathlib.Path, cwd: pathlib.Path,
            env: Mapping[str, str], path: Sequence[str] = (),
            **what: Any) -> Child:
    """Forks a child for `pytest=arguments`, or `program=source, input=text`."""
    child = Child()
    with self._lock:
      number = next(self._numbers)
      self._jobs[number] = child
      if self._gone:
        child.end(_LOST)
      try:
        self._ask({"job": number, "output": str(output), "cwd": str(cwd),
                   "env": dict(env), "path": list(path), **what})
      except OSError:  # it is gone
        child.end(_LOST)
    child.started.wait()
    return child

  def close(self) -> None:
    """Ends the server, and with it the children that are left."""
    with contextlib.suppress(OSError):
      self._requests.close()
    self._process.wait()
    self._listener.join()
    self._errors.close()


class Servers:
  """A server for each Python that asks for one, until the block ends.

  Args:
    preload: the modules that each imports, or "module:name" to call.
    env: additional environment variables.
  """

  def __init__(self, preload: Sequence[str], env: Mapping[str, str]):
    self._preload, self._env = preload, env
    self._lock = threading.Lock()
    self._locks: dict[str, threading.Lock] = {}
    self._made: dict[str, Server] = {}

  def __enter__(self) -> Servers:
    return self

  def __exit__(self, *_: object) -> None:
    for server in self._made.values():
      server.close()

  def of(self, python: str | pathlib.Path,
         env: Mapping[str, str] | None = None) -> Server | None:
    """The Python's server; None where a new process is safer.

    Forking a process whose libraries have threads is safe on Linux, as they
    are used here; and nowhere else is it tried.

    Args:
      python: the interpreter.
      env: what its environment has beside that of all servers.
    """
    if sys.platform != "linux":
      return None
    more = dict(env or {})
    name = json.dumps([str(python), more], sort_keys=True)
    with self._lock:
      lock = self._locks.setdefault(name, threading.Lock())
    with lock:
      if name not in self._made:
        if len(self._made) >= _MOST:
          return None
        self._made[name] = Server(python, self._preload, {**self._env, **more})
    return self._made[name] if self._made[name].usable else None


class Sharing:
  """Servers with a shared cache of compiled code for releases that can share.

  Both sides of a base have one jaxlib, and most of their programs are the
  same, as are those of the next run: a folder for each jaxlib is kept.
  An executable that 0.5.3 has read back from its cache can give other numbers
  (conjugate gradients in shard_map) and forgets what it may not donate, so on
  such releases every process compiles for itself. Its arguments are those of
  `Servers`.
  """

  def __init__(self, preload: Sequence[str], env: Mapping[str, str]):
    self._preload, self._env = preload, env
    self._stack = contextlib.ExitStack()

  def __enter__(self) -> Sharing:
    self._stack.callback(kept.bound)
    # Upstream's test case refuses a test that makes the cache itself.
    preload = (*self._preload, "jax._src.compilation_cache:_initialize_cache")
    self._sharing = self._stack.enter_context(Servers(preload, {
        **self._env,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"}))
    self._alone = self._stack.enter_context(Servers(self._preload, self._env))
    return self

  def __exit__(self, *error: object) -> None:
    self._stack.close()

  def of(self, python: str | pathlib.Path, base: Base,
         env: Mapping[str, str] | None = None) -> Server | None:
    """The server of a Python with the jax of `base`."""
    if not base.within(">=0.10"):
      return self._alone.of(python, env)
    return self._sharing.of(python, {
        **(env or {}),
        "JAX_COMPILATION_CACHE_DIR": str(kept.executables(base))})
