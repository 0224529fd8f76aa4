# SPDX-License-Identifier: Apache-2.0
"""Turns jax_mend on in a process that a mended one has started."""

import importlib
import os
import sys


def _start() -> None:
  here = os.path.dirname(os.path.abspath(__file__))
  sys.path[:] = [p for p in sys.path if os.path.abspath(p) != here]
  if os.environ.get("JAX_MEND_PREFIX") == sys.prefix:
    # jax_mend may be on the parent's path alone, which a script's own isn't.
    folder = os.path.dirname(os.path.dirname(here))
    if folder not in sys.path:
      sys.path.append(folder)
    import jax_mend_startup
    jax_mend_startup.start()
  mine = sys.modules.pop("sitecustomize")
  try:
    importlib.import_module("sitecustomize")  # the one this stands before
  except ModuleNotFoundError as e:
    if e.name != "sitecustomize":
      raise
    sys.modules["sitecustomize"] = mine


_start()
