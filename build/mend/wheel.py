"""Builds a wheel from a source tree, the same bytes each time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
import json
import pathlib
import shutil
import sys
import tempfile

from mend import (bases, cache, interpreters, patches, process, report, source,
                  tree)
from mend.bases import Base
from mend.errors import MendError

_EPOCH = "315532800"  # 1980-01-01, the oldest time that a zip file can hold


def build_tree(folder: pathlib.Path, target: pathlib.Path) -> pathlib.Path:
  """Builds the wheel of a copy of the source tree `folder` into `target`."""
  with tempfile.TemporaryDirectory() as scratch:
    copy = pathlib.Path(scratch) / "jax"
    shutil.copytree(folder, copy)
    for egg_info in copy.glob("*.egg-info"):
      shutil.rmtree(egg_info)
    for path in copy.rglob("*"):  # modes go into the wheel
      path.chmod(0o755 if path.is_dir() else 0o644)
    out = pathlib.Path(scratch) / "out"
    process.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation",
         "--skip-dependency-check", "--outdir", out, copy],
        cwd=pathlib.Path(scratch),
        env={**process.same_packages(), "SOURCE_DATE_EPOCH": _EPOCH,
             "JAX_RELEASE": "", "JAX_NIGHTLY": ""}, umask=0o022,
        what="Building the wheel", next_step="report it with this output")
    (made,) = out.glob("*.whl")
    target.mkdir(parents=True, exist_ok=True)
    with cache.whole(target / made.name) as whole:
      shutil.copyfile(made, whole)
    return target / made.name


def pristine(base: Base) -> pathlib.Path:
  """The wheel of the unedited base, built the same way as the mended one."""
  folder = cache.folder("wheels", f"pristine-{base.sha256[:12]}")
  return _cached(folder, f"the pristine jax {base.version}",
                 lambda out: build_tree(source.pristine(base), out))


def mended(series: Sequence[patches.Patch], base: Base,
           python: str) -> pathlib.Path:
  """The wheel of the base with the series applied.

  Raises:
    MendError: the series does not apply, or the result does not parse.
  """
  origin = source.pristine(base)
  result = tree.mended(series, base, origin)
  key = cache.key(base.sha256, base.mended,
                  json.dumps(result.files, sort_keys=True))
  folder = cache.folder("wheels", f"mended-{key}")

  def make(out: pathlib.Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
      edited = pathlib.Path(scratch) / "tree"
      tree.write_copy(result, origin, edited, python)
      build_tree(edited, out)

  made = _cached(folder, f"jax {base.mended} ({len(result.patches)} patches, "
                 f"{result.edits} edits, {len(result.added)} new files)", make)
  if made.name != f"jax-{base.mended}-py3-none-any.whl":
    raise MendError(f"The wheel is {made.name}, wanted version {base.mended}.",
                    "report it: setuptools did not take the version tag")
  return made


def _cached(folder: pathlib.Path, what: str,
            make: Callable[[pathlib.Path], object]) -> pathlib.Path:
  with cache.lock(folder.name):
    if not any(folder.glob("*.whl")):
      with report.step(f"building {what}"):
        make(folder)
  (made,) = folder.glob("*.whl")
  return made


def build(base: Base,
          python_version: str | None) -> tuple[pathlib.Path, str]:
  """The mended wheel of `base`, and the Python that it was checked by."""
  python = interpreters.for_base(base, python_version)
  return mended(patches.load(bases.ROOT), base, python), python
