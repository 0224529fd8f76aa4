# SPDX-License-Identifier: Apache-2.0
"""CI's last line: what ran, what failed, and what could not be run."""

import os
import shutil
import subprocess
import sys

from conftest import ROOT, write
from mend import cli
from mend.releases import bases
import pytest
from ruamel.yaml import YAML

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


@pytest.mark.parametrize("tool,bazel,code,last", [
    ("echo '7 passed, 0 failed, 1 skipped'; echo OK: fine", "exit 0", 0,
     "8 passed, 0 failed, 1 skipped"),
    ("echo '7 passed, 0 failed, 1 skipped'", "echo not run; exit 77", 0,
     "7 passed, 0 failed, 2 skipped"),
    ("echo '7 passed, 0 failed, 1 skipped'", "exit 1", 1,
     "7 passed, 1 failed, 1 skipped"),
    ("echo '5 passed, 2 failed, 0 skipped'; exit 1", "exit 77", 1,
     "5 passed, 2 failed, 1 skipped"),
    ("echo FAILED: no Python >&2; exit 2", "exit 0", 2,
     "1 passed, 1 failed, 0 skipped")])
def test_the_last_line(tmp_path, tool, bazel, code, last):
  (tmp_path / ".ci").mkdir()
  shutil.copy2(ROOT / ".ci" / "run", tmp_path / ".ci" / "run")
  for name, body in ((".ci/bazel", bazel), ("bin/python3", tool)):
    write(tmp_path / name, f"#!/bin/sh\n{body}\n").chmod(0o755)
  done = subprocess.run(
      [tmp_path / ".ci" / "run"], capture_output=True, text=True, check=False,
      env={**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"})
  assert done.stdout.splitlines()[-1] == last
  assert done.returncode == code


def check_schema(*files):
  return subprocess.run(
      [sys.executable, "-m", "check_jsonschema", "--builtin-schema",
       "vendor.github-workflows", *files], capture_output=True, text=True,
      check=False)


def commands(name):
  """The commands of each job of a workflow."""
  data = YAML(typ="safe").load(ROOT / ".github" / "workflows" / name)
  return {job: [step["run"] for step in found["steps"] if "run" in step]
          for job, found in data["jobs"].items()}, data["jobs"]


def test_the_workflows_are_what_their_schema_wants(tmp_path):
  assert len(WORKFLOWS) == 2
  done = check_schema(*WORKFLOWS)
  assert done.returncode == 0, done.stdout
  text = WORKFLOWS[0].read_text("utf-8")
  bad = write(tmp_path / "bad.yml", text.replace("runs-on:", "run-on:", 1))
  assert check_schema(bad).returncode == 1


def test_the_workflows_call_what_ci_calls():
  run = (ROOT / ".ci" / "run").read_text("utf-8")
  assert "python3 build/build.py test --base=all" in run
  called, jobs = commands("tests.yml")
  assert called["line"] == [
      "python3 build/build.py test --base=${{ matrix.line }}"]
  lines = list(dict.fromkeys(b.line for b in bases.releases()))
  assert jobs["line"]["strategy"]["matrix"]["line"] == lines
  assert ".ci/bazel" in run and called["bazel"][0].startswith(".ci/bazel")
  for line in called["lint"]:
    cli._parser().parse_args(line.split()[2:])


def test_a_tag_has_the_wheels_of_every_release():
  called, jobs = commands("wheels.yml")
  matrix = jobs["jax"]["strategy"]["matrix"]
  twins = {i["line"]: i["twins"] for i in matrix["include"]}
  made = [base.version for line in matrix["line"]
          for base in bases.chosen(line + twins.get(line, ""))]
  assert sorted(made) == sorted(b.version for b in bases.releases())
  (line,) = called["jax"]
  assert line.endswith("--base=${{ matrix.line }}${{ matrix.twins }}")
  for found in called.values():
    cli._parser().parse_args(found[0].partition("${{")[0].split()[2:])
