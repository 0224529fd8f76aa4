"""Processes that a mended process starts are mended too."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
import os
import sys
from typing import Any

import jax_mend_startup

_STARTUP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "startup")
PREFIX = "JAX_MEND_PREFIX"  # the environment whose Pythons take part


def export(env: MutableMapping[str, str] = os.environ) -> None:
  """Sets `env` so that Pythons of this environment start mended.

  A sitecustomize on PYTHONPATH turns it on; it then runs the one that it
  stands before, if there is one.
  """
  paths = [p for p in env.get("PYTHONPATH", "").split(os.pathsep)
           if p and p != _STARTUP]
  env["PYTHONPATH"] = os.pathsep.join([_STARTUP, *paths])
  env[PREFIX] = sys.prefix


class _Start:
  """An object whose unpickling turns jax-mend on."""

  def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
    return jax_mend_startup.start, ()


def hand_over(spawn: Any) -> None:
  """Has multiprocessing turn jax-mend on first in each new process."""
  original = spawn.get_preparation_data

  def get_preparation_data(*args: Any, **kwargs: Any) -> dict[str, Any]:
    return {"jax_mend": _Start(), **original(*args, **kwargs)}

  spawn.get_preparation_data = get_preparation_data
