# SPDX-License-Identifier: Apache-2.0
"""Turns jax-mend on in this process, or says why not."""

from __future__ import annotations

import builtins
import sys
import types

from jax_mend import asked, installed
from jax_mend.errors import NotApplied
from jax_mend.finder import Finder, Hooks

def finder() -> Finder | None:
  """The finder that serves jax in this process, if jax-mend is on."""
  return next((f for f in sys.meta_path if isinstance(f, Finder)), None)


def is_own_command() -> bool:
  """True in `python -m jax_mend`, which must work where jax can't."""
  if sys.argv[:1] != ["-m"] or len(sys.orig_argv) < len(sys.argv):
    return False
  return sys.orig_argv[-len(sys.argv)].endswith("jax_mend")


def activate(hooks: Hooks = types.MappingProxyType({})) -> None:
  """Makes `import jax` the mended one, in this process.

  Args:
    hooks: functions to call with modules of these names, once imported.

  Raises:
    NotApplied: it can't be; nothing was changed.
  """
  if asked.is_off() or finder() is not None:
    return
  installed.require_files()
  jax = installed.find()
  if jax.by_wheel:
    return
  if "jax" in sys.modules:
    raise NotApplied(
        "jax was imported before jax_mend, so this process runs jax "
        f"{jax.version} as it is installed.", _when_late())
  Finder(installed.table_for(jax), jax, hooks).install()


def _when_late() -> str:
  if hasattr(builtins, "get_ipython"):
    return ("restart the kernel, and put `import jax_mend` into the first "
            "cell")
  return ("put `import jax_mend` before the first import of jax or of what "
          "imports it; or start with python -m jax_mend run SCRIPT; or, for "
          "every program of this environment, python -m jax_mend enable")
