"""jax-mend: its wheel, and the environments of a stock jax that it mends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import contextlib
import json
import pathlib
import shutil
import tempfile

from mend.editing import patches
from mend.ground import cache, process, report, repository
from mend.proof import envs, live_table
from mend.releases.bases import Base
from mend.trees import tree
from mend.trees import wheel as wheels

LIMIT = 2_000_000  # bytes that the wheel may have
# Its cache lies in the environment, so that no run sees another one's.
_CACHE = "jax-mend-cache"


@contextlib.contextmanager
def _whole_tree(series: Sequence[patches.Patch]) -> Iterator[pathlib.Path]:
  """live/ with its table, in a scratch folder."""
  with report.step("making the table of jax-mend"):
    table = live_table.make(series)
  with tempfile.TemporaryDirectory() as scratch:
    folder = pathlib.Path(scratch) / f"jax_mend-{live_table.version()}"
    for path in repository.files(live_table.LIVE):
      target = folder / path.relative_to(live_table.LIVE)
      target.parent.mkdir(parents=True, exist_ok=True)
      shutil.copyfile(path, target)
    for name, text in table.items():
      tree.write(folder / "jax_mend" / "table" / name, text)
    yield folder


def wheel(series: Sequence[patches.Patch] | None = None) -> pathlib.Path:
  """Builds the wheel, for all bases; it stays in the cache."""
  series = patches.load() if series is None else series
  with _whole_tree(series) as folder:
    key = cache.key(json.dumps({
        str(p.relative_to(folder)): cache.sha256(p)
        for p in sorted(folder.rglob("*")) if p.is_file()}))
    target = cache.folder("wheels", f"live-{key}")
    return wheels.kept(target, "jax-mend",
                       lambda out: wheels.build_tree(folder, out))


def sdist(target: pathlib.Path) -> pathlib.Path:
  """Packs live/ with its table, which needs no tool to be installed."""
  with _whole_tree(patches.load()) as folder:
    return wheels.build_tree(folder, target, kind="sdist")


def environment(base: Base, series: Sequence[patches.Patch] | None = None, *,
                python: str, kind: str = "test") -> pathlib.Path:
  """A stock jax, with jax-mend enabled; returns its python."""
  deps = envs.dependencies(base, python, kind)
  made = envs.with_wheels([wheels.pristine(base), wheel(series)], deps,
                          f"live-{base.version}")
  if not (made.parents[1] / _CACHE).is_dir():
    _start(made)
  return made


def settings(python: pathlib.Path) -> dict[str, str]:
  """The environment variables with which a Python of `environment` runs."""
  return {"JAX_MEND_CACHE": str(python.parents[1] / _CACHE),
          "JAX_MEND_QUIET": "1"}


def _start(python: pathlib.Path) -> None:
  """Enables it, and fills its cache as pip does with an installed wheel."""
  again = "run the same command again"
  process.run([python, "-m", "jax_mend", "enable"], env=settings(python),
              what="Enabling jax-mend", next_step=again)
  process.run([python, "-c", "from jax_mend import active; import jax; "
               "active.finder().compile_all()"], env=settings(python),
              what="Importing the jax that jax-mend mends", next_step=again)
