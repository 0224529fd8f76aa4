"""The tables of jax-mend: the edits of every release, as splices of our text.

What an edit leaves of a release's file is not in them: the hash of the file,
and which bytes give way to which text. They lie in live/table, one file a
release, so that whoever installs jax-mend needs neither upstream's sources nor
this tool. Each is applied here by jax-mend's own function, and must give the
text that the wheel has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import hashlib
import importlib.util
import json
import pathlib
import types
from typing import Any

from mend.editing import patches, reproductions
from mend.ground.errors import MendError
from mend.releases import bases, source
from mend.releases.bases import Base
from mend.trees import tree
from packaging.version import Version

LIVE = bases.ROOT / "live"
TABLES = LIVE / "table"
RUNNER = "build/probes/run_reproduction.py"
Files = dict[str, str]  # of a folder: name -> text


def module_of_live(name: str) -> types.ModuleType:
  """A module of live/, which is no package of this tool."""
  path = LIVE / f"{name}.py"
  spec = importlib.util.spec_from_file_location(
      "jax_mend_" + name.replace("/", "_"), path)
  if spec is None or spec.loader is None or not path.is_file():
    raise MendError(f"There is no {path}.", "git checkout live")
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


def version() -> str:
  """jax-mend's own: the N of the wheels' +mend.N."""
  return f"{bases.release()}.0"


def make(series: Sequence[patches.Patch],
         sources: Mapping[Base, pathlib.Path] | None = None,
         root: pathlib.Path = bases.ROOT,
         twins: Sequence[Base] = ()) -> Files:
  """Every file of jax_mend/table, as its wheel has them.

  Args:
    series: the patches.
    sources: the pristine trees of the releases; None for those of all.
    root: where the patches' files lie.
    twins: what goes with `sources`.
  """
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
  """Every file of live/table: an index, and one of each release.

  A twin has what is its own, its manifest, and the name of the other.
  """
  if sources is None:
    sources, twins = of_releases(bases.all_bases())
  files: Files = {}
  for base, origin in sources.items():
    result = tree.mended(series, base, origin, root)
    files[f"{base.version}.json"] = _lines(_of_release(result, origin))
  for twin in twins:
    files[f"{twin.version}.json"] = _lines(
        {"base": twin.version, "mended": twin.mended,
         "manifest": _manifest(series, twin)})
  files["index.json"] = _index(series, [*sources, *twins], root)
  return files


def _index(series: Sequence[patches.Patch], releases: Sequence[Base],
           root: pathlib.Path) -> str:
  ordered = sorted(releases, key=lambda b: Version(b.version))
  return _lines({
      "version": version(),
      "releases": {b.version: {"python": _oldest(b), "twin_of": b.twin_of}
                   for b in ordered},
      "patches": {p.id: {"title": p.title, "issues": p.issues}
                  for p in series},
      "reports": {"runner": RUNNER, "programs": [
          {"patch": item.patch, "report": item.report, "line": item.line,
           "function": item.function, "file": item.file}
          for item in reproductions.collect(series, root)]}})


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
  """The count of tables looked at, and those that patches make otherwise.

  Those of the releases `chosen` and their twins, the index, and whatever is of
  no release.
  """
  sources, twins = of_releases(chosen)
  made = tables(series, sources, twins=twins)
  made["index.json"] = _index(series, bases.releases(), bases.ROOT)
  kept = {p.name: p.read_text(encoding="utf-8") for p in TABLES.glob("*.json")}
  others = {f"{b.version}.json" for b in bases.releases()} - set(made)
  names = sorted({*made, *kept} - others)
  return len(names), [n for n in names if made.get(n) != kept.get(n)]


def _oldest(base: Base) -> int:
  """The N of the oldest Python 3.N that a base supports."""
  return next(n for n in range(10, 100) if base.supports(f"3.{n}.99"))


def _lines(value: dict[str, Any]) -> str:
  """JSON with an entry of a table, or of a table in it, on a line."""
  return "{\n" + ",\n".join(
      f"{json.dumps(key)}: {_entries(item)}"
      for key, item in value.items()) + "\n}\n"


def _entries(item: Any) -> str:
  if isinstance(item, dict) and item:
    return "{\n" + ",\n".join(
        f" {json.dumps(key)}: {_each(inner)}"
        for key, inner in item.items()) + "}"
  return _each(item)


def _each(item: Any) -> str:
  if isinstance(item, (list, tuple)) and item and not isinstance(item[0], str):
    return "[\n  " + ",\n  ".join(map(json.dumps, item)) + "]"
  return json.dumps(item)


def _of_release(result: tree.Result, origin: pathlib.Path) -> dict[str, Any]:
  _require_packages(result, origin)
  pins, splices = {}, {}
  for file in sorted(result.edited):
    pins[file], splices[file] = _splices(result, origin, file)
  return {
      "base": result.base.version, "mended": result.base.mended,
      "patches": result.patches,
      "manifest": {"file": tree.MANIFEST, "text": result.added[tree.MANIFEST]},
      "modules": sorted(set(result.added) - {tree.MANIFEST}),
      "files": pins, "splices": splices}


def _manifest(series: Sequence[patches.Patch], twin: Base) -> dict[str, str]:
  text = tree.manifest(twin, patches.for_base(series, twin), twin.mended)
  return {"file": tree.MANIFEST, "text": text}


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
  made = module_of_live("jax_mend/table").spliced(data, found)
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
