# SPDX-License-Identifier: Apache-2.0
"""ruff and mypy over the project's own code, and the change log's form."""

from __future__ import annotations

import pathlib
import subprocess

from mend.ground import report
from mend.house import change_log, module_types
from mend.proof import venvs
from mend.releases import bases

_RUFF = ("build", "setup.py", "jax", "tests", "reproductions", "benchmarks",
         "docs", "live")
# What is exported: also by the rules of jax's own pyproject.toml.
_EXPORTED = ("jax", "tests")
_UPSTREAM = ["check", "--quiet", "--isolated", "--preview", "--line-length=80",
             "--target-version=py311",
             "--select=B9,C,F,W,YTT,ASYNC,E101,E112,E113,E115,E117,E225,E227,"
             "E228",
             "--ignore=C408,C417,C420,C901,B901,B903,B904,B905"]
_MYPY = ("build/mend", "live")


def results() -> list[tuple[str, bool]]:
  """Runs each; (name, whether it is content) of each."""
  python = venvs.for_checks()
  return [("ruff", _run(python, "ruff", ["check", "--quiet"], _RUFF)),
          ("ruff as upstream", _run(python, "ruff", _UPSTREAM, _EXPORTED)),
          ("mypy", _run(python, "mypy", ["--no-error-summary"], _MYPY)),
          ("mypy of modules", module_types.good(python)),
          ("change log", change_log.good())]


def _run(python: pathlib.Path, tool: str, options: list[str],
         places: tuple[str, ...]) -> bool:
  here = [p for p in places if (bases.ROOT / p).exists()]
  count = sum(len(list((bases.ROOT / p).rglob("*.py"))) or
              (bases.ROOT / p).suffix == ".py" for p in here)
  done = subprocess.run([python, "-m", tool, *options, *here],
                        cwd=bases.ROOT, capture_output=True, text=True,
                        check=False)
  if done.stdout or done.stderr:
    report.say((done.stdout + done.stderr).rstrip())
  report.say(f"{tool}: {count} files, "
             + ("clean." if done.returncode == 0 else "see above."))
  return done.returncode == 0 and count > 0


