"""A pytest plugin that writes each test's outcome down as soon as it is known.

Loaded with `-p pytest_outcomes` in the Python under test. MEND_OUTCOMES names
the file, one JSON object a line: {"id", "event": "start"} and {"id", "event":
"end", "outcome", "text"}. Tests whose id stands in the file that MEND_DONE
names are left out: so a run goes on after the test that crashed it. If
MEND_ONLY names a file, tests whose id does not stand in it are left out too.
Where MEND_ROOT is set, a test's id begins with its file's name.
MEND_SHARE=K/N takes one test in N, beginning with the Kth, and at least one.
MEND_MATCHING has patterns of names: tests that match none are left out, and
MEND_ONE_IN=N takes one in N of those that match each, the first always.
Where MEND_REDS is set, patterns of names, that is for tests that match one;
of the others MEND_GUARDS=K/N are taken.
"""

import fnmatch
import json
import os

_reports = {}


def _write(record):
  with open(os.environ["MEND_OUTCOMES"], "a", encoding="utf-8") as handle:
    handle.write(json.dumps(record) + "\n")


def _name(nodeid):
  file, *rest = nodeid.split("::")
  name = ".".join(rest)
  return f"{file} {name}" if "MEND_ROOT" in os.environ else name


def _listed(variable):
  path = os.environ.get(variable, "")
  if not path or not os.path.exists(path):
    return None
  with open(path, encoding="utf-8") as handle:
    return set(handle.read().splitlines())


def pytest_collection_modifyitems(config, items):
  done, only = _listed("MEND_DONE") or set(), _listed("MEND_ONLY")
  first, step = map(int, os.environ.get("MEND_SHARE", "0/1").split("/"))
  patterns = os.environ.get("MEND_MATCHING", "*").splitlines()
  one_in = int(os.environ.get("MEND_ONE_IN", "1"))
  # By name: the order of collection must not decide.
  every = sorted(_name(i.nodeid) for i in items)
  names = sorted({name for p in patterns
                  for name in fnmatch.filter(every, p)[::one_in]})
  step = max(1, min(step, len(names)))
  share = set(names[first % step::step])
  if "MEND_REDS" in os.environ:
    reds = os.environ["MEND_REDS"].splitlines()
    guards = [name for name in names
              if not any(fnmatch.fnmatchcase(name, p) for p in reds)]
    first, step = map(int, os.environ["MEND_GUARDS"].split("/"))
    share = share.difference(guards).union(guards[first::step])
  chosen = [i for i in items if _name(i.nodeid) not in done
            and _name(i.nodeid) in (share if only is None else only)]
  if len(chosen) < len(items):
    config.hook.pytest_deselected(items=[i for i in items if i not in chosen])
    items[:] = chosen


def pytest_collectreport(report):
  if report.failed:
    name = f"(collecting) {report.nodeid}"
    if "MEND_ROOT" not in os.environ:
      name = "(collecting)"
    _write({"id": name, "event": "end", "outcome": "failed",
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
