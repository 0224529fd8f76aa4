"""The table of jax-mend: the edits of every base, as splices of our own text.

What an edit leaves of a release's file is not in it: the hash of the file, and
which bytes give way to which text. It is applied here by jax-mend's own
function, and must give the text that the wheel has.
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

LIVE = bases.ROOT / "live"
_RUNNER = bases.ROOT / "build" / "probes" / "run_reproduction.py"
Files = dict[str, str]  # of the folder table/: name -> text


def _applier() -> types.ModuleType:
  """The module of jax-mend that applies splices."""
  spec = importlib.util.spec_from_file_location(
      "jax_mend_table", LIVE / "jax_mend" / "table.py")
  if spec is None or spec.loader is None:
    raise MendError(f"{LIVE} has no jax_mend/table.py.", "git checkout live")
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


def version() -> str:
  """jax-mend's own: the N of the wheels' +mend.N."""
  return f"{bases.release()}.0"


def make(series: Sequence[patches.Patch],
         sources: Mapping[Base, pathlib.Path] | None = None,
         root: pathlib.Path = bases.ROOT) -> Files:
  """Every file of the table.

  Args:
    series: the patches.
    sources: the pristine trees of the bases; None for those of all bases.
    root: where the patches' files lie.
  """
  if sources is None:
    sources = {base: source.pristine(base) for base in bases.all_bases()}
  files: Files = {}
  texts: dict[str, str] = {}
  known = {}
  for base, origin in sources.items():
    mine = _of_base(tree.mended(series, base, origin, root), origin, texts)
    files.update(mine)
    content = "".join(mine.values())  # names all texts by their hash
    known[base.version] = hashlib.sha256(content.encode()).hexdigest()
  files["index.json"] = _json({
      "version": version(), "bases": known,
      "pythons": {base.version: _oldest(base) for base in sources},
      "patches": {p.id: {"title": p.title, "issues": p.issues}
                  for p in series}})
  files["texts.json"] = _json(texts)
  files["reports.json"] = _json(_reports(series, root))
  files["VERSION"] = version() + "\n"
  return files


def _oldest(base: Base) -> int:
  """The N of the oldest Python 3.N that a base supports."""
  return next(n for n in range(10, 100) if base.supports(f"3.{n}.99"))


def _json(value: Any) -> str:
  return json.dumps(value, indent=0, sort_keys=False, ensure_ascii=True)


def _of_base(result: tree.Result, origin: pathlib.Path,
             texts: dict[str, str]) -> Files:
  base = result.base
  _require_packages(result, origin)
  pins, splices = {}, {}
  for file in sorted(result.edited):
    pins[file], splices[file] = _splices(result, origin, file)
  modules = {}
  for file, text in sorted(result.added.items()):
    modules[file] = hashlib.sha256(text.encode()).hexdigest()[:16]
    texts[modules[file]] = text
  return {
      f"{base.version}.json": _json({
          "base": base.version, "mended": base.mended,
          "files": pins, "modules": modules, "patches": result.patches}),
      f"{base.version}.splices.json": _json(splices)}


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
  made = _applier().spliced(data, found)
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


def _reports(series: Sequence[patches.Patch],
             root: pathlib.Path) -> dict[str, Any]:
  sources: list[str] = []
  programs = []
  for item in reproductions.collect(series, root):
    if item.source not in sources:
      sources.append(item.source)
    programs.append({
        "patch": item.patch, "report": item.report, "line": item.line,
        "function": item.function, "source": sources.index(item.source)})
  return {"runner": _RUNNER.read_text(encoding="utf-8"), "sources": sources,
          "programs": programs}
