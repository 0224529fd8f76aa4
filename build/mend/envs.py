"""Private environments: one per base for what jax needs, thin ones for jax.

A base's dependencies are installed once. The pristine and the mended wheel
each get an environment of their own that holds only jax and looks the rest up
in the first, so that a new wheel costs seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
import pathlib
import shutil
import sys

from mend import bases, cache, process, report
from mend.bases import Base

REQUIREMENTS = bases.ROOT / "build" / "requirements"
_DONE = ".mend-complete"


def python_of(env: pathlib.Path) -> pathlib.Path:
  windows = sys.platform == "win32"
  return env / ("Scripts/python.exe" if windows else "bin/python")


def dependencies(base: Base, python: str,
                 kind: str = "test") -> pathlib.Path:
  """An environment with what `base` needs but jax itself.

  Args:
    base: the release.
    python: the interpreter.
    kind: which of build/requirements/*.txt to add; "" for none.
  """
  wanted = list(base.requirements)
  if kind:
    wanted += _lines(REQUIREMENTS / f"{kind}.txt")
  name = f"deps-{base.version}-{cache.key(python, *wanted)}"
  return _environment(name, python, wanted, f"what jax {base.version} needs")


def _lines(path: pathlib.Path) -> list[str]:
  lines = [line.split("#")[0].strip()
           for line in path.read_text(encoding="utf-8").splitlines()]
  return [line for line in lines if line]


def with_wheel(wheel: pathlib.Path, deps: pathlib.Path,
               label: str) -> pathlib.Path:
  """An environment with `wheel` on top of `deps`; returns its python."""
  name = f"{label}-{cache.key(str(deps), cache.sha256(wheel))}"
  env = _environment(name, str(python_of(deps)), [], "", wheel=wheel, deps=deps)
  return python_of(env)


def _environment(name: str, python: str, wanted: Sequence[str], what: str, *,
                 wheel: pathlib.Path | None = None,
                 deps: pathlib.Path | None = None) -> pathlib.Path:
  env = cache.folder("envs") / name
  with cache.lock(f"env-{name}"):
    if (env / _DONE).is_file():
      return env
    if env.exists():  # a killed run's
      shutil.rmtree(env)
    again = "check the network, then run the same command again"
    options = ["--without-pip"] if wheel else []
    process.run([python, "-m", "venv", *options, env],
                what=f"Making an environment with {python}",
                next_step="install that Python's venv module "
                "(Debian: apt-get install python3-venv)")
    if wheel is not None and deps is not None:
      (_site_packages(env) / "mend_dependencies.pth").write_text(
          f"{_site_packages(deps)}\n", encoding="utf-8")
      process.run([python_of(deps), "-m", "pip", "--python", python_of(env),
                   "install", "--quiet", "--no-deps", "--no-index",
                   "--ignore-installed", wheel],
                  what=f"Installing {wheel.name}", next_step=again)
    else:
      with report.step(f"installing {what}"):
        process.run([python_of(env), "-m", "pip", "install", "--quiet",
                     *wanted],
                    what=f"Installing {what}", next_step=again)
    (env / _DONE).write_text("", encoding="utf-8")
  return env


def _site_packages(env: pathlib.Path) -> pathlib.Path:
  out = process.run(
      [python_of(env), "-I", "-c",
       "import sysconfig; print(sysconfig.get_path('purelib'))"],
      what="Asking an environment for its folder", next_step="run it again")
  return pathlib.Path(out.strip())
