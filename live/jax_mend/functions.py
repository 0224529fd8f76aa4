# SPDX-License-Identifier: Apache-2.0
"""`jax_mend.compare(f, *args)`: compares the calls of one function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
import importlib
import os
import sys
from typing import Any

from jax_mend import (compare_report, comparison, differences, processes,
                      runs)
from jax_mend.errors import Refused

_PROGRAM = """\
import pickle, sys
with open({path!r}, "rb") as file:
  sys.path[:], rest = pickle.load(file)
import jax
f, args = pickle.loads(rest)
jax.block_until_ready(f(*args))
"""


def _pickled(f: Callable[..., Any], args: Sequence[Any]) -> bytes:
  """The function and its arguments.

  Raises:
    Refused: they can't be pickled.
  """
  import pickle
  try:
    cloudpickle = importlib.import_module("cloudpickle")
    return pickle.dumps((sys.path, cloudpickle.dumps((f, args))))
  except ModuleNotFoundError as e:
    raise Refused("jax_mend.compare needs cloudpickle.",
                  f"{sys.executable} -m pip install cloudpickle") from e
  except Exception as e:  # whatever an object says that can't be pickled
    raise Refused(f"{f!r} or an argument can't be pickled: {e}.", "write a "
                  "script, and python -m jax_mend compare SCRIPT") from e


def compare(f: Callable[..., Any], args: Sequence[Any], *,
            rtol: float | None = None, atol: float | None = None,
            timeout: float = 600., store: int = 10**9,
            ) -> comparison.Comparison:
  """Prints the report on a function, and returns what was found."""
  data = _pickled(f, args)
  comparison.require_both()
  with processes.keeping() as keeper:
    path = os.path.join(keeper.folder, "function")
    with open(path, "wb") as file:
      file.write(data)
    found = comparison.compare(
        runs.Settings(["-c", _PROGRAM.format(path=path)], keeper, None, timeout,
                      store, os.getcwd()),
        keeper.folder, differences.Tolerance(rtol, atol))
    print("\n".join(compare_report.lines(found)))
  return found
