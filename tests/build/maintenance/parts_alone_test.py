# SPDX-License-Identifier: Apache-2.0
"""Families and patches alone, on the newest release of each line."""

import ast
import functools
import importlib
import sys

from conftest import ROOT
from mend.editing import families, patches
from mend.editing.live_modules import module_of_live
from mend.proof import alone
from mend.releases import bases, source
from mend.trees import manifests, tree
import pytest


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
  """jax_mend.table, with the project's table."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv("JAX_MEND", "0")
    patch.syspath_prepend(str(ROOT / "live"))
    module = importlib.import_module("jax_mend.table")
    folder = tmp_path_factory.mktemp("table")
    backend = module_of_live("backend")
    for name, text in backend.assembled(backend.committed(), ROOT).items():
      (folder / name).write_text(text, encoding="utf-8")
    patch.setattr(module, "FOLDER", str(folder))
    yield module
    for name in [n for n in sys.modules if n.partition(".")[0] == "jax_mend"]:
      del sys.modules[name]


@pytest.mark.parametrize("base", alone.newest_of_lines(bases.all_bases()),
                         ids=lambda b: b.version)
def test_a_family_alone_is_what_a_wheel_of_it_has(base, tables, kept_cache):
  """By the newest release of each line, and by all but a patch, too."""
  del kept_cache
  series, origin = patches.load(), source.pristine(base)
  mine = [p.id for p in patches.for_base(series, base)]
  names = [*dict.fromkeys(map(families.of, mine))]
  looked = 0
  for words in ([[n] for n in names] + [[f"-{n}"] for n in names]
                + [[f"-{p}"] for p in mine[::16]]):
    wanted = tree.mended(patches.select(series, words, base), base, origin)
    found = tables.Table(base.version, words)
    assert found.patches == [*wanted.patches]
    more = {*found.modules} - {*wanted.added}
    assert {*wanted.added} <= {*found.modules}, words
    assert all(f.endswith("/__init__.py")
               or f.startswith(families.GROUND_FLOOR) for f in more), words
    assert {*found.files} == {*wanted.edited}, words
    for file, text in wanted.edited.items():
      mended = found.edited(file, (origin / file).read_bytes()).decode("utf-8")
      assert _lines(mended) == _lines(text), (words, file)
      looked += 1
    for file in {*wanted.added} - {manifests.FILE}:
      assert found.added(file).decode("utf-8") == wanted.added[file]
    manifest = found.added(manifests.FILE).decode("utf-8")
    assert _patches_of(manifest) == _patches_of(wanted.added[manifests.FILE])
    assert f'VERSION = "{base.mended}.p' in manifest
  assert looked > 50


def _lines(text):
  """The lines, imports of ours apart: one patch has them last, another not."""
  return sorted(text.splitlines())


def _patches_of(manifest):
  return manifest.partition("PATCHES")[2]


@functools.cache
def _imported(file):
  """Our modules that a module of ours imports as it is imported."""
  found = set()
  for node in ast.parse((ROOT / file).read_text("utf-8")).body:
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
      folder = node.module.replace(".", "/")
      found |= {f"{folder}.py", *(
          f"{folder}/{a.name}.py" for a in node.names)}
  return {name for name in found if (ROOT / name).is_file()}


@pytest.mark.parametrize("base", alone.newest_of_lines(bases.all_bases()),
                         ids=lambda b: b.version)
def test_a_patch_alone_has_what_its_modules_import(base):
  """Three families could not be imported without varying's others."""
  series, looked = patches.for_base(patches.load(), base), 0
  for patch in series:
    needed = patches.for_base(patches.with_needed(series, patch.id), base)
    have = {m for p in needed for m in p.modules}
    missing = {m: lacks for m in have if (lacks := _imported(m) - have)}
    assert not missing, patch.id
    looked += len(have)
  assert looked > 500
