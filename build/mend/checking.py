"""`build.py check` and `build.py status`."""

from __future__ import annotations

from collections.abc import Sequence
import json

from mend import bases, docs, drift, originality, patches, report, source
from mend.bases import Base


def check(chosen: Sequence[Base], record: bool) -> int:
  """Every edit's state on every base, then originality; 0 if all is well."""
  series = patches.load()
  found = _states(series, chosen)
  if record:
    changed = drift.record(found)
    report.say(f"Recorded the fingerprints of {len(found)} edits "
               f"({changed} files changed in patches/fingerprints).")
    found = _states(series, chosen)
  bad = [s for s in found if s.state != drift.EXACT]
  for state in bad:
    report.say(f"{state.state.upper()}: base {state.base}, {state.edit.label}"
               + (f": {state.detail}" if state.detail else ""))
  if bad:
    report.say("Next: look at those definitions (build.py apply), correct "
               "patches/*.toml, then python3 build/build.py check --record")
  report.say(f"Edits: {len(found)} looked at on {len(chosen)} bases, "
             f"{len(found) - len(bad)} exact, {len(bad)} not.")
  overlaps = _applies(series, chosen)
  original = check_originality(bases.all_bases())
  stale = docs.stale()
  for line in stale:
    report.say(f"STALE: {line}")
  report.say(f"Documents: {len(series)} patches compared with README.md and "
             f"CHANGELOG.md, {len(stale)} differences.")
  good = found and not bad and overlaps and original and not stale
  return 0 if good else 1


def _applies(series: Sequence[patches.Patch], chosen: Sequence[Base]) -> bool:
  """Whether the edits of each base can be made together."""
  from mend import tree
  from mend.errors import MendError
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
  """Whether no run of our lines is upstream's; prints what it compared."""
  with report.step("comparing our lines with upstream's"):
    known, files, lines = originality.upstream_lines(
        source.pristine(b) for b in against)
    hits, our_files, our_lines = originality.compare(bases.ROOT, known)
  runs = [h for h in hits if h.run > originality.LONGEST_RUN]
  for hit in hits:
    kind = "COPIED" if hit.run > originality.LONGEST_RUN else "shared"
    line = report.shorten(hit.line, 60)
    report.say(f"{kind}: {hit.file}:{hit.number}: {line}")
  if runs:
    report.say("Next: write those passages in your own words and code.")
  report.say(f"Originality: {our_files} files with {our_lines} lines compared "
             f"with {files} files with {lines} lines of {len(against)} bases; "
             f"{len(hits)} single lines shared, {len(runs)} in runs of three.")
  return bool(our_files and our_lines and files and lines) and not runs


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
        "upstream": patch.upstream["status"], "bases": per_base,
        "tests": [*patch.tests, *patch.unit_tests],
        "modules": list(patch.modules)})
  return records


def _summary(applies: bool, states: Sequence[str]) -> str:
  if not applies:
    return "-"
  worst = [s for s in states if s != drift.EXACT]
  return worst[0] if worst else drift.EXACT


def status(as_json: bool) -> int:
  """Prints the table of patches and bases."""
  chosen = bases.all_bases()
  found = rows(patches.load(), chosen)
  if as_json:
    report.say(json.dumps({
        "release": bases.release(),
        "bases": {b.version: b.sha256 for b in chosen}, "patches": found},
        indent=1))
    return 0
  report.say(report.table(
      ("patch", "reports", *(b.version for b in chosen), "upstream", "tests"),
      [(r["id"], " ".join(r["issues"]), *r["bases"].values(), r["upstream"],
        " ".join(t.removeprefix("tests/") for t in r["tests"]))
       for r in found]))
  report.say(f"{len(found)} patches, {len(chosen)} bases.")
  return 0 if found else 1
