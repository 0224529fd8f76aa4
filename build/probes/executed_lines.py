# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin that writes down the marked lines run by each test.

MEND_MARKS names a JSON file: {file: {line: [numbers]}}, files as they end below
site-packages. Each test gives a JSON object, a line of the file that
MEND_EXECUTED names: {"id", "marks": the numbers of the lines that it ran,
"bound": the names of the primitives that it bound, "took": seconds}. It needs
sys.monitoring, of Python 3.12: each line costs its first run in a test.
"""

import json
import os
import sys
import time

_TOOL = 4
_marks, _bound = set(), set()
_began = [0.]
with open(os.environ["MEND_MARKS"], encoding="utf-8") as _handle:
  _WANTED = {file: {int(line): numbers for line, numbers in lines.items()}
             for file, lines in json.load(_handle).items()}


def _lines_of(code):
  return _WANTED.get(code.co_filename.rpartition("site-packages/")[2], {})


def _started(code, offset):
  del offset
  wanted = _lines_of(code)
  if wanted and any(line in wanted for *_, line in code.co_lines()):
    sys.monitoring.set_local_events(_TOOL, code, sys.monitoring.events.LINE)
  return sys.monitoring.DISABLE


def _ran(code, line):
  _marks.update(_lines_of(code).get(line, ()))
  return sys.monitoring.DISABLE


def pytest_collection_finish():
  core = sys.modules.get("jax._src.core")
  if core is not None:
    bind = core.Primitive.bind

    def recorded(self, *args, **params):
      _bound.add(self.name)
      return bind(self, *args, **params)
    core.Primitive.bind = recorded
  events = sys.monitoring.events
  sys.monitoring.use_tool_id(_TOOL, "executed_lines")
  sys.monitoring.register_callback(_TOOL, events.PY_START, _started)
  sys.monitoring.register_callback(_TOOL, events.LINE, _ran)
  sys.monitoring.set_events(_TOOL, events.PY_START)


def pytest_runtest_logstart(nodeid, location):
  del nodeid, location
  _marks.clear()
  _bound.clear()
  _began[0] = time.monotonic()
  sys.monitoring.restart_events()


def pytest_runtest_logfinish(nodeid, location):
  del location
  record = {"id": ".".join(nodeid.split("::")[1:]), "marks": sorted(_marks),
            "bound": sorted(_bound),
            "took": round(time.monotonic() - _began[0], 3)}
  with open(os.environ["MEND_EXECUTED"], "a", encoding="utf-8") as out:
    out.write(json.dumps(record) + "\n")
