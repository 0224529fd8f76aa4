# SPDX-License-Identifier: Apache-2.0
"""Commits for upstream on the newest release, which may be newer than main.

A source distribution has no tests: the tests of a checkout run on the release's
sources, with its jaxlib.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import pathlib

from mend.editing.patches import Patch
from mend.ground import cache, report
from mend.proof import venvs
from mend.releases import bases, interpreters, source
from mend.trees import git, sending
from mend.upkeep import copies, upstream_checks, verifying

_NOBODY = git.Author("Some Body", "some.body@body.example", "1700000000 +0000")


def passing(series: Sequence[Patch], passed: Sequence[verifying.Passed],
            checkout: pathlib.Path) -> dict[str, str]:
  """Patch -> the newest release, of those that pass there as on a checkout.

  Args:
    series: the patches whose commits were verified.
    passed: what passed on the checkout.
    checkout: that checkout.
  """
  newest = bases.releases()[-1]
  deps = venvs.dependencies(newest, interpreters.for_base(newest))
  tools = dataclasses.replace(upstream_checks.tools(checkout),
                              python=str(venvs.python_of(deps)))
  with cache.scratch() as scratch:
    copy = copies.Copy(checkout, scratch, tools, source.pristine(newest))
    good = {made.patch for made, _, _ in passed}
    made, left_out = sending.all_made(
        [p for p in series if p.id in good], newest, copy.folder)
    for line in left_out:
      report.say(f"ON {newest.version}: {line}")
    if not made:
      return {}
    folder = scratch / "commits"
    names, _ = sending.write(made, newest, copy.folder, folder, _NOBODY,
                             in_a_row=False)
    found = verifying.on_release(dict(zip(names, made)), folder, passed, copy)
  return dict.fromkeys(found, newest.version)
