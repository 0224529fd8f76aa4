# SPDX-License-Identifier: Apache-2.0
"""The jobs that show that each family, applied alone, passes its own tests.

A file is of the families whose patches name it on the release. Not all of its
tests pass without the others, where two mend something together: such a test
names the other one (`also` of its `red`), and is left out where that one mends
the release.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses

from mend.editing import families, patches
from mend.proof import jobs
from mend.proof.jobs import Job
from mend.releases import bases
from mend.releases.bases import Base

_ONE_IN = 5  # files


def jobs_of(series: Sequence[patches.Patch], base: Base,
            python_version: str | None, whole: bool = False) -> list[Job]:
  """One case of each regression test, with its family alone.

  By jax-mend, so that no wheel of each is built. That a part of the patches is
  what a wheel of them has is held by `tests/build/words_test.py`.

  Args:
    series: the patches.
    base: the release.
    python_version: such as "3.12"; None for the oldest that fits.
    whole: whether of each family all files are run, instead of one in five and
      at least one, which aren't the same on a release and the next.
  """
  mine = patches.for_base(series, base)
  every = {families.of(p.id) for p in mine}
  found: dict[str, list[Job]] = {}
  for job in jobs.live_for_base(series, base, (), python_version):
    own = sorted({families.of(p.id) for p in mine if job.file in p.tests})
    if not job.reds or not own:
      continue
    others = every.difference(own)
    found.setdefault(words := ",".join(own), []).append(dataclasses.replace(
        job, only_red=True, case=0, alone=words, env=(("JAX_MEND", words),),
        but=tuple(p for red in job.reds if red.also in others
                  for p in red.tests)))
  number = bases.releases().index(base)
  out = []
  for one in found.values():
    step = 1 if whole else min(_ONE_IN, len(one))
    out += one[number % step::step]
  return out


def newest_of_lines(chosen: Sequence[Base]) -> list[Base]:
  """The newest release of each line that is in `chosen`."""
  return [*{b.line: b for b in chosen}.values()]
