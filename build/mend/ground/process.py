# SPDX-License-Identifier: Apache-2.0
"""Runs other programs, and says what they printed when they fail."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import os
import pathlib
import subprocess
import sys

from mend.ground import bootstrap, report
from mend.ground.errors import MendError

_LAST_LINES = 25
# Our environments' modules are compiled as they are first imported, and kept.
_REDIRECTS = ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "VIRTUAL_ENV",
              "PYTHONDONTWRITEBYTECODE", "__PYVENV_LAUNCHER__",
              "PIP_REQUIRE_VIRTUALENV", "PIP_TARGET", "PIP_PREFIX", "PIP_USER",
              "PIP_NO_DEPS")


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
  """The caller's environment variables, but for those of Python and pip."""
  # A front end that builds us names our backend in _PYPROJECT_HOOKS_*.
  env = {k: v for k, v in os.environ.items() if k not in _REDIRECTS
         and not k.startswith("_PYPROJECT_HOOKS_")}
  env["PYTHONNOUSERSITE"] = "1"
  env["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"
  env["PIP_ROOT_USER_ACTION"] = "ignore"
  env.update(extra or {})
  return env


def same_packages() -> dict[str, str]:
  """Lets a child Python see what this one sees.

  pip's build isolation puts its packages on sys.path only. Our own build/ is
  left out: it would shadow PyPA's `build`.
  """
  ours = pathlib.Path(__file__).resolve().parents[2]
  paths = [p for p in sys.path if p and pathlib.Path(p).resolve() != ours]
  return {"PYTHONPATH": os.pathsep.join(paths)}


def run(command: Sequence[str | pathlib.Path], *, what: str, next_step: str,
        cwd: pathlib.Path | None = None,
        env: Mapping[str, str] | None = None, umask: int = -1) -> str:
  """Runs a command; returns its standard output.

  `umask` is for the files that it makes; -1 keeps the caller's.

  Raises:
    MendError: it failed; with `what`, the end of its output and `next_step`.
  """
  done = subprocess.run(
      [str(c) for c in command], cwd=cwd, env=environment(env), text=True,
      stdin=subprocess.DEVNULL, capture_output=True, check=False, umask=umask)
  report.detail((done.stdout + done.stderr).rstrip())
  if done.returncode:
    if bootstrap.full(done.stdout + done.stderr):
      next_step = bootstrap.FULL
    tail = (done.stdout + done.stderr).strip().splitlines()[-_LAST_LINES:]
    raise MendError(f"{what} failed (exit {done.returncode}):\n  "
                    + "\n  ".join(tail), next_step)
  return done.stdout
