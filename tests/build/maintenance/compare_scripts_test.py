# SPDX-License-Identifier: Apache-2.0
"""`python -m jax_mend compare`, on a release with jax-mend."""

import concurrent.futures
import json
import os
import signal
import socket
import textwrap

import compare_programs as programs
import compare_table as table
from conftest import write
import pytest


@pytest.fixture(scope="module")
def runner(tmp_path_factory):
  """One for all tests: several look at the same comparison."""
  return programs.newest(tmp_path_factory.mktemp("compared"))


def hung(runner):
  return runner.compare(programs.HANGS, "--timeout=20", code=1)


def test_the_patch_that_is_named_brings_back_the_stock_code(runner):
  _, facts = hung(runner)
  (row,) = [r for r in facts["programs"] if r["kind"] != "same"]
  assert row["why"] == "varying/branches (docs/varying.md)"
  assert row["confirmed"]
  said, facts = runner.compare(programs.LOOP, code=0,
                               JAX_MEND="-varying/loops")
  assert {r["kind"] for r in facts["programs"]} == {"same"}
  assert said.startswith("The same")


def test_training(runner):
  _, facts = runner.compare(programs.TRAINING, code=1)
  row = next(r for r in facts["programs"] if r["name"] == "step")
  assert row["kind"] == "other values" and row["relative"] > .01
  assert row["why"] == "varying/loops (docs/varying.md)" and row["confirmed"]


def test_a_program_that_hangs_on_stock(runner):
  said, facts = hung(runner)
  assert "stock   hung" in said and "in loss, called at program.py:" in said
  assert facts["stock"]["status"] is None and facts["mended"]["status"] == 0
  assert any("program.py" in line for line in facts["stock"]["stacks"])
  (row,) = [r for r in facts["programs"] if r["kind"] != "same"]
  assert row["kind"] == "only mended" and row["note"] == "hung on stock"


def test_a_program_that_hangs_on_both(runner):
  said, _ = runner.compare(programs.SLEEPS, "--timeout=6", code=0)
  assert said.startswith("The same: it hangs on both.")
  assert "program.py" in said


def test_a_program_that_is_not_the_same_twice(runner):
  said, facts = runner.compare(programs.RANDOM, code=2)
  assert "isn't the same twice" in said
  assert any(r["again"] for r in facts["programs"])
  assert not any(r["why"] for r in facts["programs"])


@pytest.mark.parametrize("program, error, why", [
    (programs.COMPUTE_ON, "AttributeError", "compute_on_ahead/aot"),
    (programs.EXPORT, "TypeError", "ahead_of_time/dict_keys")])
def test_what_is_refused_on_stock(runner, program, error, why):
  said, facts = runner.compare(program, code=1)
  assert facts["stock"]["error"]["type"] == error
  assert facts["mended"]["status"] == 0
  assert f"{error} at program.py:" in said
  rows = [r for r in facts["programs"] if r["kind"] != "same"]
  assert {r["kind"] for r in rows} == {"only mended"}
  assert {r["why"].partition(" (")[0] for r in rows} == {why}
  assert [r["follows"] for r in rows] == [n > 0 for n in range(len(rows))]


def test_a_copy_that_shares_memory_on_stock(runner):
  """The copy isn't compiled: the programs after it tell."""
  said, facts = runner.compare(programs.DLPACK, code=1)
  assert "1024.0" in said and facts["stock"]["status"] == 0
  row = next(r for r in facts["programs"] if r["why"])
  assert row["why"] == "array_api/dlpack (docs/array_api.md)"
  assert row["confirmed"]


def test_a_tolerance_and_values_beyond_the_store(runner):
  _, facts = runner.compare(programs.SIZES, "--store=100", "--atol=7", code=1)
  small, large = [r for r in facts["programs"] if r["name"] == "loss"]
  assert small["kind"] == "other code, same values" and small["absolute"] == 6.
  assert "beyond --store: largest" in large["note"]
  assert large["kind"] == "other values"


def test_digests(runner):
  done = runner.run(write(runner.work / "digests.py", programs.DIGESTS))
  assert done.stdout == "all told apart\n", done.stderr


