"""CI's last line: what ran, what failed, and what could not be run."""

import os
import shutil
import subprocess

from conftest import ROOT, write
import pytest


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
