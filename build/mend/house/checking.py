# SPDX-License-Identifier: Apache-2.0
"""`build.py check` and `build.py status`."""

from __future__ import annotations

from collections.abc import Sequence
import json
import pathlib

from mend.editing import families, patches
from mend.ground import report
from mend.ground.errors import MendError
from mend.ground.report import Verdict
from mend.house import anchors, docs, frozen, lint, originality
from mend.mutation import age
from mend.proof.judging import Tally
from mend.releases import bases, source
from mend.releases.bases import Base
from mend.trees import drift, live_table, tree
from mend.upstream import commits, main_branch
from mend.upstream import page as upstream_page


_COMMAND = "python3 build/build.py"


def check(chosen: Sequence[Base], record: bool,
          against: Sequence[pathlib.Path] = ()) -> Verdict:
  """Every edit's state on every base, originality, and the documents."""
  series = patches.load()
  if record:
    _record(series, chosen)
  found = _states(series, chosen)
  inexact = _show_states(found, len(chosen))
  applies = _applies(series, chosen)
  sound = applies and _check_anchors(series, chosen)
  original = check_originality(chosen)
  if against:
    original &= check_against(against)
  tables, twins = _check_tables(series, chosen), _check_twins(chosen)
  overdue, stale = not age.good(series), _show_stale(len(series))
  sends = not commits.problems(series)
  for good, words, next_step in (
      (found and not inexact, f"{report.plural(inexact, 'edit')} not exact.",
       f"look at them (build.py apply), correct, {_COMMAND} check --record"),
      (applies, "the series can't be applied.", "see above what to correct"),
      (sound, "a release is left out, an edited file does not parse, "
       "or a name isn't there (WRONG above).",
       f"{_COMMAND} check --places, then correct patches/*.toml"),
      (original, "lines of ours are upstream's.",
       "write those passages in your own words and code"),
      (twins, "a twin is another release.", "edit build/bases.toml"),
      (not overdue, "mutation testing is overdue.", age.COMMAND),
      (frozen.good(series, families.load()), "a frozen line has a new patch.",
       "edit its `bases` in patches/*.toml"),
      (tables, "live/table is stale, see above.", f"{_COMMAND} tables"),
      (sends, "the commits for upstream don't apply, or not together.",
       "correct [upstream] of patches/*.toml; a place that upstream has since: "
       f"{_COMMAND} export --verify=CHECKOUT --output_path=DIR"),
      (not stale, "a page is stale, see above.", docs.COMMAND)):
    if not good:
      return Verdict(words, next_step)
  return Verdict(f"{report.plural(len(found), 'edit')} exact on "
                 f"{report.plural(len(chosen), 'base')}, nothing copied, "
                 "nothing stale.")


def _record(series: Sequence[patches.Patch], chosen: Sequence[Base]) -> None:
  """Records that a person has read the definitions as they are."""
  found = _states(series, chosen)
  changed = drift.record(found, whole=len(chosen) == len(bases.all_bases()))
  report.say(f"Recorded the fingerprints of {len(found)} edits "
             f"({changed} files changed in patches/fingerprints).")


def _show_stale(count: int) -> list[str]:
  """Prints the documents that no longer match the patches."""
  stale = [*docs.stale(), *upstream_page.stale(), *main_branch.stale()]
  for line in stale:
    report.say(f"STALE: {line}")
  report.say(f"Documents: {count} patches compared with the pages and "
             f"CHANGELOG.md, {len(stale)} differences.")
  return stale


def _check_twins(chosen: Sequence[Base]) -> bool:
  """Compares each twin's source with that of the release it is a twin of."""
  twins = bases.twins(chosen)
  compared, found = 0, []
  for twin in twins:
    origin = bases.get(twin.twin_of)
    compared += len(source.files(twin))
    found += [f"jax {twin.version} and {twin.twin_of}: {name}"
              for name in source.differences(twin, origin)]
  for line in found:
    report.say(f"DIFFERS: {line}")
  report.say(f"Twins: {len(twins)}, {compared} files compared, {len(found)} "
             "differ beside version.py.")
  return bool(compared or not twins) and not found


def _check_tables(series: Sequence[patches.Patch],
                  chosen: Sequence[Base]) -> bool:
  """Holds jax-mend's tables against what the patches make of the releases."""
  try:
    count, stale = live_table.stale(series, chosen)
  except MendError as e:  # the series can't be applied: said already
    report.say(f"Tables: not made: {e.what}")
    return False
  for name in stale:
    report.say(f"STALE: live/table/{name}")
  report.say(f"Tables: {count} files of live/table held against the patches of "
             f"{report.plural(len(chosen), 'release')}, {len(stale)} differ.")
  return bool(count) and not stale


def _show_states(found: Sequence[drift.State], releases: int) -> int:
  """Prints the edits that are not exact; returns how many they are."""
  bad = [s for s in found if s.state != drift.EXACT]
  for state in bad:
    report.say(f"{state.state.upper()}: base {state.base}, {state.edit.label}"
               + (f": {state.detail}" if state.detail else ""))
  report.say(f"Edits: {len(found)} looked at on {releases} bases, "
             f"{len(found) - len(bad)} exact, {len(bad)} not.")
  return len(bad)


