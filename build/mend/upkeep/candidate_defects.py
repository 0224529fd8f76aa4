# SPDX-License-Identifier: Apache-2.0
"""`check --candidate --run`: which defects a release or upstream's main has.

Runs the reports' programs there, unpatched. A patch whose programs all pass is
announced: upstream has it, and it can retire as soon as a release has it.
"""

from __future__ import annotations

from collections.abc import Sequence
import datetime
import pathlib

from mend.editing import patches, reproductions
from mend.editing.reproductions import Reproduction
from mend.ground import report
from mend.proof import environments, reproduce, venvs
from mend.releases import interpreters
from mend.upkeep import candidates
from mend.upkeep.candidates import Candidate
from mend.upstream import main_branch
from mend.upstream.main_branch import Run


def run(candidate: Candidate, series: Sequence[patches.Patch]) -> Run:
  """Runs the programs of the patches that are for the candidate.

  Args:
    candidate: a release, or a tree, which is run with the jaxlib of the
      release next to it.
    series: the patches.
  """
  mine = patches.for_base(series, candidate.base)
  items = reproductions.collect(mine)
  python, settings = _python(candidate)
  outcomes = reproduce.run_all(
      items, python, f"jax {candidate.base.version}, unpatched", settings)
  for item, outcome in zip(items, outcomes):
    report.detail(f"{outcome.status}: {item.patch} {item.function}: "
                  f"{outcome.seen}")
  commit, date = main_branch.upstreams_commit(candidate.source)
  return Run(commit, date, datetime.date.today().isoformat(),
             counted(items, outcomes))


def counted(items: Sequence[Reproduction],
            outcomes: Sequence[reproduce.Outcome],
            ) -> dict[str, tuple[int, int]]:
  """Patch -> how many of its programs fail, and how many ran."""
  found: dict[str, tuple[int, int]] = {}
  for item, outcome in zip(items, outcomes):
    if outcome.status != reproduce.NOT_APPLICABLE:
      failing, ran = found.get(item.patch, (0, 0))
      found[item.patch] = (failing + (outcome.status == reproduce.FAIL),
                           ran + 1)
  return found


def _python(candidate: Candidate) -> tuple[pathlib.Path, dict[str, str]]:
  """A Python for the candidate, and its environment variables."""
  if candidate.released:
    python = interpreters.for_base(candidate.base)
    return environments.pristine_only(candidate.base, python), {}
  near = candidates.nearest(candidate.base.version)
  deps = venvs.dependencies(near, interpreters.for_base(near))
  return venvs.python_of(deps), {"PYTHONPATH": str(candidate.source),
                                 "PYTHONDONTWRITEBYTECODE": "1"}


def announce(candidate: Candidate, found: Run, write: bool) -> None:
  """Says what is mended there; stores what was seen of upstream's main."""
  for patch, (failing, ran) in found.patches.items():
    if failing < ran:
      report.say(f"FIXED THERE: {patch}: {ran - failing} of "
                 f"{report.plural(ran, 'program')} pass unpatched"
                 + ("" if failing else "; retire it with the release"))
  failing, ran = found.counts
  report.say(f"{failing} of {report.plural(ran, 'program')} show their defect "
             f"on jax {candidate.base.version}.")
  if write and not candidate.released:
    main_branch.store(found)
    report.say(f"wrote {main_branch.DEFECTS}")
