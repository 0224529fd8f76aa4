# SPDX-License-Identifier: Apache-2.0
"""Runs one reproduction; fed to the Python under test on its command line.

Reads {"source", "function"} as JSON from standard input, prints one line
that starts with MEND-RESULT. Standard library only: nothing of this project
is needed where it runs.
"""

import json
import sys
import traceback
import types
import unittest


def _innermost(error):
  """The error's type and first line, as a user would quote it."""
  text = "".join(traceback.format_exception_only(type(error), error)).strip()
  return text.splitlines()[0] if text else repr(error)


def _missing(error):
  """The package missing in an import, unless that is jax; else "".

  jax says "Please install" in an error of its own, from the one of the import.
  """
  if not isinstance(error, ImportError):
    return ""
  while not isinstance(error, ModuleNotFoundError):
    error = error.__cause__ or error.__context__
    if error is None:
      return ""
  name = str(error.name).partition(".")[0]
  return "" if name in ("jax", "jaxlib") else name


def main():
  task = json.load(sys.stdin)
  module = types.ModuleType("reproduction")
  try:
    exec(compile(task["source"], "reproduction", "exec"), module.__dict__)
    seen = getattr(module, task["function"])()
    outcome = ("PASS", str(seen or ""))
  except unittest.SkipTest as e:
    outcome = ("n/a", str(e))
  except BaseException as e:  # a defect may be any exception
    needed = _missing(e)
    if needed:
      outcome = ("n/a", "can't run here: there is no " + needed)
    else:
      traceback.print_exc()
      outcome = ("FAIL", _innermost(e))
  print("\nMEND-RESULT " + json.dumps(outcome), flush=True)


main()
