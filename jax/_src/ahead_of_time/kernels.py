# SPDX-License-Identifier: Apache-2.0
"""Starts the CPU kernels that a stored program calls (jax#28908, jax#24982).

The LAPACK kernels of jaxlib are empty until they are initialized, and those of
`jax.experimental.sparse` unknown until it is imported. Lowering does both for
what it lowers. A program that was lowered in another process has to be looked
at: whose names are in its bytes is started. XLA stores names uncompressed.

Cost: one search of the bytes for each name, some sixty; the import of SciPy's
linear algebra, a few tenths of a second, only if LAPACK is called.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import importlib

from jax._src.lib import lapack
from jax._src.mend import releases


def _sparse_names() -> list[str]:
  sparse = releases.sparse_kernels()
  if sparse is None:
    return []
  return [name for name, *_ in sparse.registrations()['cpu']]


# The names of kernels, and what starts them.
_KERNELS: list[tuple[Callable[[], Sequence[str]], Callable[[], object]]] = [
    (releases.lapack_kernels, lapack._lapack.initialize),
    (_sparse_names,
     lambda: importlib.import_module('jax.experimental.sparse._lowerings')),
]


def start(program: bytes) -> None:
  """Starts the kernels of jaxlib that a program names.

  Args:
    program: a serialized module or executable, for the CPU or not.
  """
  for names, start_them in _KERNELS:
    if any(name.encode() in program for name in names()):
      start_them()
