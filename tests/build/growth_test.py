# SPDX-License-Identifier: Apache-2.0
"""The calls of functions to trace and to lower grow with layers as pristine's.

Ten ordinary programs, held at 10, 20, 40 and 80 layers against the pristine
release in the same run (``benchmarks/shard_map_growth.py``): a program's calls
are the same on any machine.
"""

import os
import subprocess

from conftest import ROOT
import pytest

from mend.proof import environments
from mend.releases import bases, interpreters

BASE = bases.all_bases()[-1]
PROGRAMS = ("dense", "scan_of_scans", "remat", "attention", "experts", "ring",
            "rnn", "custom_vjp", "psum", "gathered")


def _growth(*args):
  made = environments.build(BASE, python=interpreters.for_base(BASE))
  return subprocess.run(
      [made.mended, ROOT / "benchmarks" / "shard_map_growth.py",
       made.pristine, made.mended, *args], capture_output=True, text=True,
      check=False, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})


# One by one: all of them take minutes, and a test has a limit.
@pytest.mark.parametrize("program", PROGRAMS)
def test_growth(kept_cache, program):
  done = _growth(program, "0")
  rows = [line for line in done.stdout.splitlines()
          if line.split(" ")[0] == program]
  assert len(rows) == 3 * 4, done.stdout + done.stderr
  assert done.returncode == 0, done.stdout + done.stderr
