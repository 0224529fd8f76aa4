# SPDX-License-Identifier: Apache-2.0
"""`python -m jax_mend compare`, on a release with jax-mend, in brief.

maintenance/compare_scripts_test.py has the rest.
"""

import compare_programs as programs
from conftest import ROOT
import pytest


@pytest.fixture(scope="module")
def runner(tmp_path_factory):
  """One for all tests."""
  return programs.newest(tmp_path_factory.mktemp("compared"))


def test_a_program_that_no_fix_concerns(tmp_path):
  """On this release; maintenance/compare_releases_test.py has other lines."""
  programs.hold_same(programs.newest(tmp_path))


def test_readmes_program_jitted(runner):
  said, facts = runner.compare(programs.LOOP, code=1)
  assert "6.0 0.0" in said and "6.0 6.0" in said
  (row,) = [r for r in facts["programs"] if r["name"] == "loss"]
  assert row["kind"] == "other values" and row["absolute"] == 6.
  assert row["why"] == "varying/loops (docs/varying.md)" and row["confirmed"]
  assert "other values: loss at program.py:" in said
  assert "by varying/loops (docs/varying.md); confirmed: without it" in said
  # Left out alone, but for those that need it, which are left out alone, too.
  assert "alone varying/loops" in facts["searched"]
  assert "without which alone it is not" in row["proof"]


@pytest.mark.parametrize("options, said", [
    (["--timeout=-1"], "--timeout"), (["--store=-5"], "--store"),
    (["--rtol=-1"], "--rtol"), (["--atol=nan"], "--atol"),
    (["-E"], "leave -E away"), (["-I"], "leave -I away")])
def test_a_bad_option(runner, options, said):
  done = runner.run("-m", "jax_mend", "compare", *options, "program.py")
  assert done.returncode == 2 and said in done.stderr
  assert "Traceback" not in done.stderr


def test_what_is_refused(runner):
  done = runner.run("-m", "jax_mend", "compare")
  assert done.returncode == 2 and "nothing to run" in done.stderr
  done = runner.run("-m", "jax_mend", "compare", "x.py", JAX_MEND="0")
  assert done.returncode == 2 and "JAX_MEND=0 is set" in done.stderr
  help_ = runner.run("-m", "jax_mend", "compare", "--help").stdout
  page = (ROOT / "docs/compare.md").read_text("utf-8")
  for option in ("--yes", "--json", "--timeout", "--rtol", "--atol", "--store",
                 "--rank", "--meet", "--show"):
    assert option in help_ and option in page, option
