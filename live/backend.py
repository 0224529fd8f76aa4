# SPDX-License-Identifier: Apache-2.0
"""The PEP 517 backend of `pip install ./live`, which needs setuptools only.

live/table has what the project's patches make of each release, written by
`build.py tables` and held against the patches by `build.py check`: the patches,
modules and programs (index.json), our texts (edits.json), and the hashes and
offsets of releases' files (files.json). Each is there once, with the releases
that it is for; here it is put together for each of them. The texts of our
modules and programs, which lie in this checkout, are added; a source
distribution has them in it already.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping
import contextlib
import hashlib
import json
import os
import pathlib
import shutil
import tempfile
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
_ASSEMBLED = HERE / "jax_mend" / "table" / "index.json"
_EPOCH = "315532800"  # 1980-01-01, the oldest time that a zip file can hold

Settings = dict[str, Any] | None
Files = dict[str, str]  # name -> text
Parsed = dict[str, Any]  # "index", "edits" and "files" of live/table


def parsed(tables: Mapping[str, str]) -> Parsed:
  """The content of live/table: index, edits and files."""
  return {name.removesuffix(".json"): json.loads(text)
          for name, text in tables.items()}


def held(runs: str, known: list[str]) -> list[str]:
  """The releases of runs such as "0.5.1-0.6.0,0.8.2-".

  Args:
    runs: each a release, or the first and the last of several; without a last
      one it goes to the newest.
    known: all releases, oldest first.
  """
  found = []
  for run in filter(None, runs.split(",")):
    first, several, last = run.partition("-")
    stop = last or (known[-1] if several else first)
    found += known[known.index(first):known.index(stop) + 1]
  return found


def of_release(table: Parsed, release: str) -> dict[str, Any]:
  """The table of one release, put together of what releases share.

  Returns:
    "origin", the release or the one that it is a twin of; "mended", its
    version; "manifest", its text; the ids of "patches"; the "modules"; and of
    the edited "files" the hashes, and "splices" [start, stop, text, patch].
  """
  index = table["index"]
  known, facts = [*index["releases"]], index["releases"][release]
  patches = [name for name, patch in index["patches"].items()
             if release in held(patch["bases"], known)]
  origin, mended = facts["twin_of"] or release, release + index["suffix"]
  pieces = _pieces(table["edits"], release, known)
  found = {"origin": origin, "mended": mended, "patches": patches, "modules": [
      name for name, (runs, *_) in index["modules"].items()
      if release in held(runs, known)], "files": {}, "splices": {}}
  found["manifest"] = index["manifest"]["text"].format(
      base=release, sha256=facts["sha256"], version=mended,
      patches="".join(f'    "{name}",\n' for name in patches))
  for file, rows in table["files"].items():
    for row in (r for runs, r in rows.items() if release in held(runs, known)):
      found["files"][file], *places = row.split()
      found["splices"][file] = sorted(
          [[*_span(place), *piece]
           for place, piece in zip(places, pieces[file], strict=True)],
          key=lambda splice: splice[:2])
  return found


def _pieces(edits: dict[str, Any], release: str,
            known: list[str]) -> dict[str, list[list[str]]]:
  """The texts of each file of a release, and their patches, in order."""
  found: dict[str, list[list[str]]] = {}
  for patch, pieces in edits.items():
    for places, text in pieces:
      for file, runs in places.items():
        if release in held(runs, known):
          found.setdefault(file, []).append([text, patch])
  return found


def _span(place: str) -> tuple[int, int]:
  """The offsets of "8990-9012", or twice that of "8990"."""
  start, _, stop = place.partition("-")
  return int(start), int(stop or start)


def assembled(tables: Mapping[str, str], root: pathlib.Path) -> Files:
  """The files of jax_mend/table.

  Args:
    tables: those of live/table.
    root: the checkout, with our modules and reproductions.
  """
  table = parsed(tables)
  index, manifest = table["index"], table["index"]["manifest"]["file"]
  texts: Files = {}
  files: Files = {}
  known: Files = {}
  pieces: dict[tuple[str, str], int] = {}  # what splices say, each once
  for release in index["releases"]:
    data, added = of_release(table, release), {}
    for file in sorted([*data["modules"], manifest]):
      text = (data["manifest"] if file == manifest else
              (root / file).read_text(encoding="utf-8"))
      added[file] = hashlib.sha256(text.encode()).hexdigest()[:16]
      texts[added[file]] = text
    content = json.dumps({
        "base": release, "mended": data["mended"], "patches": data["patches"],
        "modules": added, "files": data["files"], "splices": data["origin"]})
    files[f"{release}.json"] = content
    files[f"{data['origin']}.splices.json"] = json.dumps({
        file: [[start, stop, pieces.setdefault((text, patch), len(pieces))]
               for start, stop, text, patch in found]
        for file, found in data["splices"].items()})
    named = content + json.dumps(data["splices"])
    known[release] = hashlib.sha256(named.encode()).hexdigest()
  files["index.json"] = json.dumps(_of_all(index, known))
  files["texts.json"] = json.dumps(texts)
  files["pieces.json"] = json.dumps(list(pieces))
  files["reports.json"] = json.dumps(_reports(index, root))
  files["VERSION"] = index["version"] + "\n"
  return files


def _of_all(index: dict[str, Any], known: Files) -> dict[str, Any]:
  """The facts about all releases, with the hash of the table of each."""
  return {
      "version": index["version"], "bases": known, "pages": index["pages"],
      "former": index["former"],
      "patches": {name: {k: patch[k] for k in ("title", "issues", "needs")}
                  for name, patch in index["patches"].items()},
      "owners": {name: owners
                 for name, (_, *owners) in index["modules"].items() if owners},
      "pythons": {r: f["python"] for r, f in index["releases"].items()}}


def _reports(index: dict[str, Any], root: pathlib.Path) -> dict[str, Any]:
  """The programs with their sources, each of which is there once."""
  owners = {file: name for name, patch in index["patches"].items()
            for file in patch["programs"]}
  sources = [(root / file).read_text(encoding="utf-8") for file in owners]
  runner = HERE.parent / index["runner"]
  return {"runner": runner.read_text(encoding="utf-8"),
          "sources": sources,
          "programs": [{"patch": patch, "report": report, "line": line,
                        "function": function, "source": number}
                       for number, patch in enumerate(owners.values())
                       for report, functions in [reported(sources[number])]
                       for function, line in functions]}


def reported(source: str) -> tuple[str, list[tuple[str, str]]]:
  """The report and the functions of a program.

  Args:
    source: a file of reproductions/.

  Returns:
    The report that it shows, empty if it names none; and its functions, each
    with the first line of its docstring.
  """
  body = ast.parse(source).body
  named = [ast.literal_eval(node.value) for node in body
           if isinstance(node, ast.Assign)
           and getattr(node.targets[0], "id", "") == "REPORT"]
  return "".join(named), [
      (node.name, (ast.get_docstring(node) or "").strip().split("\n")[0])
      for node in body if isinstance(node, ast.FunctionDef)
      and not node.name.startswith("_")]


def committed() -> Files:
  """The files of live/table.

  Raises:
    SystemExit: they are not there.
  """
  found = {p.name: p.read_text(encoding="utf-8")
           for p in sorted((HERE / "table").glob("*.json"))}
  if "index.json" not in found or not (HERE.parent / "jax" / "_src").is_dir():
    raise SystemExit(
        "jax-mend: this folder has no table, or the project that it is of is "
        "not around it.\nNext: pip install ./live in a whole checkout, or pip "
        "install 'git+URL#subdirectory=live'")
  return found


def lay_out(folder: pathlib.Path, paths: Iterable[pathlib.Path],
            table: Files) -> None:
  """Copies files of this folder to another, with a table in the package.

  Args:
    folder: the other one, which needn't be there.
    paths: the files; those of live/table are left out.
    table: the files of jax_mend/table.
  """
  for path in paths:
    name = path.resolve().relative_to(HERE)
    if name.parts[0] != "table":
      (folder / name).parent.mkdir(parents=True, exist_ok=True)
      shutil.copyfile(path, folder / name)
  if (licence := HERE.parent / "LICENSE").is_file():  # the project's
    shutil.copyfile(licence, folder / "LICENSE")
  target = folder / "jax_mend" / "table"
  target.mkdir(parents=True, exist_ok=True)
  for file, text in table.items():
    (target / file).write_text(text, encoding="utf-8")


@contextlib.contextmanager
def _whole() -> Iterator[None]:
  """Works in a copy of this folder that has the table in the package."""
  before = os.getcwd()
  with tempfile.TemporaryDirectory() as scratch:
    folder = pathlib.Path(scratch) / "live"
    lay_out(folder, [p for p in HERE.rglob("*") if p.is_file() and not any(
        part in ("__pycache__", "build") or part.endswith(".egg-info")
        for part in p.relative_to(HERE).parts)],
            assembled(committed(), HERE.parent))
    os.chdir(folder)
    try:
      yield
    finally:
      os.chdir(before)


def _build(make: Callable[..., str], folder: str, settings: Settings) -> str:
  folder = os.path.abspath(folder)
  os.environ.setdefault("SOURCE_DATE_EPOCH", _EPOCH)
  with contextlib.nullcontext() if _ASSEMBLED.is_file() else _whole():
    return make(folder, settings)


def build_wheel(wheel_directory: str, config_settings: Settings = None,
                metadata_directory: str | None = None) -> str:
  from setuptools import build_meta
  return _build(build_meta.build_wheel, wheel_directory, config_settings)


def build_sdist(sdist_directory: str, config_settings: Settings = None) -> str:
  from setuptools import build_meta
  return _build(build_meta.build_sdist, sdist_directory, config_settings)
