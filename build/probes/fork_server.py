# SPDX-License-Identifier: Apache-2.0
"""Runs tests and programs in children forked from a process that has jax.

Run by the Python under test, standard library only until it is told what to
import. Importing jax costs more than most of what is run, and no backend is
started by it, so a child of `fork` is as good as a new process: what it does
with jax, its backends, its configuration or its own environment is its own.

Reads one JSON object a line from standard input. The first names the modules
to import, and functions of them, "module:name", to call: {"preload": [...]};
answered with {"ready": true} and the number of threads. Each other one is a
job: {"job", "pytest": its arguments, or "program": a source and "input": its
standard input, "path": what to put before sys.path, "env", "cwd", "output": the
file for what it prints}. Answers: {"job", "pid"} as it starts and {"job",
"exit"} when it has ended. It ends when its standard input does, and its
children with it.
"""

import atexit
import gc
import importlib
import io
import json
import os
import select
import signal
import sys
import threading
import traceback

_WAIT = 0.02  # seconds between looks at the children


def _say(record):
  os.write(_OUT, (json.dumps(record) + "\n").encode())


def _redirect(output):
  for source, flags, targets in (
      (os.devnull, os.O_RDONLY, (0,)),
      (output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, (1, 2))):
    handle = os.open(source, flags, 0o644)
    for target in targets:
      os.dup2(handle, target)
    os.close(handle)


def _program(source, text):
  sys.argv, sys.stdin = ["-c"], io.StringIO(text)
  # As `python -c` runs it: in __main__, whose names it may look up.
  main = type(sys)("__main__")
  sys.modules["__main__"] = main
  exec(compile(source, "<string>", "exec"), main.__dict__)
  return 0


def _pytest(arguments):
  import pytest
  sys.argv = ["pytest", *arguments]
  return int(pytest.main(arguments))


def _child(job):
  """Does the job in this process, which ends with it."""
  code = 1
  try:
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.close(_OUT)
    _redirect(job["output"])
    os.chdir(job["cwd"])
    os.environ.update(job["env"])
    sys.path[:0] = job["path"]
    code = (_pytest(job["pytest"]) if "pytest" in job
            else _program(job["program"], job["input"]))
  except SystemExit as e:
    code = e.code if isinstance(e.code, int) else int(e.code is not None)
  except BaseException:
    traceback.print_exc()
  finally:
    try:
      threading._shutdown()  # as an interpreter that ends waits for threads
      atexit._run_exitfuncs()
      sys.stdout.flush()
      sys.stderr.flush()
    finally:
      os._exit(code)


def _exit_code(status):
  """The exit code as subprocess has it: a signal is a negative number."""
  if os.WIFSIGNALED(status):
    return -os.WTERMSIG(status)
  return os.WEXITSTATUS(status)


def _reap(children):
  for pid, job in list(children.items()):
    done, status = os.waitpid(pid, os.WNOHANG)
    if done:
      del children[pid]
      _say({"job": job, "exit": _exit_code(status)})


def main():
  lines = b""
  children = {}
  while True:
    ready, _, _ = select.select([0], [], [], _WAIT if children else None)
    _reap(children)
    if not ready:
      continue
    read = os.read(0, 1 << 16)
    if not read:
      break
    *whole, lines = (lines + read).split(b"\n")
    for line in whole:
      job = json.loads(line)
      if "preload" in job:
        for name in job["preload"]:
          module, _, function = name.partition(":")
          loaded = importlib.import_module(module)
          if function:
            getattr(loaded, function)()
        gc.collect()
        # Else a child's collector would go through all this, and copy it.
        gc.freeze()
        # As often as is the default, collecting takes one second in twenty.
        gc.set_threshold(20_000, 20, 20)
        _say({"ready": True, "threads": threading.active_count()})
        continue
      pid = os.fork()
      if not pid:
        _child(job)
      children[pid] = job["job"]
      _say({"job": job["job"], "pid": pid})
  for pid in children:
    try:
      os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:  # not yet the head of a group of its own
      os.kill(pid, signal.SIGKILL)


# Answers go to the standard output that we began with; what an import prints
# must not get between them.
_OUT = os.dup(1)
os.set_inheritable(_OUT, False)
os.dup2(2, 1)
sys.path[0] = ""  # as for `python -c` and `python -m`: not this file's folder
main()
