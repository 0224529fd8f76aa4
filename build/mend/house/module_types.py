# SPDX-License-Identifier: Apache-2.0
"""mypy over the modules under jax/, as they are in the newest release.

They import upstream's modules, and those import them. So mypy reads the mended
tree of the newest release, with the jaxlib that the tests have, and reports on
our modules alone. The tree is kept, with mypy's own cache: a second run looks
at what has changed. What pyproject.toml leaves out (`ignore_errors`) is
counted.
"""

from __future__ import annotations

from collections.abc import Iterator
import fnmatch
import os
import pathlib
import subprocess
import sys

from mend.editing import patches
from mend.ground import cache, report
from mend.proof import venvs
from mend.releases import bases, interpreters, source
from mend.trees import tree

if sys.version_info >= (3, 11):
  import tomllib
else:
  import tomli as tomllib

_CONFIG = bases.ROOT / "pyproject.toml"
_OPTIONS = ("--no-error-summary", "--namespace-packages",
            "--disable-error-code=annotation-unchecked",
            "--explicit-package-bases")


def good(python: pathlib.Path) -> bool:
  """Runs mypy, of this environment, and says what it finds."""
  base = bases.all_bases()[-1]
  pristine = source.pristine(base)
  result = tree.mended(patches.load(), base, pristine)
  files = sorted(f for f in result.added
                 if f.endswith(".py") and f != tree.MANIFEST)
  name = f"{base.version}-{cache.key(str(bases.ROOT), pristine.name)}"
  with cache.lock(f"types-{name}"):
    folder = cache.folder("types") / name
    _update(folder, result, pristine)
    deps = venvs.dependencies(base, interpreters.for_base(base))
    runs = venvs.python_of(deps)
    done = subprocess.run(
        [python, "-m", "mypy", *_OPTIONS, f"--config-file={_CONFIG}",
         f"--python-executable={runs}", f"--python-version={_minor(runs)}",
         *files],
        cwd=folder, env={**os.environ, "MYPYPATH": str(folder)},
        capture_output=True, text=True, check=False)
  if done.stdout or done.stderr:
    report.say((done.stdout + done.stderr).rstrip())
  left_out = sum(map(_is_left_out, files))
  report.say(f"mypy: {len(files)} modules on jax {base.version}, {left_out} of "
             "them left out in pyproject.toml, "
             + ("clean." if done.returncode == 0 else "see above."))
  return done.returncode == 0 and len(files) > left_out


def _minor(python: pathlib.Path) -> str:
  """The version of a Python, as 3.12."""
  return ".".join(interpreters.version_of(str(python)).split(".")[:2])


def _is_left_out(file: str) -> bool:
  module = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
  return any(module == p.removesuffix(".*") or fnmatch.fnmatch(module, p)
             for p in _left_out())


def _left_out() -> Iterator[str]:
  config = tomllib.loads(_CONFIG.read_text(encoding="utf-8"))
  for override in config["tool"]["mypy"]["overrides"]:
    if override.get("ignore_errors"):
      yield from override["module"]


def _update(folder: pathlib.Path, result: tree.Result,
            pristine: pathlib.Path) -> None:
  """Makes a folder's jax the mended one; writes only what has changed."""
  upstream = {str(p.relative_to(pristine)) for p in pristine.glob("jax/**/*")
              if p.suffix in (".py", ".pyi")}
  for path in folder.glob("jax/**/*.py"):
    name = str(path.relative_to(folder))
    if name not in upstream and name not in result.files:
      path.unlink()
  for name in upstream | {f for f in result.files if f.endswith(".py")}:
    text = result.files.get(name)
    text = tree.read(pristine / name) if text is None else text
    if not (folder / name).exists() or tree.read(folder / name) != text:
      tree.write(folder / name, text)
