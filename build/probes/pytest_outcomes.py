"""A pytest plugin that writes each test's outcome down as soon as it is known.

Loaded with `-p pytest_outcomes` in the Python under test. MEND_OUTCOMES names
the file, one JSON object a line: {"id", "event": "start"} and {"id", "event":
"end", "outcome", "text"}. Tests whose id stands in the file that MEND_DONE
names are left out: so a run goes on after the test that crashed it.
"""

import json
import os

_reports = {}


def _write(record):
  with open(os.environ["MEND_OUTCOMES"], "a", encoding="utf-8") as handle:
    handle.write(json.dumps(record) + "\n")


def _name(nodeid):
  return ".".join(nodeid.split("::")[1:])


def pytest_collection_modifyitems(config, items):
  done_file = os.environ.get("MEND_DONE", "")
  done = set()
  if done_file and os.path.exists(done_file):
    with open(done_file, encoding="utf-8") as handle:
      done = set(handle.read().splitlines())
  left = [i for i in items if _name(i.nodeid) in done]
  if left:
    items[:] = [i for i in items if _name(i.nodeid) not in done]
    config.hook.pytest_deselected(items=left)


def pytest_collectreport(report):
  if report.failed:
    _write({"id": "(collecting)", "event": "end", "outcome": "failed",
            "text": str(report.longrepr)})


def pytest_runtest_logstart(nodeid, location):
  _write({"id": _name(nodeid), "event": "start"})
  _reports[nodeid] = []


def pytest_runtest_logreport(report):
  _reports.setdefault(report.nodeid, []).append(report)


def pytest_runtest_logfinish(nodeid, location):
  reports = _reports.pop(nodeid, [])
  outcome, text = "passed", ""
  for report in reports:
    if report.failed:
      outcome, text = "failed", text + str(report.longrepr)
    elif report.skipped and outcome == "passed":
      outcome, text = "skipped", str(report.longrepr)
  _write({"id": _name(nodeid), "event": "end", "outcome": outcome,
          "text": text})
