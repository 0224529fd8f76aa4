"""The PEP 517 backend of `pip install ./live`: makes the table, then the wheel.

The table is made from the project's patches, by its tool in ../build. A source
distribution has the table in it, and needs neither.
"""

from __future__ import annotations

from collections.abc import Callable
import pathlib
import shutil
import sys
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
_TOOL = HERE.parent / "build"
_TABLE = HERE / "jax_mend" / "table" / "index.json"

Settings = dict[str, Any] | None


def _made(make: Callable[[Any], pathlib.Path]) -> pathlib.Path:
  """Makes what is asked of the tool's module `live_wheel`."""
  if not (_TOOL / "mend").is_dir():
    raise SystemExit(
        "jax-mend: this folder has no table, and the project that makes it is "
        "not around it.\nNext: pip install ./live in a whole checkout, or pip "
        "install 'git+URL#subdirectory=live'")
  sys.path.insert(0, str(_TOOL))
  from mend.ground.errors import MendError
  from mend.trees import live_wheel
  try:
    return make(live_wheel)
  except MendError as e:  # pip would show a traceback, and this at its end
    raise SystemExit(f"FAILED: jax-mend: {e.what}\nNext: {e.next_step}") from e


def build_wheel(wheel_directory: str, config_settings: Settings = None,
                metadata_directory: str | None = None) -> str:
  if _TABLE.is_file():
    from setuptools import build_meta
    return build_meta.build_wheel(wheel_directory, config_settings)
  made = _made(lambda tool: tool.wheel())
  shutil.copyfile(made, pathlib.Path(wheel_directory) / made.name)
  return made.name


def build_sdist(sdist_directory: str, config_settings: Settings = None) -> str:
  if _TABLE.is_file():
    from setuptools import build_meta
    return build_meta.build_sdist(sdist_directory, config_settings)
  target = pathlib.Path(sdist_directory)
  return _made(lambda tool: tool.sdist(target)).name
