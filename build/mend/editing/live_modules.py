# SPDX-License-Identifier: Apache-2.0
"""Modules of live/, which is no package of this tool: it does the same things.

What both do, they do by one text: how splices are made, which patches words
choose, how a table is put together. Such a module imports nothing of live/.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
import types

from mend.ground.errors import MendError
from mend.releases import bases

LIVE = bases.ROOT / "live"


@functools.cache
def module_of_live(name: str) -> types.ModuleType:
  """A module of live/, such as "jax_mend/words"."""
  path = LIVE / f"{name}.py"
  spec = importlib.util.spec_from_file_location(
      "jax_mend_" + name.replace("/", "_"), path)
  if spec is None or spec.loader is None or not path.is_file():
    raise MendError(f"There is no {path}.", "git checkout live")
  module = importlib.util.module_from_spec(spec)
  sys.modules[spec.name] = module  # a dataclass looks itself up there
  spec.loader.exec_module(module)
  return module
