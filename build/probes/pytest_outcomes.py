# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin that writes each test's outcome down as soon as it is known.

Loaded with `-p pytest_outcomes` in the Python under test. MEND_OUTCOMES names
the file, one JSON object a line: {"id", "case", "event": "start"}, {"id",
"event": "end", "outcome", "text"}, and of what MEND_CASE leaves out {"id",
"case", "event": "left"}. A test's case is its name before absl
numbered it, and its parameters in their alphabetical order, of a named one the
name first: "Class.test_x('small';n=1;;two=True;)". Tests whose id stands in the
file that MEND_DONE names are left out: so a run goes on after the test that
crashed it. If MEND_ONLY names a file, tests whose id does not stand in it are
left out too.
Where MEND_ROOT is set, a test's id begins with its file's name.
MEND_SHARE=K/N takes one test in N, beginning with the Kth, and at least one.
MEND_REDS has the patterns of cases of regression tests, a line each, and
MEND_ONLY_RED leaves out what none names, MEND_BUT what its patterns name, in
the same form. MEND_CASE=K takes of each test one case, the Kth modulo their
number, and where patterns name some of its cases one of these, too.
MEND_ONE_GUARD takes one test only of those that no pattern names, the Kth.
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


def _part(names, share):
  """Takes one item in N from the Kth on, at least one; share: "K/N"."""
  first, step = map(int, share.split("/"))
  step = min(step, len(names)) or 1
  return names[first % step::step]


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


def _patterns(name, variable="MEND_REDS"):
  """The patterns of regression tests, or of others, that a case fits."""
  return tuple(p for p in os.environ.get(variable, "").splitlines()
               if fnmatch.fnmatchcase(_cases[name], p))


def _chosen_cases(items):
  """The names of regression tests or all, and of one case or all of each."""
  found = {}
  for name in sorted(_name(item.nodeid) for item in items):
    patterns = _patterns(name)
    if _patterns(name, "MEND_BUT"):
      continue
    if patterns or "MEND_ONLY_RED" not in os.environ:
      test = _cases[name].partition("(")[0]
      found.setdefault((test, bool(patterns)), []).append(name)
  number = os.environ.get("MEND_CASE")
  if "MEND_ONE_GUARD" in os.environ:
    guards = [key for key in found if not key[1]]
    kept = guards and guards[int(number) % len(guards)]
    found = {k: names for k, names in found.items() if k[1] or k == kept}
  return sorted(name for names in found.values() for name in (
      names if number is None else [names[int(number) % len(names)]]))


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
  share = set(_part(_chosen_cases(items), os.environ.get("MEND_SHARE", "0/1")))
  chosen = [i for i in items if _name(i.nodeid) not in done
            and _name(i.nodeid) in (share if only is None else only)]
  if "MEND_CASE" in os.environ:
    for name in sorted({*map(_name, (i.nodeid for i in items))}
                       - {_name(i.nodeid) for i in chosen} - done):
      _write({"id": name, "case": _cases[name], "event": "left"})
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
