# SPDX-License-Identifier: Apache-2.0
"""jax-mend's doctor: the reports' programs, each in a process of its own."""

import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys

from conftest import write
import pytest


def test_doctor(numbers):
  site = numbers
  good = site.says("-m", "jax_mend", "doctor")
  assert re.match(r"\[1/1 0:\d\d\] green  toy#1: greet\(\) is polite[.]", good)
  assert "0 of 1" in good
  bad = site.run("-m", "jax_mend", "doctor", "polite", JAX_MEND="0")
  assert bad.returncode == 1 and "RED" in bad.stdout and "1 of 1" in bad.stdout
  assert "rude" in bad.stdout
  none = site.run("-m", "jax_mend", "doctor", "polit", "unheard")
  assert none.returncode == 0, none.stderr
  none = site.run("-m", "jax_mend", "doctor", "pollite")
  assert none.returncode == 2 and not none.stdout
  assert "None of the 1 programs for this jax is about pollite; did you mean " \
      "polite?\nNext: " in none.stderr and "reports are toy#1" in none.stderr


def _programs(site, *bodies):
  """Has the reports' programs be functions of these bodies."""
  path = site.folder / "jax_mend" / "table" / "reports.json"
  reports = json.loads(path.read_text("utf-8"))
  (one,) = reports["programs"]
  reports["sources"] = ["import os, sys, time\n" + "".join(
      f"def f{n}():\n  {body}\n" for n, body in enumerate(bodies))]
  reports["programs"] = [{**one, "function": f"f{n}", "line": f"program {n}",
                          "source": 0} for n in range(len(bodies))]
  path.write_text(json.dumps(reports), "utf-8")


@pytest.fixture
def numbers(site):
  """A numpy for the invented jax, which doctor imports beside it."""
  for name in ("numpy/__init__.py", "jax/numpy.py"):
    write(site.folder / name, "")
  return site


@pytest.mark.parametrize("start", ("", "import threading\n"
                         "threading.Thread(target=lambda: __import__('time')"
                         ".sleep(9), daemon=True).start()\n"))
def test_doctor_runs_each_program_by_itself(numbers, start):
  """Forked from one process; where that has a thread, each a new one."""
  write(numbers.folder / "jax" / "__init__.py", start)
  module = "sys.modules.setdefault('kept', sys).__dict__.setdefault"
  _programs(numbers, f"return {module}('seen', os.getpid()) == os.getpid()",
            f"return {module}('seen', os.getpid()) == os.getpid()",
            "os._exit(3)", "print('MEND-RESULT no JSON'); raise SystemExit(4)",
            "return sys.stdin.read(), 'jax' in sys.modules, __name__")
  done = numbers.run("-m", "jax_mend", "doctor", "--json")
  results = [[r["defect"], r["result"], r["seen"]]
             for r in json.loads(done.stdout)["results"]]
  assert done.returncode == 1
  assert results == [
      ["program 0", "PASS", "True"], ["program 1", "PASS", "True"],
      ["program 2", "FAIL", "the process died (exit 3): nothing printed"],
      ["program 3", "FAIL", "SystemExit: 4"],
      ["program 4", "PASS", f"('', {not start}, 'reproduction')"]]


def test_doctor_where_jax_cannot_be_imported(numbers):
  write(numbers.folder / "jax" / "numpy.py", "raise RuntimeError('no lib')")
  error = numbers.refuses("-m", "jax_mend", "doctor")
  assert "jax can't be imported here: RuntimeError: no lib." in error


def _processes(word):
  found = []
  for path in pathlib.Path("/proc").glob("[0-9]*/environ"):
    with contextlib.suppress(OSError):
      if word.encode() in path.read_bytes():
        found.append(path)
  return found


def test_an_interrupt_ends_doctor_and_what_it_runs(numbers):
  _programs(numbers, "return 0", "time.sleep(60)", "time.sleep(60)")
  mark = str(numbers.cache)
  child = subprocess.Popen(
      [sys.executable, "-m", "jax_mend", "doctor"], text=True,
      env={**os.environ, "PYTHONPATH": str(numbers.folder),
           "JAX_MEND_CACHE": mark}, start_new_session=True,
      stdout=subprocess.PIPE, stderr=subprocess.PIPE)
  assert "[1/3 0:" in child.stdout.readline()
  assert len(_processes(mark)) >= 3
  os.killpg(child.pid, signal.SIGINT)
  _, said = child.communicate(timeout=10)
  assert (child.returncode, said) == (130, "jax-mend: stopped.\n")
  assert not _processes(mark)
