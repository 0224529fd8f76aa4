# SPDX-License-Identifier: Apache-2.0
"""Builds a wheel from a source tree, the same bytes each time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
import json
import pathlib
import shutil
import sys

from mend.editing import patches
from mend.ground import cache, process, report
from mend.ground.errors import MendError
from mend.releases import bases, interpreters, source
from mend.releases.bases import Base
from mend.trees import tree

_EPOCH = "315532800"  # 1980-01-01, the oldest time that a zip file can hold


def build_tree(folder: pathlib.Path, target: pathlib.Path, *,
               kind: str = "wheel") -> pathlib.Path:
  """Builds the wheel of a copy of the source tree `folder` into `target`.

  `kind` may be "sdist" instead.
  """
  with cache.scratch() as scratch:
    copy = scratch / "jax"
    shutil.copytree(folder, copy)
    for egg_info in copy.glob("*.egg-info"):
      shutil.rmtree(egg_info)
    for path in copy.rglob("*"):  # modes go into the wheel
      path.chmod(0o755 if path.is_dir() else 0o644)
    out = scratch / "out"
    process.run(
        [sys.executable, "-m", "build", f"--{kind}", "--no-isolation",
         "--skip-dependency-check", "--outdir", out, copy],
        cwd=scratch,
        env={**process.same_packages(), "SOURCE_DATE_EPOCH": _EPOCH,
             "JAX_RELEASE": "", "JAX_NIGHTLY": ""}, umask=0o022,
        what=f"Building the {kind}", next_step="report it with this output")
    (made,) = out.iterdir()
    target.mkdir(parents=True, exist_ok=True)
    with cache.whole(target / made.name) as whole:
      shutil.copyfile(made, whole)
    return target / made.name


def pristine(base: Base) -> pathlib.Path:
  """The wheel of the unedited base, built the same way as the mended one."""
  folder = cache.folder("wheels", f"pristine-{base.sha256[:12]}")
  return kept(folder, f"the pristine jax {base.version}",
              lambda out: build_tree(source.pristine(base), out))


def mended(series: Sequence[patches.Patch], base: Base,
           python: str) -> pathlib.Path:
  """The wheel of the base with the series applied.

  Raises:
    MendError: the series does not apply, or the result does not parse.
  """
  origin = source.pristine(base)
  part = patches.is_part(series, patches.load(), base)
  result = tree.mended(series, base, origin, part=part)
  key = cache.key(base.sha256, result.version,
                  json.dumps(result.files, sort_keys=True))
  folder = cache.folder("wheels", f"mended-{key}")

  def make(out: pathlib.Path) -> None:
    with cache.scratch() as scratch:
      edited = scratch / "tree"
      tree.write_copy(result, origin, edited, python)
      build_tree(edited, out)

  counts = (f"{len(result.patches)} patches, {result.edits} edits, "
            f"{len(result.added)} new files")
  made = kept(folder, f"jax {result.version} ({counts})", make)
  if made.name != f"jax-{result.version}-py3-none-any.whl":
    raise MendError(f"The wheel is {made.name}, wanted {result.version}.",
                    "report it: setuptools did not take the version tag")
  return made


def kept(folder: pathlib.Path, what: str,
         make: Callable[[pathlib.Path], object]) -> pathlib.Path:
  """The wheel of a folder of the cache; made if it isn't there, or damaged."""
  with cache.lock(folder.name):
    for made in folder.glob("*.whl"):
      if cache.intact(made):
        return made
      made.unlink()  # damaged, or of a run that was killed
    with report.step(f"building {what}"):
      make(folder)
    (made,) = folder.glob("*.whl")
    cache.remember(made)
  return made


def build(base: Base,
          python_version: str | None) -> tuple[pathlib.Path, str]:
  """The mended wheel of `base`, and the Python that it was checked by."""
  python = interpreters.for_base(base, python_version)
  return mended(patches.load(bases.ROOT), base, python), python
