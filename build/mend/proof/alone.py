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

_ONE = 9999  # of so many: one test
_ONE_IN = 9  # of the files of a family


def jobs_of(series: Sequence[patches.Patch], base: Base,
            python_version: str | None, one: bool = False) -> list[Job]:
  """A regression test of some files of each family, which alone is applied.

  By jax-mend, so that no wheel of each is built. That a part of the patches is
  what a wheel of them has is held by `tests/build/words_test.py`.

  Args:
    series: the patches.
    base: the release.
    python_version: such as "3.12"; None for the oldest that fits.
    one: whether of each family one file is enough.
  """
  found = jobs.live_for_base(series, base, (), python_version, reds_only=True)
  by_family: dict[str, list[Job]] = collections.defaultdict(list)
  for job in found:
    by_family[families.of(job.file.removeprefix("tests/"))].append(job)
  out = []
  for family, mine in by_family.items():
    first = bases.releases().index(base) % _ONE_IN % len(mine)
    for job in mine[first:first + 1 if one else None:_ONE_IN]:
      every = tuple(pattern for red in job.reds for pattern in red.tests)
      env = {**dict(job.env), "JAX_MEND": family, "MEND_SHARE": "0/1",
             **dict(jobs.share_settings([("red", every)], f"0/{_ONE}", "0/0"))}
      out.append(dataclasses.replace(job, kinds=(every,), alone=family,
                                     env=tuple(env.items())))
  return out


def newest_of_lines(chosen: Sequence[Base]) -> list[Base]:
  """The newest release of each line that is in `chosen`."""
  return [*{b.line: b for b in chosen}.values()]
