# SPDX-License-Identifier: Apache-2.0
"""`python -m jax_mend compare`, on a training loop of flax and optax.

With the libraries that `build.py test --clients` uses, which `build.py test`
has installed for its program of each of them.
"""

import re

import compare_programs as programs
from mend.releases import bases


def test_a_gradient_that_is_four_times_too_large(kept_cache, tmp_path):
  """On each of four devices, which stock takes to have the same parameters."""
  del kept_cache
  base = bases.all_bases()[-1]
  runner = programs.Runner(base, tmp_path, f"clients-{base.version}")
  said, facts = runner.compare(programs.FLAX, code=1)
  row = next(r for r in facts["programs"] if r["kind"] != "same")
  assert row["name"] == "gradient" and row["kind"] == "other values"
  assert row["why"] == "varying/loops (docs/varying.md)" and row["confirmed"]
  stock, mended = map(float, re.search(
      r"output differs:\n +([\d.]+) +\| ([\d.]+)", said).groups())
  assert abs(stock / mended - 4.) < 1e-3
