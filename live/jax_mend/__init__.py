# SPDX-License-Identifier: Apache-2.0
"""Mends the jax that is installed, as it is imported.

`import jax_mend` before jax, and `import jax` is the mended one. Nothing on
disk is changed: a finder serves the edited files and our modules, each edited
file made from the installed one, whose hash must be the release's own.

`python -m jax_mend --help` has the commands; `JAX_MEND=0` turns it all off.
"""

from __future__ import annotations

from typing import Any

from jax_mend import active, children
from jax_mend.errors import NotApplied

__all__ = ["NotApplied", "pytest_configure"]


def pytest_configure(config: Any) -> None:
  """`pytest -p jax_mend`: Python processes that tests start are mended too."""
  del config
  children.export()


if not active.is_own_command():
  active.activate({"multiprocessing.spawn": children.hand_over,
                   "multiprocessing.forkserver": children.begin_server})