def test_only_what_differs_is_kept(runner):
  """Nothing is, of a program that no fix concerns."""
  write(runner.work / "sizes.py", """
import os, sys
from jax_mend import comparison, differences, processes, runs

comparison.require_both()
with processes.keeping() as keeper:
  found = comparison.compare(
      runs.Settings(["-c", sys.argv[1]], keeper, None, 100., 10**6, "."),
      keeper.folder, differences.Tolerance())
  print(found.code(), *(
      os.path.getsize(os.path.join(keeper.folder, run, "values.bin"))
      for run in ("stock", "mended", "again")
      if os.path.isdir(os.path.join(keeper.folder, run))))
""")
  for program, expected in ((programs.SAME, "0 0 0"),
                            (programs.LOOP, "1 0 0 20")):  # five gradients
    done = runner.run("sizes.py", program)
    assert done.stdout.split("\n")[-2] == expected, done


def test_pytest(runner):
  write(runner.work / "some_test.py", programs.LOOP.partition("print")[0] + """
def test_value():
  assert f(1.0, jnp.arange(4.0)) == 6

def test_gradient():
  assert jax.jit(jax.grad(f))(1.0, jnp.arange(4.0)) == 6
""")
  done = runner.run("-m", "pytest", "-p", "jax_mend", "--mend-compare", "-q",
                    "-p", "no:cacheprovider", "some_test.py")
  assert done.returncode == 1, done.stderr
  assert ("some_test.py::test_gradient: failed on stock, passed mended"
          ) in done.stdout
  assert "loss at some_test.py:" in done.stdout


def test_a_function(runner):
  loop = programs.LOOP
  inside = loop.partition("mesh =")[2].partition("f = ")
  program = loop.partition("mesh =")[0] + textwrap.indent(
      "mesh =" + inside[0] + inside[1] + inside[2].rpartition("print")[0],
      "  ").replace("  mesh", "def gradient(x):\n  mesh", 1) + """
  return jax.jit(jax.grad(f))(1.0, x)

import jax_mend
found = jax_mend.compare(gradient, jnp.arange(4.))
print("code", found.code())
try:
  jax_mend.compare(lambda: sys.stdin, sys.stdin)
except Exception as e:
  print(e)
"""
  done = runner.run(write(runner.work / "notebook.py", program))
  assert done.returncode == 0, done.stderr
  assert "other values: loss" in done.stdout and "code 1" in done.stdout
  assert "write a script" in done.stdout


def test_two_processes_are_compared_rank_by_rank(runner):
  """Only rank 1 differs; rank 0 runs as often, as their runs need both."""
  write(runner.work / "workers.py", programs.WORKERS)
  with socket.socket() as found:
    found.bind(("localhost", 0))
    port = found.getsockname()[1]
  with concurrent.futures.ThreadPoolExecutor() as pool:
    ranks = [pool.submit(
        runner.run, "-m", "jax_mend", "compare", f"--rank={n}/2",
        "--meet=meeting", "--json", f"{n}.json", "workers.py", n, port)
             for n in range(2)]
    done = [rank.result() for rank in ranks]
  assert [d.returncode for d in done] == [0, 1], "\n".join(
      d.stdout + d.stderr for d in done)
  assert done[0].stdout.startswith("The same")
  assert "other values: loss" in done[1].stdout
  facts = [json.loads((runner.work / f"{n}.json").read_text("utf-8"))
           for n in range(2)]
  assert facts[0]["runs"] == facts[1]["runs"] > 3


def test_nothing_is_left_behind(runner):
  """However it is ended, and whatever the program has started."""
  write(runner.work / "stays.py", """
import subprocess, sys, time
import jax
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(987)",
                  sys.argv[1]])
open(sys.argv[1], "w").close()
time.sleep(987)
""")
  for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGKILL):
    if signal.getsignal(number) == signal.SIG_IGN:
      continue  # under nohup a program is to outlive its terminal
    mark = f"begun-{number}-{os.getpid()}"
    folder = runner.work / f"tmp{number}"
    folder.mkdir()
    process = runner.begin("-m", "jax_mend", "compare", "stays.py", mark,
                           TMPDIR=str(folder))
    table.until((runner.work / mark).exists)
    assert table.commands(mark)
    process.send_signal(number)
    process.communicate(timeout=60)
    table.until(lambda: not table.commands(mark))
    table.until(lambda: not [*folder.iterdir()])
