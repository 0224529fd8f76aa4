# SPDX-License-Identifier: Apache-2.0
"""The releases on which an edit finds its place, and those left out.

A patch says by `bases` which releases an edit is for. Two mistakes don't show
in an edit's state on any release: one idea is spelled for older and for newer
releases, and for none between them; and an edit finds its place and names what
its file doesn't have there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import json
import pathlib
import subprocess

from mend.editing import edits, operations, patches, placing, syntax
from mend.editing.edit import Edit
from mend.ground import cache, report
from mend.ground.report import Verdict
from mend.proof import venvs
from mend.releases import source
from mend.releases.bases import Base
from mend.trees import tree

_UNREADABLE = "does not parse"
_NAMES = ("F401", "F541", "F811", "F821", "F841")  # unused, doubled, unbound


def gaps(series: Sequence[patches.Patch],
         known: Sequence[Base]) -> tuple[int, list[str]]:
  """Ideas that a patch has for older and newer releases, and not between.

  Args:
    series: the patches.
    known: all releases, oldest first.

  Returns:
    How many ideas were looked at, and what is wrong, one line each. Edits of
    one patch are one idea if they are of one table, have the same code, or are
    in definitions of the same name.
  """
  looked, found = 0, []
  for patch in series:
    mine = [b for b in known if b.within(patch.bases)]
    for idea in _ideas(patch.edits):
      looked += 1
      has = [any(not e.bases or b.within(e.bases) for e in idea) for b in mine]
      missing = [b.version for b, here in zip(mine, has) if not here]
      inner = mine[has.index(True):len(has) - has[::-1].index(True)
                   ] if True in has else []
      for base in inner:
        if base.version in missing:
          found.append(f"{idea[0].label}: nothing for {base.version}, but for "
                       "releases before and after it")
  return looked, found


def _ideas(found: Sequence[Edit]) -> list[list[Edit]]:
  ideas: list[tuple[set[str], list[Edit]]] = []
  for edit in found:
    marks = {str(edit.number), "".join(edit.code.split()), *(
        name.rpartition(".")[2] for name in edit.scope.split("|"))} - {""}
    same = [i for i in ideas if i[0] & marks]
    merged = (marks.union(*(i[0] for i in same)),
              [*(e for i in same for e in i[1]), edit])
    ideas = [i for i in ideas if i not in same] + [merged]
  return [idea for _, idea in ideas]


def undefined(series: Sequence[patches.Patch],
              chosen: Sequence[Base]) -> tuple[int, list[str]]:
  """Edited files that don't parse, or have names unbound, doubled or unused.

  By ruff's rules. An edit that takes the last use of an import away needs a
  `drop_import` beside it.

  Args:
    series: the patches.
    chosen: the releases.

  Returns:
    How many files were looked at, and each fault that the pristine file
    doesn't have, one line each: of one that doesn't parse, the patch and the
    edit.
  """
  count, results = 0, {}
  with cache.scratch() as folder:
    for base in chosen:
      origin = source.pristine(base)
      results[base.version] = made = tree.mended(series, base, origin)
      for file, text in made.edited.items():
        if file.endswith(".py"):
          count += 1
          tree.write(folder / "mended" / base.version / file, text)
          tree.write(folder / "pristine" / base.version / file,
                     tree.read(origin / file))
    before, after = (_faults(folder / side) for side in ("pristine", "mended"))
  return count, _told(results, after - before)


def _told(results: dict[str, tree.Result],
          faults: set[tuple[str, str]]) -> list[str]:
  """A line for each fault; of a file that doesn't parse, for each edit."""
  broken: dict[tuple[str, str], list[str]] = {}  # edit, why -> releases
  found = []
  for release, file, fault in sorted(
      ((*place.split("/", 1), fault) for place, fault in faults),
      key=lambda f: ([*results].index(f[0]), f)):
    if fault.startswith(_UNREADABLE):
      for label in _culprits(results[release], file):
        broken.setdefault((label, file), [fault]).append(release)
    else:
      found.append(f"jax {release}/{file}: {fault}")
  return found + [
      f"{label}: {file} then {why} (jax {', '.join(dict.fromkeys(on))})"
      for (label, file), (why, *on) in broken.items()]


def _faults(folder: pathlib.Path) -> set[tuple[str, str]]:
  """The files, with the release before them, and the faults that ruff sees.

  A fault is what ruff says of a name, or why the file doesn't parse.
  """
  done = subprocess.run(
      [venvs.for_checks(), "-m", "ruff", "check", "--isolated", "--no-cache",
       f"--select={','.join(_NAMES)}", "--output-format=json", "--exit-zero",
       folder],
      capture_output=True, text=True, check=True)
  return {(str(pathlib.Path(hit["filename"]).relative_to(folder)),
           hit["message"] if hit["code"] in _NAMES else
           f"{_UNREADABLE}: {hit['message']}")
          for hit in json.loads(done.stdout)}


def _culprits(result: tree.Result, file: str) -> list[str]:
  """The labels of the edits that by themselves make a file unparsable."""
  origin = source.pristine(result.base)
  with cache.scratch() as folder:
    labels: dict[str, str] = {}
    for label, text in tree.alone(result, origin, file).items():
      labels[name := f"{len(labels)}.py"] = label
      tree.write(folder / name, text)
    tree.write(folder / "pristine.py", tree.read(origin / file))
    seen = _faults(folder)
  usual = {fault for name, fault in seen if name not in labels}
  return list(dict.fromkeys(
      labels[name] for name, fault in sorted(seen) if name in labels
      and fault.startswith(_UNREADABLE) and fault not in usual)) or [
          f"the edits of {file}, together"]


def places(series: Sequence[patches.Patch],
           chosen: Sequence[Base]) -> Iterator[tuple[str, str, str]]:
  """Each edit with its releases, and with those on which its place is found."""
  for patch in series:
    for edit in patch.edits:
      on = [base.version for base in chosen if _is_found(edit, base)]
      yield (edit.label.removeprefix("patch "), edit.bases or patch.bases,
             "all" if len(on) == len(chosen) else " ".join(on) or "none")


def _is_found(edit: Edit, base: Base) -> bool:
  origin = source.pristine(base)
  edit = placing.at_place(edit, origin)
  if not (origin / edit.file).is_file():
    return False
  try:
    edits.locate(operations.parsed(placing.read(origin / edit.file)), edit)
  except syntax.NotFound:
    return False
  return True


def show(series: Sequence[patches.Patch], chosen: Sequence[Base]) -> Verdict:
  """Prints the table of `places`."""
  rows = list(places(series, chosen))
  report.show(("edit", "for", "has its place on"), rows)
  lost = sum(on == "none" for *_, on in rows)
  words = f"{len(rows)} edits looked for on {len(chosen)} releases"
  if lost or not rows:
    return Verdict(f"{words}, {lost} found on none.",
                   "correct those in patches/*.toml")
  return Verdict(f"{words}.")
