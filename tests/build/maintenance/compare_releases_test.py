# SPDX-License-Identifier: Apache-2.0
"""`python -m jax_mend compare`, on the newest release of lines.

Of one line in three, at night of each.
"""

import os
import re

import compare_programs as programs
from conftest import ROOT, write
from mend.proof import alone
from mend.releases import bases
import pytest


_EACH = 1 if os.environ.get("MEND_TEST_WHOLE") else 3


@pytest.mark.parametrize("base", alone.newest_of_lines(
    bases.all_bases())[::_EACH], ids=lambda b: b.version)
def test_a_program_that_no_fix_concerns(kept_cache, base, tmp_path):
  """Programs and calls are recorded, stock and mended."""
  programs.hold_same(programs.Runner(base, tmp_path))


def _timeless(report):
  """A report without seconds, bytes and the number of patches."""
  return re.sub(r"\d+\.\d s, \d+ MB|and \d+ more", "#", report).strip()


def test_the_page_shows_what_readmes_command_prints(kept_cache, tmp_path):
  """README's program, which isn't jitted, on the newest release."""
  readme, page = ((ROOT / name).read_text("utf-8")
                  for name in ("README.md", "docs/compare.md"))
  text = re.search(r"```python\n(.*?)```", readme, re.DOTALL)[1]
  shown = re.search(r"README's program: .*?```\n(.*?)```", page, re.DOTALL)[1]
  runner = programs.Runner(bases.all_bases()[-1], tmp_path)
  script = write(runner.work / "script.py", text)
  done = runner.run("-m", "jax_mend", "compare", script.name)
  assert done.returncode == 1, done.stderr
  assert _timeless(done.stdout) == _timeless(shown)
