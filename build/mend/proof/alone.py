# SPDX-License-Identifier: Apache-2.0
"""The jobs by which each family, applied alone, passes its own tests.

A file is of the families whose patches name it on the release. Not all of its
tests pass without the others, where two mend something together: such a test
names the other one (`also` of its `red`), and is left out where that one mends
the release.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import fnmatch

from mend.editing import families, patches
from mend.proof import jobs
from mend.proof.jobs import Job
from mend.releases import bases
from mend.releases.bases import Base

_ONE_IN = 10  # files


def jobs_of(series: Sequence[patches.Patch], base: Base,
            python_version: str | None, whole: bool = False) -> list[Job]:
  """One case of each regression test, with its family alone.

  By jax-mend, so that no wheel of each is built. That a part of the patches is
  what a wheel of them has is held by `maintenance/parts_alone_test.py`.

  Args:
    series: the patches.
    base: the release.
    python_version: such as "3.12"; None for the oldest that fits.
    whole: whether of each family all files are run, instead of one in ten and
      at least one, which aren't the same on a release and the next.
  """
  mine = patches.for_base(series, base)
  every = {families.of(p.id) for p in mine}
  found: dict[str, list[Job]] = {}
  for job in jobs.live_for_base(series, base, (), python_version):
    own = sorted({families.of(p.id) for p in mine if job.file in p.tests})
    but = tuple(p for red in job.reds if red.also in every.difference(own)
                for p in red.tests)
    reds = tuple(red for red in job.reds if not _all_of(red.tests, but))
    if reds:
      words = ",".join(own)
      found.setdefault(words, []).append(dataclasses.replace(
          job, reds=reds, only_red=True, case=0, alone=words, but=but,
          env=(("JAX_MEND", words),)))
  number = bases.releases().index(base)
  out = []
  for one in found.values():
    step = 1 if whole else min(_ONE_IN, len(one))
    out += one[number % step::step]
  return out


def _all_of(tests: Sequence[str], but: Sequence[str]) -> bool:
  """True if each pattern of tests is one of others, or within one."""
  return all(any(fnmatch.fnmatchcase(t, b) for b in but) for t in tests)


def newest_of_lines(chosen: Sequence[Base]) -> list[Base]:
  """The newest release of each line that is in `chosen`."""
  return [*{b.line: b for b in chosen}.values()]