def _check_anchors(series: Sequence[patches.Patch],
                   chosen: Sequence[Base]) -> bool:
  """True if no release is left out, all files parse and all names are there.
  """
  ideas, left_out = anchors.gaps(series, bases.all_bases())
  files, faults = anchors.undefined(series, chosen)
  for line in (*left_out, *faults):
    report.say(f"WRONG: {line}")
  report.say(f"Places: {ideas} ideas looked at on {len(bases.all_bases())} "
             f"releases, {len(left_out)} left out between others; "
             f"{files} edited files parsed and their names held against "
             f"pristine ones, {report.plural(len(faults), 'fault')}.")
  return bool(ideas and files) and not left_out and not faults


def project_checks(chosen: Sequence[Base], linted: bool) -> Tally:
  """The state of the edits, originality, lint and types, as one test each.

  Args:
    chosen: the releases.
    linted: whether the tools of `lint` run, too.
  """
  total = Tally()
  lints = lint.results() if linted else []
  for name, good in (("check", check(chosen, False).good), *lints):
    if good:
      total.passed += 1
    else:
      total.failures.append(f"{name}: see its output above")
  return total


def _applies(series: Sequence[patches.Patch], chosen: Sequence[Base]) -> bool:
  """True if the edits of each base can be made together."""
  good = True
  for base in chosen:
    try:
      tree.mended(series, base, source.pristine(base))
    except MendError as e:
      report.say(str(e))
      good = False
  report.say(f"Series: applied in memory to {len(chosen)} bases"
             + ("." if good else ", not to all."))
  return good


def _states(series: Sequence[patches.Patch],
            chosen: Sequence[Base]) -> list[drift.State]:
  return [state for base in chosen
          for state in drift.states(series, base, source.pristine(base))]


def check_originality(against: Sequence[Base]) -> bool:
  """True if no run of our lines is upstream's; prints what it compared."""
  with report.step("comparing our lines with upstream's"):
    known, files, lines = originality.upstream_lines(
        source.pristine(b) for b in against)
    hits, our_files, our_lines = originality.compare(bases.ROOT, known)
  runs = [h for h in hits if h.run > originality.LONGEST_RUN]
  for hit in hits:
    line = f"{hit.file}:{hit.number}: {report.shorten(hit.line, 60)}"
    if hit.run > originality.LONGEST_RUN:
      report.say(f"COPIED: {line}")
    else:
      report.detail(f"shared: {line}")
  report.say(f"Originality: {our_files} files with {our_lines} lines compared "
             f"with {files} files with {lines} lines of {len(against)} bases; "
             f"{len(hits)} single lines shared, {len(runs)} in runs of three.")
  return bool(our_files and our_lines and files and lines) and not runs


def check_against(checkouts: Sequence[pathlib.Path]) -> bool:
  """`check_originality` for checkouts, with their tests; any number."""
  for checkout in checkouts:
    if not checkout.is_dir():
      raise MendError(f"There is no folder {checkout}.",
                      "name a checkout of upstream: --against=DIR")
  with report.step("comparing our lines with the checkouts'"):
    known, files, lines = originality.lines_of_substance(checkouts)
    hits, our_files, our_lines = originality.compare(bases.ROOT, known)
  ends = [h for h in hits if h.run > 1]
  for hit in hits:
    if any(e.file == hit.file and 0 <= e.number - hit.number < 4
           for e in ends):
      report.say(f"COPIED: {hit.file}:{hit.number}: "
                 + report.shorten(hit.line, 60))
  report.say(f"Against checkouts: {our_files} files with {our_lines} lines "
             f"compared with {files} files with {lines} lines of "
             f"{len(checkouts)} checkouts; {len(hits)} single lines shared, "
             f"{len(ends)} in runs of two.")
  return bool(our_files and our_lines and files and lines) and not ends


def rows(series: Sequence[patches.Patch],
         chosen: Sequence[Base]) -> list[dict]:
  """One record for each patch: what it is and its state on each base."""
  states = _states(series, chosen)
  records = []
  for patch in series:
    per_base = {}
    for base in chosen:
      mine = [s.state for s in states
              if s.edit.patch == patch.id and s.base == base.version]
      per_base[base.version] = _summary(base.within(patch.bases), mine)
    records.append({
        "id": patch.id, "title": patch.title, "issues": list(patch.issues),
        "upstream": patch.upstream.status, "bases": per_base,
        "tests": [*patch.tests, *patch.unit_tests],
        "modules": list(patch.modules)})
  return records


def _summary(applies: bool, states: Sequence[str]) -> str:
  if not applies:
    return "-"
  worst = [s for s in states if s != drift.EXACT]
  return worst[0] if worst else drift.EXACT


def in_words(per_base: dict[str, str]) -> str:
  """A patch's states on the bases: "exact on all", "exact on 0.5.3"."""
  on: dict[str, list[str]] = {}
  for version, state in per_base.items():
    on.setdefault(state, []).append(version)
  on.pop("-", None)
  return "; ".join(
      f"{state} on " + ("all" if len(found) == len(per_base)
                        else " ".join(found))
      for state, found in on.items())


def status(as_json: bool) -> Verdict:
  """Prints the table of patches and bases."""
  chosen = bases.all_bases()
  found = rows(patches.load(), chosen)
  verdict = Verdict(f"{len(found)} patches, "
                    f"{report.plural(len(chosen), 'base')}.")
  if as_json:
    report.say(json.dumps({
        "release": bases.release(),
        "bases": {b.version: b.sha256 for b in chosen}, "patches": found},
        indent=1))
    return verdict
  report.show(
      ("patch", "reports", "edits", "upstream"),
      [(r["id"], " ".join(r["issues"]), in_words(r["bases"]), r["upstream"])
       for r in found])
  return verdict
