# SPDX-License-Identifier: Apache-2.0
"""The wheel of jax-mend, live/ with the edits of every base as a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import contextlib
import json
import pathlib
import tempfile

from mend.editing import patches
from mend.ground import cache, report, repository
from mend.releases import bases
from mend.releases.bases import Base
from mend.trees import live_table
from mend.trees import wheel as wheels

LIMIT = 2_000_000  # bytes that the wheel may have


@contextlib.contextmanager
def _whole_tree(series: Sequence[patches.Patch],
                chosen: Sequence[Base]) -> Iterator[pathlib.Path]:
  """live/ with its table of some releases, in a scratch folder."""
  with report.step("making the table of jax-mend"):
    sources, twins = live_table.of_releases(chosen)
    table = live_table.make(series, sources, twins=twins)
  with tempfile.TemporaryDirectory() as scratch:
    folder = pathlib.Path(scratch) / f"jax_mend-{live_table.version()}"
    live_table.module_of_live("backend").lay_out(
        folder, repository.files(live_table.LIVE), table)
    yield folder


def wheel(series: Sequence[patches.Patch] | None = None,
          chosen: Sequence[Base] | None = None) -> pathlib.Path:
  """Builds the wheel; it stays in the cache.

  Args:
    series: the patches; the whole series if None.
    chosen: the releases that it knows; all of them if None.
  """
  series = patches.load() if series is None else series
  with _whole_tree(series, chosen or bases.all_bases()) as folder:
    key = cache.key(json.dumps({
        str(p.relative_to(folder)): cache.sha256(p)
        for p in sorted(folder.rglob("*")) if p.is_file()}))
    target = cache.folder("wheels", f"live-{key}")
    return wheels.kept(target, "jax-mend",
                       lambda out: wheels.build_tree(folder, out))


def sdist(target: pathlib.Path) -> pathlib.Path:
  """Packs live/ with its table, which needs no tool to be installed."""
  with _whole_tree(patches.load(), bases.all_bases()) as folder:
    return wheels.build_tree(folder, target, kind="sdist")
