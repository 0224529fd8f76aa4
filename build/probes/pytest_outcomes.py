# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin that writes each test's outcome down as soon as it is known.

Loaded with `-p pytest_outcomes` in the Python under test. MEND_OUTCOMES names
the file, one JSON object a line: {"id", "event": "start"} and {"id", "event":
"end", "outcome", "text"}. Tests whose id stands in the file that MEND_DONE
names are left out: so a run goes on after the test that crashed it. If
MEND_ONLY names a file, tests whose id does not stand in it are left out too.
Where MEND_ROOT is set, a test's id begins with its file's name.
MEND_SHARE=K/N takes one test in N, beginning with the Kth, and at least one.
MEND_REDS has kinds of tests, one a line: patterns of names, with tabs between.
Of the tests of each, MEND_REDS_SHARE=K/N are taken, and MEND_OTHERS_SHARE=K/N
of those of none; none of these if N is 0. Those that MEND_KEPT names are taken
besides, and stand for others of their kind: of these there need not be one.
MEND_CASES=N takes one in N of the cases of each parameterized test before that,
but of each kind, those that MEND_KEPT names too, and all of one or two.
MEND_JAX names the folder that jax must come from: a conftest.py above the
tests, or a `jax` beside them, can put another one before it.
"""

import fnmatch
import json
import os
import sys

import pytest

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


def _part(names, share, kept=frozenset()):
  """Takes one item in N from the Kth on, at least one; share: "K/N".

  With those of them that are kept, which may be all.
  """
  first, step = map(int, share.split("/"))
  mine = [name for name in names if name in kept]
  if not step or not names:
    return mine
  if not mine:
    step = min(step, len(names))
  return mine + names[first % step::step]


def _kept():
  return set(os.environ.get("MEND_KEPT", "").splitlines())


def _without_cases(item):
  """The name of a test, and of a parameterized one without its parameters."""
  name, test = _name(item.nodeid), getattr(item, "obj", None)
  if hasattr(test, "__x_params_repr__"):  # absl's
    return f"{name.rpartition('.')[0]}.{test.__wrapped__.__name__}"
  return name


def _cases_part(items):
  """The names of a share of the cases of each parameterized test."""
  patterns = os.environ.get("MEND_REDS", "").replace("\t", "\n").splitlines()
  cases = {}
  for name, item in sorted(
      ((_name(i.nodeid), i) for i in items), key=lambda pair: pair[0]):
    first = next((p for p in patterns if fnmatch.fnmatchcase(name, p)), None)
    cases.setdefault((_without_cases(item), first), []).append(name)
  share = f"0/{os.environ['MEND_CASES']}"
  return sorted({name for found in cases.values() for name in (
      _part(found, share, _kept()) if len(found) > 2 else found)})


def _kinds_part(names):
  """A share of what each kind is the first to name, and of the others."""
  if "MEND_REDS" not in os.environ:
    return names
  kept = _kept()
  others, taken = set(names), set()
  for kind in os.environ["MEND_REDS"].splitlines():
    matching = {n for p in kind.split("\t") for n in fnmatch.filter(others, p)}
    others -= matching
    taken.update(_part(sorted(matching), os.environ["MEND_REDS_SHARE"], kept))
  taken.update(_part(sorted(others), os.environ["MEND_OTHERS_SHARE"], kept))
  return sorted(taken)


def _check_jax():
  jax, folder = sys.modules.get("jax"), os.environ.get("MEND_JAX")
  if jax and folder and not os.path.realpath(jax.__file__).startswith(
      os.path.realpath(folder) + os.sep):
    raise pytest.UsageError(
        f"jax was imported from {jax.__file__}, and not from {folder}: these "
        "tests would say nothing of it")


def pytest_collection_modifyitems(config, items):
  _check_jax()
  done, only = _listed("MEND_DONE") or set(), _listed("MEND_ONLY")
  # By name: the order of collection must not decide.
  names = (_cases_part(items) if "MEND_CASES" in os.environ
           else sorted(_name(i.nodeid) for i in items))
  share = set(_part(_kinds_part(names), os.environ.get("MEND_SHARE", "0/1")))
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
