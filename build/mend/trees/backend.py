# SPDX-License-Identifier: Apache-2.0
"""The PEP 517 backend: `pip install .` gives the mended wheel.

The base is the newest that the running Python supports; another one through
`MEND_BASE=V pip install .` or `pip install . -C base=V`.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import os
import pathlib
import shutil
import sys
import tarfile
from typing import Any
import zipfile

from mend.ground import cache, repository
from mend.ground.errors import MendError
from mend.releases import bases
from mend.trees import wheel

Settings = dict[str, Any] | None


def _base(settings: Settings) -> bases.Base:
  """The release that was asked for, as whoever runs pip has to name it.

  Raises:
    SystemExit: it is none of ours, or not for this Python; names the nearest.
  """
  by_option = (settings or {}).get("base")
  named = by_option or os.environ.get("MEND_BASE")
  if not named:
    return bases.default_base()
  running = ".".join(str(n) for n in sys.version_info[:3])
  found = [b for b in bases.releases() if b.version == named]
  if found and found[0].supports(running):
    return found[0]
  near = bases.nearest(named, running).version
  what = (f"jax {named} needs Python {found[0].python}, and this is {running}."
          if found else f"jax {named} is none of the releases that are mended: "
          + ", ".join(b.version for b in bases.releases()) + ".")
  pip = f"{sys.executable} -m pip install ."
  again = f"{pip} -C base={near}" if by_option else f"MEND_BASE={near} {pip}"
  sys.exit(f"FAILED: Mend: {what} Next: {again} (the nearest that Python "
           f"{running} can have)")


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
  return []


def get_requires_for_build_sdist(config_settings: Settings = None) -> list[str]:
  return []


@contextlib.contextmanager
def _in_one_line() -> Iterator[None]:
  """Ends with an error's words: pip would show a traceback before them."""
  try:
    yield
  except MendError as e:
    sys.exit(f"FAILED: Mend: {e.what} Next: {e.next_step}")


def _made(config_settings: Settings) -> pathlib.Path:
  running = ".".join(str(n) for n in sys.version_info[:2])
  with _in_one_line():
    return wheel.build(_base(config_settings), running)[0]


def prepare_metadata_for_build_wheel(metadata_directory: str,
                                     config_settings: Settings = None) -> str:
  """Unpacks the metadata of the wheel, which stays in the cache."""
  with zipfile.ZipFile(_made(config_settings)) as archive:
    names = [n for n in archive.namelist()
             if n.split("/")[0].endswith(".dist-info")]
    archive.extractall(metadata_directory, names)
  return names[0].split("/")[0]


def build_wheel(wheel_directory: str, config_settings: Settings = None,
                metadata_directory: str | None = None) -> str:
  made = _made(config_settings)
  shutil.copyfile(made, pathlib.Path(wheel_directory) / made.name)
  return made.name


def _metadata(version: str) -> str:
  """The PKG-INFO of a source distribution: what pyproject.toml says."""
  said = bases.read_toml(bases.ROOT / "pyproject.toml")["project"]
  lines = ["Metadata-Version: 2.1", f"Name: {said['name']}",
           f"Version: {version}", f"Summary: {said['description']}",
           *(f"Author: {a['name']}" for a in said["authors"]),
           f"License: {said['license']['text']}",
           *(f"Project-URL: {k}, {v}" for k, v in said["urls"].items()),
           *(f"Classifier: {c}" for c in said["classifiers"]),
           f"Requires-Python: {said['requires-python']}",
           "Description-Content-Type: text/markdown", "",
           repository.text(bases.ROOT / said["readme"])]
  return "\n".join(lines)


def build_sdist(sdist_directory: str, config_settings: Settings = None) -> str:
  """Packs the project's own files; upstream's are fetched when it is built."""
  with _in_one_line():
    name = f"jax-{_base(config_settings).mended}"
  target = pathlib.Path(sdist_directory) / f"{name}.tar.gz"
  with cache.whole(target) as made, cache.scratch() as scratch:
    info = scratch / "PKG-INFO"
    info.write_text(_metadata(name.removeprefix("jax-")), encoding="utf-8")
    with tarfile.open(made, "w:gz") as tar:
      tar.add(info, f"{name}/PKG-INFO")
      for path in repository.files(bases.ROOT):
        tar.add(path, f"{name}/{path.relative_to(bases.ROOT)}")
  return target.name
