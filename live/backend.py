"""The PEP 517 backend of `pip install ./live`, which needs setuptools only.

live/table has what the project's patches make of each release: hashes, offsets
and our own text, written by `build.py tables` and held against the patches by
`build.py check`. Here the texts of our modules and programs, which lie in this
checkout, are added to it; a source distribution has them in it already.
"""

from __future__ import annotations

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


def assembled(tables: Mapping[str, str], root: pathlib.Path) -> Files:
  """The files of jax_mend/table.

  Args:
    tables: those of live/table.
    root: the checkout, with our modules and reproductions.
  """
  index = json.loads(tables["index.json"])
  texts: Files = {}
  files: Files = {}
  known: Files = {}
  pieces: dict[tuple[str, str], int] = {}  # what splices say, each once
  for release, facts in index["releases"].items():
    data = json.loads(tables[f"{release}.json"])
    origin = facts["twin_of"] or release
    whole = {**json.loads(tables[f"{origin}.json"]), **data}
    splices = json.dumps({
        file: [[start, stop, pieces.setdefault((text, patch), len(pieces))]
               for start, stop, text, patch in found]
        for file, found in whole.pop("splices").items()})
    manifest, added = whole.pop("manifest"), {}
    for file in sorted([*whole["modules"], manifest["file"]]):
      text = (manifest["text"] if file == manifest["file"] else
              (root / file).read_text(encoding="utf-8"))
      added[file] = hashlib.sha256(text.encode()).hexdigest()[:16]
      texts[added[file]] = text
    content = json.dumps({**whole, "modules": added, "splices": origin})
    files[f"{release}.json"] = content
    files[f"{origin}.splices.json"] = splices
    named = content + tables[f"{origin}.json"]
    known[release] = hashlib.sha256(named.encode()).hexdigest()
  files["index.json"] = json.dumps({
      "version": index["version"], "bases": known, "patches": index["patches"],
      "pythons": {r: f["python"] for r, f in index["releases"].items()}})
  files["texts.json"] = json.dumps(texts)
  files["pieces.json"] = json.dumps(list(pieces))
  files["reports.json"] = json.dumps(_reports(index["reports"], root))
  files["VERSION"] = index["version"] + "\n"
  return files


def _reports(reports: dict[str, Any], root: pathlib.Path) -> dict[str, Any]:
  """The programs with their sources, each of which is there once."""
  names = list(dict.fromkeys(p["file"] for p in reports["programs"]))
  text = lambda name: (root / name).read_text(encoding="utf-8")
  runner = HERE.parent / reports["runner"]
  return {"runner": runner.read_text(encoding="utf-8"),
          "sources": [text(name) for name in names],
          "programs": [{**{k: v for k, v in p.items() if k != "file"},
                        "source": names.index(p["file"])}
                       for p in reports["programs"]]}


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
