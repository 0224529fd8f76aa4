# SPDX-License-Identifier: Apache-2.0
"""The jobs that show that each family, applied alone, passes its own tests."""

from __future__ import annotations

import collections
from collections.abc import Sequence
import dataclasses

from mend.editing import families, patches
from mend.proof import jobs
from mend.proof.jobs import Job
from mend.releases import bases
from mend.releases.bases import Base


def jobs_of(series: Sequence[patches.Patch], base: Base,
            python_version: str | None, whole: bool = False) -> list[Job]:
  """A regression test of a file of each family, which alone is applied.

  By jax-mend, so that no wheel of each is built. That a part of the patches is
  what a wheel of them has is held by `tests/build/words_test.py`. Not all tests
  of a family pass without the others: some are of what two of them mend.

  Args:
    series: the patches.
    base: the release.
    python_version: such as "3.12"; None for the oldest that fits.
    whole: whether of each family a test of all files runs, instead of one file,
      which isn't the same on a release and the next.
  """
  by_family: dict[str, list[Job]] = collections.defaultdict(list)
  for job in jobs.live_for_base(series, base, (), python_version):
    if job.reds:
      family = families.of(job.file.removeprefix("tests/"))
      by_family[family].append(dataclasses.replace(
          job, only_red=True, test=0, alone=family,
          env=(("JAX_MEND", family),)))
  number = bases.releases().index(base)
  return [job for mine in by_family.values()
          for job in (mine if whole else [mine[number % len(mine)]])]


def newest_of_lines(chosen: Sequence[Base]) -> list[Base]:
  """The newest release of each line that is in `chosen`."""
  return [*{b.line: b for b in chosen}.values()]
