# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin that writes each test's outcome down as soon as it is known.

Loaded with `-p pytest_outcomes` in the Python under test. MEND_OUTCOMES names
the file, one JSON object a line: {"id", "case", "event": "start"} and {"id",
"event": "end", "outcome", "text"}. A test's case is its name before absl
numbered it, and its parameters in their alphabetical order, of a named one the
name first: "Class.test_x('small';n=1;;two=True;)". Tests whose id stands in the
file that MEND_DONE names are left out: so a run goes on after the test that
crashed it. If MEND_ONLY names a file, tests whose id does not stand in it are
left out too.
Where MEND_ROOT is set, a test's id begins with its file's name.
MEND_SHARE=K/N takes one test in N, beginning with the Kth, and at least one.
MEND_REDS has red tests, a line each: a kind and patterns of cases, with tabs
between. The first line that names a test counts. Of the tests of each kind,
MEND_REDS_SHARE=K/N are taken, and MEND_OTHERS_SHARE=K/N of those of none; none
of these if N is 0. Those that MEND_KEPT names are taken besides, and stand for
others of their kind: of these there need not be one.
MEND_CASES=N takes one in N of the cases of each parameterized test before that,
but of each kind, those that MEND_KEPT names too, and all of one or two.
MEND_JAX names the folder that jax must come from: a conftest.py above the
tests, or a `jax` beside them, can put another one before it.
"""

import fnmatch
import inspect
import json
import os
import sys

import pytest

_reports = {}
_cases = {}  # of each test that was collected, by its name


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


def _plain(value):
  """A parameter as a literal: a function's name, or that of another's type."""
  if type(value) in (list, tuple):
    return type(value)(map(_plain, value))
  if type(value) is dict:
    return {_plain(k): _plain(v) for k, v in value.items()}
  if value is None or type(value) in (bool, bytes, complex, float, int, str):
    return value
  return getattr(value, "__name__", type(value).__name__)


def _parameters(test, function):
  """The arguments that absl calls a function with; None: it doesn't do it."""
  cells = dict(zip(test.__code__.co_freevars, test.__closure__ or ()))
  if "testcase_params" not in cells:
    return None
  values, named = cells["testcase_params"].cell_contents, {}
  if isinstance(values, dict):
    values, named = (), values
  elif isinstance(values, str) or not hasattr(values, "__iter__"):
    values = (values,)
  try:
    bound = inspect.signature(function).bind_partial(None, *values, **named)
  except TypeError:  # another decorator gives it more
    return {}
  return dict([*bound.arguments.items()][1:])


def _case(item):
  """A test's name before it was parameterized, and its parameters."""
  above, dot, name = _name(item.nodeid).rpartition(".")
  test = getattr(item, "obj", None)
  function, parameters, named = inspect.unwrap(test) if test else None, {}, ""
  while hasattr(test, "__code__"):
    given = _parameters(test, function)
    if getattr(test, "__x_use_name__", False):  # absl's, of a named case
      named = repr(name.removeprefix(function.__name__).removeprefix("_"))
    if given is not None:
      name, parameters = function.__name__, given
      break
    test = getattr(test, "__wrapped__", None)
  said = "".join(f";{k}={_plain(v)!r};" for k, v in sorted(parameters.items()))
  return f"{above}{dot}{name}({named}{said})"


def _kind(name):
  """The kind of red tests that a test is of, by the first pattern it fits."""
  for line in os.environ.get("MEND_REDS", "").splitlines():
    kind, *patterns = line.split("\t")
    if any(fnmatch.fnmatchcase(_cases[name], p) for p in patterns):
      return kind
  return None


def _cases_part(items):
  """The names of a share of the cases of each parameterized test."""
  found = {}
  for name, item in sorted(
      ((_name(i.nodeid), i) for i in items), key=lambda pair: pair[0]):
    found.setdefault((_without_cases(item), _kind(name)), []).append(name)
  share = f"0/{os.environ['MEND_CASES']}"
  return sorted({name for cases in found.values() for name in (
      _part(cases, share, _kept()) if len(cases) > 2 else cases)})


def _kinds_part(names):
  """A share of the tests of each kind, and of the others."""
  if "MEND_REDS" not in os.environ:
    return names
  found = {None: []}
  for name in sorted(names):
    found.setdefault(_kind(name), []).append(name)
  return sorted(name for kind, mine in found.items() for name in _part(
      mine, os.environ["MEND_OTHERS_SHARE" if kind is None
                       else "MEND_REDS_SHARE"], _kept()))


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
  _cases.update((_name(item.nodeid), _case(item)) for item in items)
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
  name = _name(nodeid)
  _write({"id": name, "case": _cases.get(name, ""), "event": "start"})
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
