# SPDX-License-Identifier: Apache-2.0
"""`python -m jax_mend compare`, on the newest release of each line."""

import compare_programs as programs
from mend.proof import alone
from mend.releases import bases
import pytest


@pytest.mark.parametrize("base", alone.newest_of_lines(bases.all_bases()),
                         ids=lambda b: b.version)
def test_a_program_that_no_fix_concerns(kept_cache, base, tmp_path):
  """On each line: programs and calls are recorded, stock and mended."""
  programs.hold_same(programs.Runner(base, tmp_path))
