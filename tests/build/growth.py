# SPDX-License-Identifier: Apache-2.0
"""The run of a program of the growth benchmark, which two tests share.

Ten ordinary programs, held at 10, 20, 40 and 80 layers against the pristine
release in the same run (``benchmarks/shard_map_growth.py``): a program's calls
are the same on any machine.
"""

import os
import subprocess

from conftest import ROOT

from mend.proof import environments
from mend.releases import bases, interpreters

BASE = bases.all_bases()[-1]
SMALL = ("dense", "psum")  # the two that take the least time
NEAREST = ("custom_vjp", "gathered")  # to the limit, 1.05
OTHERS = ("scan_of_scans", "remat", "attention", "experts", "ring", "rnn",
          *NEAREST)


def hold(program):
  """Fails if the program's calls grow faster than pristine's."""
  made = environments.build(BASE, python=interpreters.for_base(BASE))
  done = subprocess.run(
      [made.mended, ROOT / "benchmarks" / "shard_map_growth.py",
       made.pristine, made.mended, program, "0"], capture_output=True,
      text=True, check=False,
      env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})
  rows = [line for line in done.stdout.splitlines()
          if line.split(" ")[0] == program]
  assert len(rows) == 3 * 4, done.stdout + done.stderr
  assert done.returncode == 0, done.stdout + done.stderr
