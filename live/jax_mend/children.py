# SPDX-License-Identifier: Apache-2.0
"""Processes that a mended process starts are mended too."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
import os
import sys
from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))
_FOLDER = os.path.dirname(_HERE)
_STARTUP = os.path.join(_HERE, "startup")
PREFIX = "JAX_MEND_PREFIX"  # the environment whose Pythons take part
# A new process runs it before it has its parent's sys.path. On its own path
# jax-mend needn't be, and may stay: at the end, where it hides nothing.
_PROGRAM = (f"import sys; {_FOLDER!a} in sys.path or "
            f"sys.path.append({_FOLDER!a}); "
            "import jax_mend_startup; jax_mend_startup.start()")


def export(env: MutableMapping[str, str] = os.environ) -> None:
  """Sets `env` so that Pythons of this environment start mended.

  A sitecustomize on PYTHONPATH turns it on; it then runs the one that it
  stands before, if there is one.
  """
  old = env.get("PYTHONPATH")  # an empty part of it is the current folder
  paths = [p for p in old.split(os.pathsep) if p != _STARTUP] if old else []
  env["PYTHONPATH"] = os.pathsep.join([_STARTUP, *paths])
  env[PREFIX] = sys.prefix


class _Start:
  """An object whose unpickling turns jax-mend on, wherever it lies."""

  def __reduce__(self) -> tuple[Callable[..., None], tuple[Any, ...]]:
    return exec, (_PROGRAM, {})


def hand_over(spawn: Any) -> None:
  """Has multiprocessing turn jax-mend on first in each new process."""
  original = spawn.get_preparation_data

  def get_preparation_data(*args: Any, **kwargs: Any) -> dict[str, Any]:
    data = original(*args, **kwargs)
    # The new process looks for jax-mend later, at its first import of jax.
    # This one may have found it by a path that it has changed since.
    if _FOLDER not in data["sys_path"]:
      data["sys_path"] = [*data["sys_path"], _FOLDER]
    return {"jax_mend": _Start(), **data}

  spawn.get_preparation_data = get_preparation_data


def begin_server(forkserver: Any) -> None:
  """Has the process that others are forked from turn jax-mend on first.

  Else it is too late in these, where the server has imported jax for them.
  """
  original = forkserver.util.spawnv_passfds

  def spawnv_passfds(path: Any, args: Sequence[Any], passfds: Any) -> int:
    args = [f"{_PROGRAM}; {a}" if isinstance(a, str) and a.startswith(
        "from multiprocessing.forkserver import") else a for a in args]
    return original(path, args, passfds)

  forkserver.util.spawnv_passfds = spawnv_passfds
  # One that runs already may have imported jax: the next process is forked
  # from a new one. The old one ends, as it would, with this process.
  forkserver._forkserver._forkserver_pid = None
