# SPDX-License-Identifier: Apache-2.0
"""The generated parts of README.md, CHANGELOG.md and pages of docs/.

`build.py docs` writes them between markers: the tables of reports from real
runs of the reproductions, the change log from the patches, the releases from
build/bases.toml. `check` fails where they no longer match these.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
import pathlib
import re

from mend.editing import families, patches, reproductions
from mend.ground import pages, report, repository
from mend.ground.report import Verdict
from mend.house import change_log, frozen, sources_of_page
from mend.proof import environments, reproduce
from mend.releases import bases
from mend.releases.bases import Base
from mend.upstream import page as upstream_page

COMMAND = "python3 build/build.py docs"
REPORTS = "docs/proof/reports.md"
RELEASES = "docs/releases.md"
DIFFERENCES = "docs/differences.md"
_CELLS = {("FAIL", "PASS"): "fixed", ("PASS", "PASS"): "works",
          ("n/a", "n/a"): "-", ("FAIL", "FAIL"): "FAILS",
          ("FAIL", "n/a"): "-", ("n/a", "PASS"): "new",
          ("PASS", "FAIL"): "BROKEN",
          ("PASS", "n/a"): "-", ("n/a", "FAIL"): "FAILS"}


def reports(series: Sequence[patches.Patch],
            chosen: Sequence[Base]) -> dict[str, list[list[str]]]:
  """The table of defects fixed on each base: each cell from two real runs.

  Returns:
    For each family, the rows of its table.
  """
  items = reproductions.collect(series)
  cells: list[list[str]] = [[i.report, i.line] for i in items]
  for base in chosen:
    mine = reproduce.only_for(items, series, base)
    made = environments.build(base, series=series, kind="proof")
    with reproduce.servers() as servers:
      before = reproduce.remembered(mine, made.pristine, f"jax {base.version}",
                                    servers, base)
      after = reproduce.remembered(mine, made.mended, f"jax {base.mended}",
                                   servers, base)
    seen = {(i.report, i.line): _CELLS[b.status, a.status]
            for i, b, a in zip(mine, before, after)}
    for row, item in zip(cells, items):
      row.append(seen.get((item.report, item.line), "-"))
  grouped: dict[str, list[list[str]]] = {}
  for row, item in zip(cells, items):
    grouped.setdefault(families.of(item.patch), []).append(row)
  return grouped


def report_tables(rows: dict[str, list[list[str]]], chosen: Sequence[Base],
                  known: dict[str, families.Family]) -> str:
  """A section for each family, with the table of its reports."""
  head = ("report", "what is mended", *(b.version for b in chosen))
  return "\n\n".join(
      f"## {name}\n\n{_sentence(family)}\n\n{report.table(head, rows[name])}"
      for name, family in known.items() if name in rows)


def _sentence(family: families.Family) -> str:
  pages = ", ".join(f"[{page.removeprefix('docs/')}]"
                    f"({page.replace('docs/', '../')})"
                    for page in family.pages)
  first = family.summary[0].upper() + family.summary[1:]
  return f"{first}{': ' if pages else ''}{pages}."


def summary(rows: dict[str, list[list[str]]], chosen: Sequence[Base],
            known: dict[str, families.Family]) -> str:
  """A table of families: how many of their programs are fixed on each base."""
  lines = []
  for name in known:
    mine = rows.get(name, [])
    lines.append([f"[{name}](#{name})", *(
        str(sum(row[2 + i] == "fixed" for row in mine) or "-")
        for i in range(len(chosen)))])
  return report.table(("family", *(b.version for b in chosen)), lines)


def families_table(known: dict[str, families.Family]) -> str:
  """The families of patches, with the pages that users read about each."""
  return report.table(("what is mended", "read"), [
      (family.summary, ", ".join(
          f"[{pathlib.Path(page).stem}]({page})" for page in family.pages))
      for family in known.values()])


def of_stock(series: Sequence[patches.Patch], base: Base) -> str:
  """The defects of the base as upstream released it, counted by family."""
  mine = reproduce.only_for(reproductions.collect(series), series, base)
  made = environments.build(base, series=series, kind="proof")
  with reproduce.servers() as servers:
    outcomes = reproduce.remembered(mine, made.pristine, f"jax {base.version}",
                                    servers, base)
  return report.table(("family", "defects here", "programs"),
                      reproduce.by_family(mine, outcomes))


def releases_sentence() -> str:
  """The releases that are mended, in README's one sentence."""
  found = bases.releases()
  return (f"All {len(found)} releases of jax from {found[0].version} to "
          f"{found[-1].version} are mended\n([which, and their proofs]"
          f"({RELEASES})).")


