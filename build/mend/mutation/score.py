# SPDX-License-Identifier: Apache-2.0
"""`build.py test --mutation`: mutation testing of what the patches do.

A mutant is the mended jax without one edit, or without one registration of our
modules. A test kills it by failing; what survives is either not needed, and
goes, or lacks a test. A registration, which releases share, is killed if its
mutant is on one of the releases that run together: it is tried on the newest
first, with the likeliest tests, and with the others only where it survives
these everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from mend.editing import patches
from mend.ground import cache, pages, report
from mend.ground.report import Verdict
from mend.mutation import age, mutants
from mend.mutation.mutants import Mutant
from mend.mutation.runner import MutantResult, Runner
from mend.proof import fork_servers, pools, testing
from mend.releases import bases, source
from mend.releases.bases import Base
from mend.trees import tree

DOCUMENT = "docs/proof/mutation.md"
# What a test imports beside jax, of which each mutant has another one.
_PRELOAD = ("numpy", "pytest", "absl.testing.parameterized",
            "jaxlib.xla_client")
_COLUMNS = ("family", "edits", "registrations", "killed by a test of the patch",
            "by one of another", "on another release", "survived")


def run(chosen: Sequence[Base], names: Sequence[str], write: bool,
        since: bool = False) -> Verdict:
  """Runs the tests on every mutant of each base; a survivor is a failure.

  Args:
    chosen: the bases.
    names: of patches; none for all.
    write: whether to note what was run, and to write the page of a whole run.
    since: whether to run the patches that have changed since the last run.
  """
  series = patches.load()
  patches.require_known(series, names)
  if since and not (names := age.unseen(series, age.last())):
    return Verdict("no patch has changed since the last run.")
  trees = {base: _Mutants(base, series, names) for base in chosen}
  found = _likeliest(series, trees)
  killed = killed_registrations(r for each in found.values() for r in each)
  for base, its in trees.items():
    todo = [r.mutant for r in found[base]
            if not r.killed and r.mutant.label not in killed]
    again = {r.mutant: r for r in (
        _run_on(base, series, its, todo) if todo else ())}
    found[base] = [again.get(r.mutant, r) for r in found[base]]
    killed |= killed_registrations(again.values())
  _show(found, killed, write and not names)
  count = sum(map(len, found.values()))
  survivors = [r.mutant.patch for each in found.values() for r in each
               if not r.killed and r.mutant.label not in killed]
  if write and count:
    _note(series, names, survivors)
  if survivors or not count:
    return Verdict(f"{len(survivors)} of {count} mutants survived.",
                   "remove what each leaves out, or test what it is for")
  return Verdict(f"each of {count} mutants is killed by a test.")


def _note(series: Sequence[patches.Patch], names: Sequence[str],
          survivors: Sequence[str]) -> None:
  """Notes a whole run, or those of the named patches that have no survivor."""
  if killed := [name for name in names if name not in survivors]:
    age.note(series, killed)
  elif not names:
    age.note(series)


def _likeliest(series: Sequence[patches.Patch],
               trees: Mapping[Base, _Mutants]
               ) -> dict[Base, list[MutantResult]]:
  """Runs the likeliest tests on the mutants of each base.

  A survivor costs most, so a registration is tried on the newest base first,
  and where it survives on the next; with all tests, later, only if it survives
  these on all bases. Edits, which differ, are tried on each base.
  """
  killed: frozenset[str] = frozenset()
  found = {}
  for base in reversed([*trees]):
    its = trees[base]
    todo = [m for m in its.todo if m.label not in killed]
    results = {r.mutant: r for r in _run_on(base, series, its, todo, True)}
    found[base] = [results.get(m, MutantResult(m, "", False))
                   for m in its.todo]
    killed |= killed_registrations(results.values())
  return {base: found[base] for base in trees}


def _show(found: Mapping[Base, Sequence[MutantResult]],
          killed: frozenset[str], write: bool) -> None:
  """Prints each base's section, and writes it into the page."""
  for base, each in found.items():
    text = section(base, each, killed)
    report.say("\n" + text)
    if write:
      pages.write_section(bases.ROOT / DOCUMENT, "mutation", text)


def killed_registrations(found: Iterable[MutantResult]) -> frozenset[str]:
  """Labels of those killed on any release: modules are shared."""
  return frozenset(r.mutant.label for r in found
                   if r.killed and r.mutant.kind == "registration")


class _Mutants:
  """The mended tree of a base, all mutants of it, and those to be run."""

  def __init__(self, base: Base, series: Sequence[patches.Patch],
               names: Sequence[str]):
    origin = source.pristine(base)
    self.result = tree.mended(series, base, origin)
    self.every = mutants.generate(self.result, series, origin)
    self.todo = [m for m in self.every if not names or m.patch in names]


def _run_on(base: Base, series: Sequence[patches.Patch], its: _Mutants,
            todo: Sequence[Mutant], brief: bool = False) -> list[MutantResult]:
  found = []
  # A run that is stopped ends its tests first, while they have what they need.
  with (cache.scratch() as folder,
        fork_servers.Servers(_PRELOAD, testing.JOB_ENVIRONMENT) as servers,
        fork_servers.Sharing(testing.PRELOAD,
                             testing.JOB_ENVIRONMENT) as sharing,
        report.Progress(len(todo)) as progress, pools.pool() as pool):
    briefly = {m for m in todo if brief and m.kind == "registration"}
    runner = Runner(base, series, its.every, its.result, servers, sharing,
                    briefly)
    runner.make_overlays(folder)
    for result in pool.map(runner.run, todo):
      survived = ("survives the likeliest tests"
                  if result.mutant in briefly else "SURVIVED")
      progress.end("", f"{base.version} {result.mutant.label}: "
                   + (result.test or survived), result.killed)
      found.append(result)
  return found


def section(base: Base, found: Sequence[MutantResult],
            elsewhere: frozenset[str] = frozenset()) -> str:
  """The heading, a row for each family, and the survivors.

  Args:
    base: the release.
    found: the results on it.
    elsewhere: labels of registrations killed on this or another release.
  """
  survived = {r.mutant.label for r in found if not r.killed} - elsewhere
  rows = []
  for family in dict.fromkeys(r.mutant.patch.split("/")[0] for r in found):
    mine = [r for r in found if r.mutant.patch.split("/")[0] == family]
    edits = sum(r.mutant.kind == "edit" for r in mine)
    rows.append((family, edits, len(mine) - edits,
                 sum(r.killed and r.own for r in mine),
                 sum(r.killed and not r.own for r in mine),
                 sum(not r.killed and r.mutant.label in elsewhere
                     for r in mine),
                 sum(r.mutant.label in survived for r in mine)))
  left = [f"* {r.mutant.label}" for r in found if r.mutant.label in survived]
  return "\n".join([f"## jax {base.version}", "", report.table(
      _COLUMNS, [tuple(map(str, row)) for row in rows]),
                    *([""] + left if left else [])])
