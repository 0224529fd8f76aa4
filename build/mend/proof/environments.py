# SPDX-License-Identifier: Apache-2.0
"""The environments that are compared: pristine, mended, and with jax-mend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
import dataclasses
import pathlib
import threading

from mend.editing import patches
from mend.ground import process
from mend.proof import venvs
from mend.releases import interpreters
from mend.releases.bases import Base
from mend.trees import live_wheel, wheel

# Its cache lies in the environment, so that no run sees another one's.
_CACHE = "jax-mend-cache"


@dataclasses.dataclass(frozen=True)
class Environments:
  """Two Pythons that differ only in their jax, and the mended wheel."""
  pristine: pathlib.Path
  mended: pathlib.Path
  wheel: pathlib.Path


def build(base: Base, *, series: Sequence[patches.Patch] | None = None,
          python: str | None = None, kind: str = "test") -> Environments:
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
  deps = venvs.dependencies(base, python, kind)
  return Environments(
      venvs.with_wheels([before], deps, f"pristine-{base.version}"),
      venvs.with_wheels([after], deps, f"mended-{base.version}"), after)


class Lazy:
  """An environment that is made when its Python is first asked for.

  Args:
    make: makes it and returns its Python.
  """

  def __init__(self, make: Callable[[], pathlib.Path]):
    self._make, self._lock = make, threading.Lock()
    self._python: pathlib.Path | None = None

  @property
  def python(self) -> pathlib.Path:
    with self._lock:
      if self._python is None:
        self._python = self._make()
      return self._python


def lazy(base: Base, series: Sequence[patches.Patch],
         python_version: str | None) -> tuple[Lazy, Lazy]:
  """The mended and the pristine environment of a release's tests."""
  def python() -> str:
    return interpreters.for_base(base, python_version, lowest=True)
  return (Lazy(lambda: mended_only(base, series=series, python=python())),
          Lazy(lambda: pristine_only(base, python())))


def lazy_live(base: Base, series: Sequence[patches.Patch],
              python_version: str | None) -> Lazy:
  """That of its tests with jax-mend."""
  return Lazy(lambda: with_jax_mend(
      base, series, python=interpreters.for_base(base, python_version,
                                                 lowest=True)))


def mended_only(base: Base, *, series: Sequence[patches.Patch],
                python: str, kind: str = "test") -> pathlib.Path:
  """Builds the mended environment alone; returns its Python."""
  return venvs.with_wheels([wheel.mended(series, base, python)],
                           venvs.dependencies(base, python, kind),
                           f"mended-{base.version}")


def pristine_only(base: Base, python: str, kind: str = "test") -> pathlib.Path:
  """Builds the pristine environment alone; returns its Python."""
  return venvs.with_wheels([wheel.pristine(base)],
                           venvs.dependencies(base, python, kind),
                           f"pristine-{base.version}")


def with_jax_mend(base: Base, series: Sequence[patches.Patch] | None = None, *,
                  python: str, kind: str = "test") -> pathlib.Path:
  """Builds one of a stock jax, with jax-mend enabled; returns its Python."""
  deps = venvs.dependencies(base, python, kind)
  wheels = [wheel.pristine(base), live_wheel.wheel(series, [base])]
  made = venvs.with_wheels(wheels, deps, f"live-{base.version}")
  if not (made.parents[1] / _CACHE).is_dir():
    _enable(made)
  return made


def jax_mend_settings(python: pathlib.Path) -> dict[str, str]:
  """The environment variables that a Python of `with_jax_mend` runs with."""
  return {"JAX_MEND_CACHE": str(python.parents[1] / _CACHE),
          "JAX_MEND_QUIET": "1"}


def _enable(python: pathlib.Path) -> None:
  """Enables jax-mend and fills its cache, as pip does for a wheel."""
  env, again = jax_mend_settings(python), "run the same command again"
  process.run([python, "-m", "jax_mend", "enable"], env=env,
              what="Enabling jax-mend", next_step=again)
  process.run([python, "-c", "from jax_mend import active; import jax; "
               "active.finder().compile_all()"], env=env,
              what="Importing the jax that jax-mend mends", next_step=again)
