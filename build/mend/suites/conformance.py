# SPDX-License-Identifier: Apache-2.0
"""Holds both wheels against the array API consortium's own tests.

A checkout of data-apis/array-api-tests, which stays where it is, is run on the
pristine and on the mended wheel, with the seed of its examples fixed. A test
that fails on the mended one must be mended or explained: the table of DOCUMENT
has a sentence for each that is left alone, by name, `*` for anything.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import pathlib
import re

from mend.ground import report
from mend.ground.errors import MendError
from mend.ground.report import Verdict
from mend.proof import environments, judging, pools, pytest_run, testing
from mend.releases import bases
from mend.releases.bases import Base
from mend.suites.verdicts import Outcomes

DOCUMENT = "docs/array_api.md"
HEADING = "## The conformance suite"
_EXAMPLES = 4
_OPTIONS = (f"--max-examples={_EXAMPLES}", "--hypothesis-seed=0",
            "--disable-deadline")
# The standard's default dtypes are those of 64 bits.
_ENVIRONMENT = {"JAX_ENABLE_X64": "1", "ARRAY_API_TESTS_MODULE": "jax.numpy"}
_HEAD = ("base", "passed, pristine", "passed, mended", "failed, pristine",
         "failed, mended", "of them explained")


@dataclasses.dataclass(frozen=True)
class Exemption:
  """Tests that may fail, on some bases, and why."""
  pattern: str
  versions: str
  why: str

  def covers(self, test: str, base: Base) -> bool:
    shape = ".*".join(map(re.escape, self.pattern.split("*")))
    return base.within(self.versions) and bool(re.fullmatch(shape, test))


def read_exemptions(page: str) -> list[Exemption]:
  """The rows of the table below HEADING: tests, bases, why.

  Raises:
    MendError: there is no such table.
  """
  rows = []
  for line in page.partition(HEADING + "\n")[2].split("\n## ")[0].splitlines():
    cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
    if line.startswith("| `") and len(cells) == 3:
      rows += [Exemption(name.strip().strip("`"),
                         "" if cells[1] == "all" else cells[1], cells[2])
               for name in cells[0].split("`, `")]
  if not rows:
    raise MendError(f"{DOCUMENT} has no table of tests below {HEADING!r}.",
                    "write one: | `test_name` | all | why |")
  return rows


def find_files(checkout: pathlib.Path) -> list[pathlib.Path]:
  """The suite's test files.

  Raises:
    MendError: there are none, or the standard that they read is missing.
  """
  files = sorted((checkout / "array_api_tests").glob("test_*.py"))
  if not files:
    raise MendError(f"{checkout} has no array_api_tests/test_*.py.",
                    "name a checkout of data-apis/array-api-tests")
  if not (checkout / "array-api" / "src").is_dir():
    raise MendError(f"{checkout}/array-api is empty.",
                    f"git -C {checkout} submodule update --init")
  return files


def compare_wheels(checkout: pathlib.Path, chosen: Sequence[Base],
                   limit: float) -> Verdict:
  """Runs the suite on both wheels of each base.

  Args:
    checkout: of data-apis/array-api-tests, with its submodule.
    chosen: the base releases.
    limit: seconds for one test.

  Returns:
    That it failed if a test fails on mended that DOCUMENT doesn't explain, or
    that passes on pristine, or if none passed.
  """
  page = (bases.ROOT / DOCUMENT).read_text(encoding="utf-8")
  files, exemptions = find_files(checkout.absolute()), read_exemptions(page)
  rows, status = [], 0
  for base in chosen:
    before, after = _outcomes(base, files, limit)
    row, wrong = judge(base, before, after, exemptions)
    rows.append(row)
    status |= wrong
  report.say("\n" + report.table(_HEAD, rows))
  if status or not rows:
    return Verdict("tests of the array API fail on mended.",
                   f"see above, and {DOCUMENT}")
  return Verdict("the array API's tests hold on "
                 f"{report.plural(len(rows), 'base')}.")


def judge(base: Base, before: Outcomes, after: Outcomes,
          exemptions: Sequence[Exemption]) -> tuple[tuple[str, ...], int]:
  """Judges a base: its row, and 1 if something is wrong; prints what."""
  failing = {side: {t for t, o in outcomes.items()
                    if o.status == pytest_run.FAILED}
             for side, outcomes in (("before", before), ("after", after))}
  explained = {t for t in failing["after"]
               if any(e.covers(t, base) for e in exemptions)}
  for test in sorted(failing["before"] - failing["after"]):
    report.say(f"mended on {base.version}: {test}")
  for test in sorted(failing["after"] - explained):
    report.say(f"FAILED, not explained in {DOCUMENT}, on {base.version}: {test}"
               f"\n{judging.tail(after[test].text)}")
  new = failing["after"] - failing["before"]
  for test in sorted(new & explained):
    report.say(f"FAILED on mended only, on {base.version}: {test}")
  passed = [sum(o.status == pytest_run.PASSED for o in outcomes.values())
            for outcomes in (before, after)]
  row = (base.version, *map(str, passed), str(len(failing["before"])),
         str(len(failing["after"])), str(len(explained)))
  return row, int(bool(new or failing["after"] - explained or not passed[1]))


def _outcomes(base: Base, files: Sequence[pathlib.Path],
              limit: float) -> tuple[Outcomes, Outcomes]:
  made = environments.build(base, kind="conformance")

  def one(job: tuple[pathlib.Path, pathlib.Path]) -> Outcomes:
    python, path = job
    found = pytest_run.run_file(python, path, limit=limit, options=_OPTIONS,
                                env={**testing.TEST_ENVIRONMENT,
                                     **_ENVIRONMENT})
    return {f"{path.stem}.{test}": outcome for test, outcome in found.items()}

  with pools.pool() as pool:
    todo = [(python, path) for python in (made.pristine, made.mended)
            for path in files]
    done = list(pool.map(one, todo))
  sides_of: tuple[Outcomes, Outcomes] = ({}, {})
  for (python, _), found in zip(todo, done):
    sides_of[python == made.mended].update(found)
  return sides_of
