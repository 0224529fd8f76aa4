# SPDX-License-Identifier: Apache-2.0
"""The files that a release has whose line is proven on others."""

import pathlib

from mend.editing import patches
from mend.editing.expected_failures import Red
from mend.proof import jobs, shares
from mend.releases import bases


def test_samples_that_are_alike_share_the_files_out_and_one_alone_has_all():
  series, every = patches.load(), bases.all_bases()
  def found(base, chosen):
    mine = patches.for_base(series, base)
    reds = (Red(("T.test_a",), "^E"),)
    made = [jobs.Job(base, side, pathlib.Path("p"), file, reds)
            for file in jobs.files_of(mine, (), "tests")
            for side in ("mended", "pristine")]
    return {job.file for job in made}, [
        (job.file, job.side) for job in shares.sampled(series, made, chosen)]
  for lines in "C", "D", "EF":
    samples = [b for b in every if b.line in lines and b.proof == "sample"]
    assert len(samples) > 2
    have, dealt = {}, {}
    for base in samples:
      have[base], of_all = found(base, every)
      assert len(found(base, [base])[1]) == 2 * len(have[base])
      dealt[base] = {file for file, _ in of_all}
      assert len(of_all) == 2 * len(dealt[base])  # both sides
      for family in "array_api", "varying":
        assert any(f.startswith(f"tests/{family}/") for f in dealt[base])
    assert set().union(*have.values()) == set().union(*dealt.values())
    assert sum(map(len, dealt.values())) == len(set().union(*have.values()))