def releases_table(frozen_lines: Collection[str] = ()) -> str:
  """The releases that are mended, newest first, a row for those of a line.

  Those of a line that support other Pythons have a row of their own.

  Args:
    frozen_lines: the lines that are mended no further.
  """
  rows: dict[tuple[str, str], list[Base]] = {}
  for base in reversed(bases.releases()):
    rows.setdefault((base.line, base.python), []).append(base)
  return report.table(("installed", "for Python", "proven by"), [
      (", ".join(b.version for b in found), bases.pythons(found[0]),
       _proofs(found) + ("; frozen" if line in frozen_lines else ""))
      for (line, _), found in rows.items()])


def _proofs(found: Sequence[Base]) -> str:
  """The ways in which releases are proven, the releases of each."""
  ways: dict[str, list[str]] = {}
  for base in found:
    way = (f"has the files of {base.twin_of}" if base.twin_of else
           "a sample of the tests" if base.proof == "sample" else "every test")
    ways.setdefault(way, []).append(base.version)
  if len(ways) == 1:
    return next(iter(ways))
  return "; ".join(f"{', '.join(on)}: {way}" for way, on in ways.items())


def reversals(series: Sequence[patches.Patch]) -> str:
  """The deliberate refusals of upstream's that patches reverse."""
  rows = dict.fromkeys(
      (f"`{patch.id}`", item.why, "no" if item.refusal else "yes")
      for patch in series for item in patch.supersedes)
  return report.table(("patch", "what JAX refuses, by its words or its test",
                       "it has a test"), [*map(list, rows)])


def _from_text(root: pathlib.Path, series: Sequence[patches.Patch],
               known: dict[str, families.Family]) -> list[tuple[str, str, str]]:
  """The parts that need no run: the page, the part's name and its text."""
  return [("README.md", "releases", releases_sentence()),
          ("README.md", "families", families_table(known)),
          (RELEASES, "releases", releases_table(frozen.lines(known))),
          (DIFFERENCES, "reversals", reversals(series)),
          (change_log.FILE, "changes", change_log.bullets(
              series, repository.text(root / change_log.FILE))),
          *sources_of_page.parts(series, known)]


def write_quick(root: pathlib.Path = bases.ROOT) -> Verdict:
  """Rewrites the generated parts that no program has to be run for."""
  series, known = patches.load(root), families.load(root)
  pages.put(root, [*_from_text(root, series, known),
                   *upstream_page.parts(root)])
  return Verdict("the pages match the patches, but for the tables of reports.")


def write(root: pathlib.Path = bases.ROOT) -> Verdict:
  """Rewrites the generated parts; the tables must show none on mended."""
  write_quick(root)
  series, known = patches.load(root), families.load(root)
  chosen = bases.representatives()
  rows = reports(series, chosen)
  tables = report_tables(rows, chosen, known)
  pages.put(root, [(REPORTS, "summary", summary(rows, chosen, known)),
                   (REPORTS, "stock", of_stock(series, chosen[-1])),
                   (REPORTS, "reports", tables)])
  wrong = len(re.findall(r"\| (FAILS|BROKEN) ", tables))
  if wrong:
    return Verdict(f"{report.plural(wrong, 'defect')} on a mended base.",
                   "python3 build/build.py build --wheels=jax --base=all")
  return Verdict("the pages match the patches.")


def stale(root: pathlib.Path = bases.ROOT) -> list[str]:
  """The pages that no longer match the patches, without running anything."""
  series, known = patches.load(root), families.load(root)
  found = [f"{file}: its {name} do not match patches/*.toml or "
           f"build/bases.toml; run {COMMAND}" for file, name in
           pages.differing(root, _from_text(root, series, known))]
  page = repository.text(root / REPORTS)
  for item in reproductions.collect(series, root):
    if item.line not in page:
      found.append(f"{REPORTS} lacks {item.line!r}; run {COMMAND}")
  return found
