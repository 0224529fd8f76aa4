# SPDX-License-Identifier: Apache-2.0
"""Gives the tool a private environment; standard library only, Python 3.10.

The caller's environment is never touched: what the tool needs is installed,
pinned, into a folder of the cache, and the command starts again there.
"""

from __future__ import annotations

import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
from typing import NoReturn

_REQUIREMENTS = (pathlib.Path(__file__).resolve().parents[2] / "requirements"
                 / "tool.txt")
_MINIMUM = (3, 10)
_LEAST = 8 << 20  # bytes, without which nothing can be installed
FULL = ("the disk is full: make room, or name a cache folder on another: "
        "MEND_CACHE=DIR")
STOPPED = "FAILED: stopped. Next: run it again; it recovers"


def cache_root() -> pathlib.Path:
  """`$MEND_CACHE`, or mend/ in the user's cache folder."""
  named = os.environ.get("MEND_CACHE")
  if named:
    return pathlib.Path(named).expanduser().absolute()
  # Not platformdirs: this runs before anything has been installed.
  home = os.environ.get("XDG_CACHE_HOME")
  if not home:
    try:
      home = str(pathlib.Path.home() / ".cache")
    except RuntimeError:  # no $HOME, and the user has no entry
      _fail("There is no home folder to keep a cache in ($HOME is not set).",
            "name a folder: MEND_CACHE=DIR python3 build/build.py ...")
  return pathlib.Path(home) / "mend"


def full(text: str) -> bool:
  """True if a program failed because the disk is full.

  Not each says so: what it printed may be that a program of its own failed.
  """
  if "No space left" in text or "Disk quota exceeded" in text:
    return True
  try:
    return shutil.disk_usage(cache_root()).free < _LEAST
  except OSError:
    return False


def _fail(what: str, next_step: str) -> NoReturn:
  sys.exit(f"FAILED: build.py: {what} Next: {next_step}")


def ensure(script: str) -> None:
  """Returns in the private environment; starts `script` there otherwise."""
  if sys.version_info < _MINIMUM:
    _fail(f"Python {sys.version.split()[0]} is too old, 3.10 is the oldest.",
          "run it with a newer one: python3.12 build/build.py ...")
  wanted = _REQUIREMENTS.read_text(encoding="utf-8")
  name = hashlib.sha256(
      f"{sys.base_prefix}\0{sys.version}\0{wanted}".encode()).hexdigest()[:16]
  env = cache_root() / f"tool-{name}"
  if pathlib.Path(sys.prefix).resolve() == env.resolve():
    return
  python = env / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
  # Not is_file(), which raises where the folder may not be looked into.
  if not os.path.isfile(env / ".mend-complete"):
    _make(env, python)
  command = [str(python), script, *sys.argv[1:]]
  if os.name == "nt":
    sys.exit(subprocess.call(command))
  clean = {k: v for k, v in os.environ.items()
           if k not in ("PYTHONPATH", "PYTHONHOME", "__PYVENV_LAUNCHER__")}
  os.execve(command[0], command, clean)


def _make(env: pathlib.Path, python: pathlib.Path) -> None:
  print(f"* preparing build.py's own environment in {env} (once) ...",
        file=sys.stderr, flush=True)
  try:
    env.parent.mkdir(parents=True, exist_ok=True)
    with open(env.parent / f"{env.name}.lock", "w", encoding="utf-8") as lock:
      try:
        import fcntl
        fcntl.flock(lock, fcntl.LOCK_EX)
      except ImportError:
        pass
      if not (env / ".mend-complete").is_file():
        _install(env, python)
  except OSError as e:
    _fail(f"The cache folder {env.parent} can't be used: {e}",
          "name another: MEND_CACHE=DIR python3 build/build.py ...")


def _install(env: pathlib.Path, python: pathlib.Path) -> None:
  if env.exists():  # a killed run's
    shutil.rmtree(env)
  clean = {k: v for k, v in os.environ.items()
           if k not in ("PYTHONPATH", "PYTHONHOME", "PIP_TARGET", "PIP_PREFIX",
                        "PIP_USER", "PIP_REQUIRE_VIRTUALENV")}
  # Of the real interpreter, so that the caller's environment can go away.
  base = getattr(sys, "_base_executable", None) or sys.executable
  for command, next_step in (
      ([base, "-m", "venv", str(env)],
       "install Python's venv module (Debian: apt-get install python3-venv)"),
      ([str(python), "-m", "pip", "install", "--quiet",
        "--disable-pip-version-check", "--no-compile", "-r",
        str(_REQUIREMENTS)],
       "check the network and pip's index settings (pip config list), then "
       "run the same command again")):
    done = subprocess.run(command, env=clean, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, check=False)
    if done.returncode:
      tail = "\n  ".join(done.stdout.strip().splitlines()[-12:])
      if full(done.stdout):
        next_step = FULL
      _fail(f"preparing the tool's environment failed:\n  {tail}", next_step)
  (env / ".mend-complete").write_text("", encoding="utf-8")
