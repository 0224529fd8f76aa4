# SPDX-License-Identifier: Apache-2.0
"""`pytest -p jax_mend --mend-compare`: compares a run of tests."""

from __future__ import annotations

from typing import Any

from jax_mend import (compare_report, comparison, differences, processes,
                      recorder, runs)

_LIMIT, _STORE = 3600., 10**9


def compare(config: Any) -> int:
  """Runs pytest with the same arguments, stock and mended; the exit status."""
  comparison.require_both()
  args = [a for a in config.invocation_params.args if a != "--mend-compare"]
  with processes.keeping() as keeper:
    settings = runs.Settings(["-m", "pytest", *map(str, args)], keeper, None,
                             _LIMIT, _STORE, str(config.invocation_params.dir))
    found = comparison.compare(settings, keeper.folder,
                               differences.Tolerance())
    print("\n".join(compare_report.lines(found)))
  return found.code()


class Telling:
  """A plugin that tells the recorder which test runs, and its outcome."""

  def pytest_runtest_setup(self, item: Any) -> None:
    for one in recorder.running:
      one.where = item.nodeid

  def pytest_runtest_logreport(self, report: Any) -> None:
    if report.when == "call" or report.outcome != "passed":
      for one in recorder.running:
        one.say("outcome", test=report.nodeid, outcome=report.outcome)
