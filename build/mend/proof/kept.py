# SPDX-License-Identifier: Apache-2.0
"""Executables that are kept from one run of tests to the next.

A jaxlib has compiled them for this processor; JAX finds them by the module's
text and the compiler's options.
"""

from __future__ import annotations

import functools
import pathlib
import platform

from mend.ground import cache
from mend.releases.bases import Base

VERDICTS = "verdicts"  # `pristine_runs` keeps them
_MOST = {"compiled": 2 << 30, VERDICTS: 64 << 20}  # bytes


def bound() -> None:
  """Removes what has not been used for longest, where there is too much."""
  for name, most in _MOST.items():
    cache.bound(cache.folder(name), most)


def executables(base: Base) -> pathlib.Path:
  """The folder of what this machine's processor and the jaxlib have made."""
  jaxlib = [r for r in base.requirements if r.startswith("jaxlib")]
  return cache.folder("compiled", cache.key(*jaxlib, processor()))


@functools.cache
def processor() -> str:
  """The processor that executables are made for, with what it can do."""
  try:
    text = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8")
  except OSError:
    return platform.machine() + platform.processor()
  said = ("flags", "Features", "model name", "CPU part")
  return "\n".join(sorted({line for line in text.splitlines()
                           if line.startswith(said)}))
