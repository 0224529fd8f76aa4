"""The two environments that everything is compared in: pristine and mended."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import pathlib

from mend.editing import patches
from mend.proof import envs
from mend.releases import interpreters
from mend.releases.bases import Base
from mend.trees import wheel


@dataclasses.dataclass(frozen=True)
class Sides:
  """Two Pythons that differ only in their jax, and the mended wheel."""
  pristine: pathlib.Path
  mended: pathlib.Path
  wheel: pathlib.Path


def build_sides(base: Base, *, series: Sequence[patches.Patch] | None = None,
       python: str | None = None, kind: str = "test") -> Sides:
  """Builds both wheels and installs each; everything is kept and reused.

  Args:
    base: the release.
    series: the patches; the whole series if None.
    python: the interpreter; the first that fits if None.
    kind: which of build/requirements/*.txt goes with them.
  """
  python = python or interpreters.for_base(base)
  series = patches.load() if series is None else series
  before = wheel.pristine(base)
  after = wheel.mended(series, base, python)
  deps = envs.dependencies(base, python, kind)
  return Sides(envs.with_wheels([before], deps, f"pristine-{base.version}"),
               envs.with_wheels([after], deps, f"mended-{base.version}"), after)


def pristine_only(base: Base, python: str, kind: str = "test") -> pathlib.Path:
  """The first of `Sides`, without building the other."""
  return envs.with_wheels([wheel.pristine(base)],
                          envs.dependencies(base, python, kind),
                          f"pristine-{base.version}")
