# SPDX-License-Identifier: Apache-2.0
"""CONTRIBUTING.md's worked example, step by step."""

import re
import shutil
import subprocess
import sys
import textwrap

from conftest import GREET, ROOT, write
from mend.editing import patches, reproductions
from mend.house import change_log
from mend.proof import judging, pytest_run
from mend.trees import drift, export, tree
from mend.upkeep import lifecycle
import pytest

PART = '''
  def part(self, name):
    """Parts."""
    return "bye"
'''
NAME = "greet/polite_parting"
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def examples():
  """The files that the page shows, by name."""
  found = re.findall(
      r"<!-- example: (\S+) -->\n( *)```\w+\n(.*?)\n *```", PAGE, re.DOTALL)
  return {name: textwrap.dedent(body) + "\n" for name, _, body in found}


@pytest.fixture
def contributed(project, upstream):
  """The project after steps 1 to 5."""
  write(upstream / "jax" / "_src" / "greet.py", GREET + PART)
  written = lifecycle.new(NAME, "toy#2", ">=1.0", project)
  shown = examples()
  assert set(shown) == set(written) - {"patches/series"}
  for name, text in shown.items():
    write(project / name, text)
  return project


def test_the_page_shows_each_command_as_it_is():
  from mend import cli
  parser = cli._parser()
  lines = re.findall(r"python3 build/build\.py ([^`#\n]+)", PAGE.replace(
      "\\\n", " ").replace("retire greet/polite_parting\n   ", "retire x"))
  table = PAGE.partition("## Commands")[2].partition("## A fix")[0]
  in_table = [cell for row in table.splitlines() if row.startswith("| ")
              for cell in re.findall("`([a-z][^`]*)`", row.rpartition(" | ")[2])
              if "bazelisk" not in cell]
  assert len(lines) > 10 and len(in_table) > 15
  for line in [*lines, *in_table]:
    arguments = line.strip().rstrip(".").replace("'", "").split()
    assert parser.parse_args(arguments).function


def test_the_example_is_recorded_red_green_and_exported(
    contributed, upstream, base, tmp_path):
  series = patches.select(patches.load(contributed), [NAME])
  drift.record(drift.states(series, base, upstream, contributed), contributed)
  assert {s.state for s in drift.states(
      series, base, upstream, contributed)} == {"exact"}
  result = tree.mended(series, base, upstream, contributed)
  tree.write_copy(result, upstream, tmp_path / "mended", sys.executable)

  def outcomes(folder):
    return pytest_run.run_file(
        sys.executable, contributed / series[0].tests[0], limit=60.0,
        env={"PYTHONPATH": ":".join(map(str, (
            folder, ROOT / "build" / "probes", ROOT / "tests")))})

  red = judging.judge_pristine("example", outcomes(upstream), series[0].red)
  assert (red.passed, red.red, red.failures) == (1, 1, [])
  green = judging.judge_mended("example", outcomes(tmp_path / "mended"),
                               series[0].red)
  assert (green.passed, green.failures) == (2, [])
  assert "* Bug fixes:" in change_log.bullets(series)
  names = export.export(series, base, upstream, tmp_path / "out", None,
                        contributed)
  assert names[0] == "0001-greet-Say-goodbye-to-the-person.patch"


def test_the_reproduction_shows_the_defect(contributed, upstream, base,
                                           tmp_path):
  series = patches.select(patches.load(contributed), [NAME])
  (item,) = reproductions.collect(series, contributed)
  assert (item.report, item.line) == ("toy#2", "part() names the person")
  result = tree.mended(series, base, upstream, contributed)
  tree.write_copy(result, upstream, tmp_path / "mended", sys.executable)
  code = ("import runpy; print(runpy.run_path('reproductions/greet/"
          "polite_parting.py')['polite_parting']())")
  for folder, good in ((upstream, False), (tmp_path / "mended", True)):
    done = subprocess.run([sys.executable, "-c", code], cwd=contributed,
                          env={"PYTHONPATH": str(folder)}, text=True,
                          capture_output=True, check=False)
    assert (done.returncode == 0) == good
    assert ("Goodbye, Ada" if good else "bye") in done.stdout + done.stderr


def test_the_example_retires(contributed):
  lifecycle.retire(NAME, "0.1", contributed)
  assert NAME not in [p.id for p in patches.load(contributed)]
  shutil.rmtree(contributed)
