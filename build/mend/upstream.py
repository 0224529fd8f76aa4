"""Holds the mended wheel against upstream's own tests.

Runs test files of a jax source checkout, which stays where it is, on the
pristine and on the mended wheel, and prints only what differs.
"""

from __future__ import annotations

from collections.abc import Sequence
import concurrent.futures
import fnmatch
import pathlib

from mend import patches, pytest_run, report, sides, testing
from mend.bases import Base
from mend.errors import MendError

Outcomes = dict[str, pytest_run.Outcome]


def run(checkout: pathlib.Path, chosen: Sequence[Base], only: Sequence[str],
        limit: float, names: list[str] | None) -> int:
  """Returns 1 if a test that passes on pristine fails on mended."""
  files = find_files(checkout.absolute(), only)
  status = 0
  for base in chosen:
    status |= _run_base(files, base, limit, names)
  return status


def find_files(checkout: pathlib.Path,
               only: Sequence[str]) -> list[pathlib.Path]:
  """The test files that `only` names, or all."""
  folder = checkout / "tests"
  if not folder.is_dir():
    raise MendError(f"{checkout} has no tests/ folder.",
                    "name a source checkout of jax: --upstream=DIR")
  if not only:
    return sorted(folder.glob("*_test.py"))
  found = []
  for name in only:
    stem = pathlib.Path(name).name.removesuffix(".py")
    path = folder / f"{stem}.py"
    if not path.is_file():
      raise MendError(f"There is no {path}.", f"ls {folder}")
    found.append(path)
  return found


def _run_base(files: Sequence[pathlib.Path], base: Base, limit: float,
              names: list[str] | None) -> int:
  series = patches.load()
  series = patches.select(series, names) if names else series
  made = sides.of(base, series=series, kind="upstream")

  def both(path: pathlib.Path) -> tuple[Outcomes, Outcomes]:
    outcomes = [pytest_run.run_file(
        p, path, limit=limit, env=testing.TEST_ENVIRONMENT)
             for p in (made.pristine, made.mended)]
    return outcomes[0], outcomes[1]

  totals: dict[str, int] = {}
  with concurrent.futures.ThreadPoolExecutor(testing.workers()) as pool:
    for path, (before, after) in zip(files, pool.map(both, files)):
      for key, value in compare(path.name, base, before, after,
                                series).items():
        totals[key] = totals.get(key, 0) + value
  report.say(f"jax {base.mended} against {base.version}: {len(files)} files, "
             + ", ".join(f"{v} {k}" for k, v in totals.items()))
  return 1 if totals.get("newly failing") or not sum(totals.values()) else 0


def compare(name: str, base: Base, before: Outcomes, after: Outcomes,
            series: Sequence[patches.Patch] = ()) -> dict[str, int]:
  """Prints the differences of one file; returns counts."""
  counts = {"pass on both": 0, "fail on both": 0, "skipped": 0,
            "newly failing": 0, "newly passing": 0, "changed on purpose": 0}
  for test in sorted({*before, *after}):
    old = before.get(test, pytest_run.Outcome("absent")).status
    new = after.get(test, pytest_run.Outcome("absent")).status
    key = _kind(old, new)
    why = _purpose(f"{name} {test}", base, series)
    if key == "newly failing" and why:
      key = "changed on purpose"
      report.say(f"changed on purpose on {base.version}: {name} {test}: {why}")
    counts[key] += 1
    if key == "newly failing":
      text = after[test].text if test in after else "the test is gone"
      report.say(f"NEWLY FAILING on {base.version}: {name} {test}\n"
                 + testing.tail(text))
    elif key == "newly passing":
      report.say(f"newly passing on {base.version}: {name} {test}")
  report.say(f"{base.version} {name}: " + ", ".join(
      f"{v} {k}" for k, v in counts.items() if v))
  return counts


def _purpose(test: str, base: Base, series: Sequence[patches.Patch]) -> str:
  """Why a patch fails this test of upstream on purpose, or ""."""
  for patch in series:
    for item in patch.supersedes:
      if (not item.bases or base.within(item.bases)) and any(
          fnmatch.fnmatchcase(test, pattern) for pattern in item.tests):
        return item.why
  return ""


def _kind(old: str, new: str) -> str:
  if old != pytest_run.FAILED and new in (pytest_run.FAILED, "absent"):
    return "newly failing"
  if new == pytest_run.FAILED:
    return "fail on both"
  if old in (pytest_run.FAILED, "absent") and new == pytest_run.PASSED:
    return "newly passing"
  return "pass on both" if new == pytest_run.PASSED else "skipped"
