# SPDX-License-Identifier: Apache-2.0
"""Private environments: one per base for what jax needs, thin ones for jax.

What jax needs but jaxlib is alike for many bases, and there once for each
Python. A base's jaxlib, and what only tests need, lie on top of that. The
pristine and the mended wheel each get an environment of their own
that holds only jax and looks the rest up in those, so that a new wheel costs
seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
import contextlib
import pathlib
import re
import shutil
import sys

from mend.ground import cache, process, report
from mend.proof import installing
from mend.releases import bases
from mend.releases.bases import Base

REQUIREMENTS = bases.ROOT / "build" / "requirements"
_DONE = ".mend-complete"
_LOOK_UP = "mend_dependencies.pth"


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
  jaxlib = [r for r in base.requirements if r.startswith("jaxlib")]
  others = [r for r in base.requirements if r not in jaxlib]
  below = _environment(f"below-{cache.key(python, *others)}", python, others,
                       "numpy, scipy and what else jaxlib needs")
  name = f"deps-{base.version}-{cache.key(str(below), *jaxlib)}"
  deps = _environment(name, python, ["--no-deps", *jaxlib],
                      f"the jaxlib of jax {base.version}", deps=(below,))
  if not kind:
    return deps
  more = REQUIREMENTS / f"{kind}.txt"
  of_base = kind.endswith(base.version)  # others' are shared by each Python's
  key = cache.key(str(deps if of_base else python), cache.sha256(more))
  shared = _environment(f"{kind}-{key}", python,
                        ["--no-deps", "--require-hashes", "-r", more],
                        f"build/requirements/{more.name}",
                        deps=(deps,) if of_base else ())
  if of_base:
    return shared
  name = f"{kind}-{base.version}-{cache.key(str(deps), str(shared))}"
  return _environment(name, python, [], "", deps=(shared, deps))


def for_checks() -> pathlib.Path:
  """The python of the project's own checks, which has what the tool has, too.

  Who only makes a wheel doesn't install it.
  """
  wanted = REQUIREMENTS / "checks.txt"
  env = _environment(f"checks-{cache.key(sys.prefix, cache.sha256(wanted))}",
                     sys.executable,
                     ["--no-deps", "--require-hashes", "-r", wanted],
                     "what the project's own checks need",
                     deps=(pathlib.Path(sys.prefix),))
  return python_of(env)


def of_packages(python: str, wanted: Sequence[str],
                what: str) -> pathlib.Path:
  """The python of an environment that has these packages alone."""
  name = f"packages-{cache.key(python, *wanted)}"
  return python_of(_environment(name, python, wanted, what))


def pins(kind: str) -> dict[str, str]:
  """The versions that build/requirements/`kind`.txt pins, by name."""
  text = (REQUIREMENTS / f"{kind}.txt").read_text(encoding="utf-8")
  return dict(re.findall(r"^([\w.-]+)==([^\s;\\]+)", text, re.MULTILINE))


def with_wheels(wheels: Sequence[pathlib.Path], deps: pathlib.Path,
                label: str) -> pathlib.Path:
  """An environment with `wheels` on top of `deps`; returns its python."""
  name = f"{label}-{cache.key(str(deps), *map(cache.sha256, wheels))}"
  options = ["--no-deps", "--no-index"]
  env = _environment(name, str(python_of(deps)), [*options, *wheels], "",
                     deps=(deps,))
  return python_of(env)


def _environment(name: str, python: str, wanted: Sequence[str | pathlib.Path],
                 what: str, *, deps: Sequence[pathlib.Path] = (),
                 ) -> pathlib.Path:
  """Makes an environment, whole, and installs what is wanted into it.

  Args:
    name: of its folder.
    python: the interpreter.
    wanted: pip's arguments, if there is something to install.
    what: to call the step, if it is long enough to announce.
    deps: the environments where it finds all else, the first first.
  """
  env = cache.folder("envs") / name
  with cache.lock(f"env-{name}"):
    if (env / _DONE).is_file():
      return env
    if env.exists():  # a killed run's
      shutil.rmtree(env)
    process.run([python, "-m", "venv", "--without-pip", env],
                what=f"Making an environment with {python}",
                next_step="install that Python's venv module "
                "(Debian: apt-get install python3-venv)")
    if deps:
      below = [folder for other in deps for folder in _looked_up(other)]
      (_site_packages(env) / _LOOK_UP).write_text(
          "".join(f"{folder}\n" for folder in below), encoding="utf-8")
    if wanted:
      with (report.step(f"installing {what}") if what
            else contextlib.nullcontext()):
        installing.install(python_of(env), wanted, what)
    (env / _DONE).write_text("", encoding="utf-8")
  return env


def _looked_up(env: pathlib.Path) -> list[str]:
  """The folders in which an environment looks up packages, its own first.

  A .pth file's own folders are not looked at by another environment.
  """
  packages = _site_packages(env)
  known = packages / _LOOK_UP
  return [str(packages), *(known.read_text(encoding="utf-8").splitlines()
                           if known.is_file() else [])]


def _site_packages(env: pathlib.Path) -> pathlib.Path:
  out = process.run(
      [python_of(env), "-I", "-c",
       "import sysconfig; print(sysconfig.get_path('purelib'))"],
      what="Asking an environment for its folder", next_step="run it again")
  return pathlib.Path(out.strip())
