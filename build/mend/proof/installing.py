# SPDX-License-Identifier: Apache-2.0
"""Installs packages into an environment: by uv where it is, by pip elsewhere.

Uv installs in a second what takes pip ten, and keeps what it has unpacked. It
is asked for the same packages from the same index: it is told pip's settings.
What it can't do is tried with pip, whose message a user is shown.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
import functools
import pathlib
import subprocess
import sys

from mend.ground import process, report

# Settings of pip, and the options by which uv is told each of their values.
_LIKE = {"index-url": "--default-index", "extra-index-url": "--index",
         "find-links": "--find-links", "constraint": "--constraint",
         "trusted-host": "--allow-insecure-host"}
_LEVELS = ("global.", "install.", ":env:.")  # the last that has a setting wins


def install(python: pathlib.Path, wanted: Sequence[str | pathlib.Path],
            what: str) -> None:
  """Installs into the environment of a Python.

  Args:
    python: of the environment.
    wanted: requirements, wheels and options that pip and uv both know.
    what: to call it in an error.
  """
  uv = _uv()
  if uv is not None and _by_uv(uv, python, wanted):
    return
  # The environment finds packages in others, too: that is no reason to leave
  # one out. Python compiles what it imports, and pip everything, which takes
  # twice as long as all else that it does.
  process.run([sys.executable, "-m", "pip", "--python", python, "install",
               "--no-compile", "--ignore-installed",
               *([] if report.verbose else ["--quiet"]), *wanted],
              what=f"Installing {what or wanted[-1]}",
              next_step="check the network, then run the same command again")


def _uv() -> pathlib.Path | None:
  """The uv of the tool's own environment, if it has one."""
  windows = sys.platform == "win32"
  found = pathlib.Path(sys.prefix) / ("Scripts/uv.exe" if windows else "bin/uv")
  return found if found.is_file() else None


def _by_uv(uv: pathlib.Path, python: pathlib.Path,
           wanted: Sequence[str | pathlib.Path]) -> bool:
  """True if uv has installed what is wanted."""
  settings = {} if "--no-index" in wanted else _pips_settings()
  if "--require-hashes" in wanted:  # each version is named, and each hash
    settings = {k: v for k, v in settings.items() if k != "constraint"}
  options = [word for key, values in settings.items() if key in _LIKE
             for value in values for word in (_LIKE[key], value)]
  if settings:  # pip takes the best version of all indexes, not of the first
    options += ["--index-strategy", "unsafe-best-match"]
  env = process.environment({})
  if "cert" in settings:
    env.setdefault("SSL_CERT_FILE", settings["cert"][0])
  done = subprocess.run(
      [str(uv), "pip", "install", "--quiet", "--no-config", "--python",
       str(python), *options, *map(str, wanted)], env=env,
      stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
  if done.returncode:
    report.detail(f"uv: {done.stderr.strip()}")
  return done.returncode == 0


@functools.cache
def _pips_settings() -> dict[str, list[str]]:
  """The settings of pip that a user has made: by name, their values."""
  done = subprocess.run([sys.executable, "-m", "pip", "config", "list"],
                        capture_output=True, text=True, check=False)
  return settings_in(done.stdout)


def settings_in(said: str) -> dict[str, list[str]]:
  """The settings of installing in what `pip config list` prints."""
  found: dict[str, list[str]] = {}
  for level in _LEVELS:
    for line in said.splitlines():
      name, equals, value = line.partition("=")
      if equals and name.startswith(level):
        found[name.removeprefix(level)] = str(ast.literal_eval(value)).split()
  return {k: v for k, v in found.items() if v}
