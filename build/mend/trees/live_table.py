# SPDX-License-Identifier: Apache-2.0
"""The tables of jax-mend: the edits of every release, as splices of our text.

What an edit leaves of a release's file is not in them: the hash of the file,
and which bytes give way to which text. They lie in live/table, so that whoever
installs jax-mend needs neither upstream's sources nor this tool. Each is read
and applied here by jax-mend's own functions, and must give what the wheel has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import functools
import hashlib
import pathlib
from typing import Any

from mend.editing import families, patches, reproductions
from mend.editing.live_modules import LIVE, module_of_live
from mend.ground.errors import MendError
from mend.releases import bases, source
from mend.releases.bases import Base
from mend.trees import live_pieces, manifests, tree
from packaging.version import Version

TABLES = LIVE / "table"
RUNNER = "build/probes/run_reproduction.py"
Files = dict[str, str]  # of a folder: name -> text


def version() -> str:
  """jax-mend's own: the N of the wheels' +mend.N."""
  return f"{bases.release()}.0"


def make(series: Sequence[patches.Patch],
         sources: Mapping[Base, pathlib.Path] | None = None,
         root: pathlib.Path = bases.ROOT,
         twins: Sequence[Base] = ()) -> Files:
  """Every file of jax_mend/table, as its wheel has them; see `tables`."""
  return module_of_live("backend").assembled(
      tables(series, sources, root, twins), root)


def of_releases(chosen: Sequence[Base]) -> tuple[
    dict[Base, pathlib.Path], tuple[Base, ...]]:
  """The sources that the tables of some releases need, and their twins."""
  origins = dict.fromkeys(
      bases.get(b.twin_of) if b.twin_of else b for b in chosen)
  return ({base: source.pristine(base) for base in origins},
          bases.twins([*origins]))


def tables(series: Sequence[patches.Patch],
           sources: Mapping[Base, pathlib.Path] | None = None,
           root: pathlib.Path = bases.ROOT,
           twins: Sequence[Base] = ()) -> Files:
  """Every file of live/table: what the patches make of the releases.

  Args:
    series: the patches.
    sources: the pristine trees of the releases; None for those of all.
    root: where the patches' files lie.
    twins: what goes with `sources`.

  Raises:
    MendError: they can't be applied, or are not read as they were written.
  """
  if sources is None:
    sources, twins = of_releases(bases.all_bases())
  results = _results(series, sources, root)
  found = {result.base.version: _edited(result, sources[result.base])
           for result in results.values()}
  files = _written(series, found, [*sources, *twins], root)
  table = module_of_live("backend").parsed(files)
  for base in (*sources, *twins):
    origin = base.twin_of or base.version
    _require_same(series, base, table, results[origin], found[origin])
  return files


def _results(series: Sequence[patches.Patch],
             sources: Mapping[Base, pathlib.Path],
             root: pathlib.Path) -> dict[str, tree.Result]:
  return {base.version: tree.mended(series, base, origin, root)
          for base, origin in sources.items()}


def _edited(result: tree.Result, origin: pathlib.Path) -> live_pieces.Edited:
  _require_packages(result, origin)
  return {file: _splices(result, origin, file)
          for file in sorted(result.edited)}


def _written(series: Sequence[patches.Patch],
             found: Mapping[str, live_pieces.Edited], releases: Sequence[Base],
             root: pathlib.Path) -> Files:
  """The files of what is edited of each release that is no twin."""
  ordered = sorted(releases, key=lambda b: Version(b.version))
  known, ids = [b.version for b in ordered], [p.id for p in series]
  shared = {b.version: found[origin] for b in ordered
            if (origin := b.twin_of or b.version) in found}
  return {"index.json": _index(series, ordered, root),
          "edits.json": live_pieces.edits(shared, known, ids),
          "files.json": live_pieces.files(shared, known, ids)}


def _index(series: Sequence[patches.Patch], releases: Sequence[Base],
           root: pathlib.Path) -> str:
  """index.json, of releases in their order."""
  runs = functools.partial(live_pieces.runs,
                           known=[b.version for b in releases])
  held = {p.id: {b.version for b in releases if b.within(p.bases)}
          for p in series}
  modules: dict[str, set[str]] = {}
  owners: dict[str, list[str]] = {}
  for patch in series:
    for module in patch.modules:
      modules.setdefault(module, set()).update(held[patch.id])
      if not _goes_with_all(module):
        owners.setdefault(module, []).append(patch.id)
  programs: dict[str, list[str]] = {}
  shown = {r.file: r.patch for r in reproductions.collect(series, root)}
  for file, owner in shown.items():
    programs.setdefault(owner, []).append(file)
  return live_pieces.lines({
      "version": version(), "suffix": bases.suffix(), "runner": RUNNER,
      "manifest": {"file": manifests.FILE, "text": manifests.TEXT},
      "releases": {b.version: {"python": _oldest(b), "twin_of": b.twin_of,
                               "sha256": b.sha256} for b in releases},
      "patches": {p.id: {"title": p.title, "issues": p.issues,
                         "needs": p.depends, "bases": runs(held[p.id]),
                         "programs": programs.get(p.id, [])} for p in series},
      "pages": _pages(root), "former": families.former(root),
      "modules": {name: [runs(modules[name]), *owners.get(name, ())]
                  for name in sorted(modules)}})


def _pages(root: pathlib.Path) -> dict[str, str]:
  """The page about each family, and about each patch that has another."""
  known = families.load(root).values()
  return {**{f.name: f.pages[0] for f in known if f.pages},
          **{f"{f.name}/{patch}": page for f in known
             for page, about in f.about.items() for patch in about
             if page != f.pages[0]}}


def _goes_with_all(module: str) -> bool:
  """True of what a part of the patches has, whichever they are."""
  return module.startswith(families.GROUND_FLOOR + "/") or (
      module.endswith("/__init__.py"))


def _require_same(series: Sequence[patches.Patch], base: Base,
                  table: Mapping[str, Any], result: tree.Result,
                  edited: live_pieces.Edited) -> None:
  """Holds what jax-mend reads of a release against what the wheel has."""
  read = module_of_live("backend").of_release(table, base.version)
  if read != {
      "origin": result.base.version, "mended": base.mended,
      "patches": list(result.patches),
      "manifest": manifests.text(base, patches.for_base(series, base),
                                 base.mended),
      "modules": sorted({*result.added} - {manifests.FILE}),
      "files": {file: found[0] for file, found in edited.items()},
      "splices": {file: found[1] for file, found in edited.items()}}:
    raise MendError(f"jax-mend reads the table of jax {base.version} otherwise "
                    "than it was written.", "report it")


def write(series: Sequence[patches.Patch]) -> int:
  """Writes live/table; returns how many of its files changed."""
  made, changed = tables(series), 0
  for path in TABLES.glob("*.json"):
    if path.name not in made:
      path.unlink()
      changed += 1
  for name, text in made.items():
    path = TABLES / name
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
      tree.write(path, text)
      changed += 1
  return changed


def stale(series: Sequence[patches.Patch],
          chosen: Sequence[Base]) -> tuple[int, list[str]]:
  """The count of files looked at, and those that patches make otherwise.

  What a file has of releases that are not `chosen` is taken from itself.
  """
  kept = {p.name: p.read_text(encoding="utf-8") for p in TABLES.glob("*.json")}
  sources, _ = of_releases(chosen)
  found = _kept(kept, [p.id for p in series])
  for result in _results(series, sources, bases.ROOT).values():
    found[result.base.version] = _edited(result, sources[result.base])
  made = _written(series, found, bases.releases(), bases.ROOT)
  names = sorted({*made, *kept})
  return len(names), [n for n in names if made.get(n) != kept.get(n)]


def _kept(tables: Files,
          series: Sequence[str]) -> dict[str, live_pieces.Edited]:
  """The edits in tables, without those of removed patches."""
  backend = module_of_live("backend")
  try:
    table = backend.parsed(tables)
    read = {release: backend.of_release(table, release)
            for release in table["index"]["releases"]}
  except (KeyError, ValueError):  # of another layout: all of it is stale
    return {}
  return {release: {file: (digest, [s for s in data["splices"][file]
                                    if s[3] in series])
                    for file, digest in data["files"].items()}
          for release, data in read.items()}


def _oldest(base: Base) -> int:
  """The N of the oldest Python 3.N that a base supports."""
  return next(n for n in range(10, 100) if base.supports(f"3.{n}.99"))


def _splices(result: tree.Result, origin: pathlib.Path,
             file: str) -> tuple[str, list[list[Any]]]:
  """The hash of a release's file, and what makes the mended one of it."""
  text = tree.read(origin / file)
  data = text.encode("utf-8")
  found = []
  ordered = sorted(result.splices[file], key=lambda s: (s.start, s.stop))
  for one in ordered:
    start = len(text[:one.start].encode("utf-8"))
    stop = start + len(text[one.start:one.stop].encode("utf-8"))
    found.append([start, stop, one.text, one.patch])
  made = module_of_live("jax_mend/splices").spliced(data, found)
  if made != result.edited[file].encode("utf-8"):
    raise MendError(f"{file} of jax {result.base.version}: its splices do not "
                    "give the wheel's text.", "report it")
  return hashlib.sha256(data).hexdigest(), found


def _require_packages(result: tree.Result, origin: pathlib.Path) -> None:
  """A finder, as a wheel, serves only what lies in packages under jax/."""
  for file in result.files:
    folder = pathlib.PurePosixPath(file).parent
    init = str(folder / "__init__.py")
    if not file.startswith("jax/") or not file.endswith(".py") or not (
        init in result.added or (origin / init).is_file()):
      raise MendError(f"{file} is no module of a package under jax/.",
                      f"add {init} to the patch's modules, or move it")
