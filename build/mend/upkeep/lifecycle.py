# SPDX-License-Identifier: Apache-2.0
"""`build.py new` and `retire`: patches come and go."""

from __future__ import annotations

import json
import pathlib
import re
from typing import Any

from mend.editing import families, patches
from mend.ground.errors import MendError
from mend.releases import bases
from mend.trees import heads, tree
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version
import tomlkit

RETIRED = "patches/retired.toml"
_NAME = re.compile(r"([a-z][a-z0-9_]*)/([a-z][a-z0-9]*(?:_[a-z0-9]+)*)")
_PATCH = """\
id = "{name}"
title = "[area] Say what the commit does"
why = "Say what a user sees go wrong, in one or two sentences."
bases = {spec}
issues = [{issue}]
upstream = {{}}
modules = ["{module}"]
tests = ["tests/{name}_test.py"]
reproductions = ["reproductions/{name}.py"]
changelog = "Bug fixes: say what works now."
"""
_MODULE = '"""States the algorithm, its limits and its cost."""\n'
_TEST = '''\
from jax._src import test_util as jtu
from testing.red import red


class {camel}Test(jtu.JaxTestCase):

  @red('^AssertionError: write the regression test')
  def test_regression(self):
    self.fail("write the regression test, with an oracle of its own")
'''
_REPRODUCTION = '''\
"""{issue}, as its author would type it."""

REPORT = "{issue}"


def {stem}():
  """Says in one line what is right where the defect is not"""
  raise AssertionError("write the reproduction")
'''


def new(name: str, issue: str, spec: str,
        root: pathlib.Path = bases.ROOT) -> list[str]:
  """Starts a patch: its file, and a module, test and reproduction to fill in.

  Returns:
    The files written; the test and the reproduction fail until written.
  """
  parts, known = _NAME.fullmatch(name), families.load(root)
  if not parts or parts[1] not in known:
    raise MendError(f"{name!r} is no name for a patch: a family "
                    f"({', '.join(known)}), a slash, and small letters, digits "
                    "and single underscores.", "choose another name")
  try:
    SpecifierSet(spec)
  except InvalidSpecifier as e:
    raise MendError(f"{spec!r} is no version specifier.",
                    '--bases=">=0.6,<0.12"') from e
  family, stem = known[parts[1]], parts[2]
  words = {"name": name, "stem": stem, "issue": issue,
           "camel": "".join(w.capitalize() for w in stem.split("_")),
           "module": f"{family.package or 'jax/_src'}/{stem}.py"}
  header = heads.LINE
  files = {
      f"patches/{name}.toml": _PATCH.format(
          **{**words, "issue": json.dumps(issue), "spec": json.dumps(spec)}),
      words["module"]: header + _MODULE,
      f"tests/{name}_test.py": header + _TEST.format(**words),
      f"reproductions/{name}.py": header + _REPRODUCTION.format(**words)}
  there = [f for f in files if (root / f).exists()]
  if there:
    raise MendError(f"{', '.join(there)} already exists.",
                    "choose another name")
  for file, text in files.items():
    tree.write(root / file, text)
  series = root / "patches" / "series"
  tree.write(series, tree.read(series).rstrip("\n") + f"\n{name}\n")
  return [*files, "patches/series"]


def require_retirable(name: str, landed: str, root: pathlib.Path = bases.ROOT,
                      ) -> tuple[patches.Patch, Version, list[str]]:
  """The patch, the release, and the bases that are older and keep it.

  Raises:
    MendError: there is no such patch or version, or on a base that would lose
      the patch another one needs it.
  """
  try:
    release = Version(landed)
  except InvalidVersion as e:
    raise MendError(f"{landed!r} is no version.", "--landed=0.12.1") from e
  series = patches.load(root)
  patches.require_known(series, [name])
  (patch,) = (p for p in series if p.id == name)
  older = [b.version for b in bases.all_bases()
           if b.within(patch.bases) and Version(b.version) < release]
  _refuse_needed(series, patch, release, bool(older))
  return patch, release, older


def retire(name: str, landed: str,
           root: pathlib.Path = bases.ROOT) -> list[str]:
  """Records that upstream has a patch from release `landed` on.

  Where some base is older, the patch stays for those. Otherwise it moves to
  retired.toml, and the files that no other patch names go.

  Returns:
    What was done, a line for each.

  Raises:
    MendError: it can't be; see `require_retirable`.
  """
  patch, release, older = require_retirable(name, landed, root)
  if older:
    return _limit(patch, str(release), older, root)
  return _move(patch, str(release), patches.load(root), root)


def _refuse_needed(series: tuple[patches.Patch, ...], patch: patches.Patch,
                   release: Version, stays: bool) -> None:
  """Refuses to retire a patch from a base with another patch that needs it."""
  losing = [b for b in bases.all_bases()
            if b.within(patch.bases) and Version(b.version) >= release]
  users = {p.id: [b.version for b in losing if b.within(p.bases)]
           for p in series if patch.id in p.depends}
  needed = [f"{name} (jax {', '.join(on)})" if on else name
            for name, on in users.items() if on or not stays]
  if needed:
    raise MendError(f"patch {patch.id} is needed by {', '.join(needed)}.",
                    "retire them first, or edit their `depends`")


def _limit(patch: patches.Patch, landed: str, older: list[str],
           root: pathlib.Path) -> list[str]:
  path = root / "patches" / f"{patch.id}.toml"
  parts = [s.strip() for s in patch.bases.split(",") if s.strip()]
  spec = ",".join([*(p for p in parts if not p.startswith("<")),
                   f"<{landed}"])
  written = tomlkit.parse(tree.read(path))
  written["bases"] = spec
  upstream = tomlkit.inline_table()
  upstream.update({"status": "merged", "pr": patch.upstream.pr,
                   "landed_in": landed})
  written["upstream"] = upstream
  tree.write(path, tomlkit.dumps(written))
  return [f"patches/{patch.id}.toml: bases {spec}; stays for "
          + ", ".join(older)]


def _move(patch: patches.Patch, landed: str, series: tuple[patches.Patch, ...],
          root: pathlib.Path) -> list[str]:
  entry = {"id": patch.id, "title": patch.title, "issues": list(patch.issues),
           "pr": patch.upstream.pr, "landed_in": landed}
  _append(root / RETIRED, "retired", entry, "# Patches that upstream has; "
          "build.py retire writes this file.\n")
  kept = {f for p in series if p.id != patch.id for f in _files(p)}
  gone = [f for f in (*_files(patch), f"patches/fingerprints/{patch.id}.json",
                      f"patches/{patch.id}.toml")
          if f not in kept and (root / f).is_file()]
  names = tree.read(root / "patches" / "series").splitlines(keepends=True)
  tree.write(root / "patches" / "series", "".join(
      line for line in names if line.split("#")[0].strip() != patch.id))
  for file in gone:
    (root / file).unlink()
  return [f"{RETIRED}: {patch.id}, landed in {landed}",
          *(f"removed {file}" for file in gone)]


def _append(path: pathlib.Path, key: str, entry: dict[str, Any],
            opening: str = "") -> str:
  """Adds a table to the list `key` of a TOML file; returns its text."""
  text = tree.read(path) if path.is_file() else opening
  added = "\n" + tomlkit.dumps({key: [entry]})
  tree.write(path, text + added)
  return added


def _files(patch: patches.Patch) -> tuple[str, ...]:
  return (*patch.modules, *patch.tests, *patch.unit_tests,
          *patch.test_helpers, *patch.reproductions)
