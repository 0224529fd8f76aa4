# SPDX-License-Identifier: Apache-2.0
"""Mends the jax that is installed, as it is imported.

`import jax_mend` before jax, and `import jax` is the mended one. Nothing on
disk is changed: a finder serves the edited files and our modules, each edited
file made from the installed one, whose hash must be the release's own.

`python -m jax_mend --help` has the commands; `JAX_MEND=0` turns it all off.
`compare` tells of a function whether it gives other values mended, and why.
"""

from __future__ import annotations

from collections.abc import Callable
import sys
from typing import Any

from jax_mend import active, children
from jax_mend.errors import NotApplied

__all__ = ["NotApplied", "compare", "pytest_addoption", "pytest_cmdline_main",
           "pytest_configure"]


def compare(f: Callable[..., Any], *args: Any, **settings: Any) -> Any:
  """Calls a function on the stock and the mended jax, and prints what differs.

  Args:
    f: the function; cloudpickle must be able to pickle it.
    *args: its arguments.
    **settings: "rtol", "atol", "timeout" and "store", as the command has them.

  Returns:
    what was found: `rows` of the programs, and `code()`, the exit status.

  Raises:
    Refused: it can't be pickled; use a script.
  """
  from jax_mend import functions
  return functions.compare(f, args, **settings)


def pytest_addoption(parser: Any) -> None:
  """Adds --mend-compare."""
  parser.getgroup("jax_mend").addoption(
      "--mend-compare", action="store_true", help="run the tests on the stock "
      "and on the mended jax, and tell what differs")


def pytest_cmdline_main(config: Any) -> int | None:
  """Runs the tests as `python -m jax_mend compare` runs a program."""
  if not config.getoption("--mend-compare"):
    return None
  from jax_mend import suites
  return suites.compare(config)


def pytest_configure(config: Any) -> None:
  """`pytest -p jax_mend`: Python processes that tests start are mended too."""
  children.export()
  if "jax_mend.recorder" in sys.modules:
    from jax_mend import suites
    config.pluginmanager.register(suites.Telling())


if not active.is_own_command():
  active.activate({"multiprocessing.spawn": children.hand_over,
                   "multiprocessing.forkserver": children.begin_server})
