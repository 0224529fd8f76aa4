# SPDX-License-Identifier: Apache-2.0
"""`build.py check --candidate`: the series against a jax that is no base yet.

Looks at each edit there, and at a release also runs the regression tests on
its pristine wheel (do they already pass? then the patch can retire) and on a
wheel with every patch whose edits are found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
import dataclasses
import pathlib
import re
import sys

from mend.editing import patches
from mend.ground import cache, process, report
from mend.ground.errors import MendError
from mend.proof import venvs
from mend.releases import bases, interpreters, source
from mend.releases.bases import Base
from mend.trees import drift, tree, wheel
from packaging.metadata import parse_email
from packaging.requirements import Requirement
from packaging.version import InvalidVersion, Version

_MANY = 10**6
_VERSION = re.compile(r"^_version\s*=\s*['\"]([^'\"]+)['\"]", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Candidate:
  """A jax to look at; `released` if it has a wheel that can run."""
  base: Base
  source: pathlib.Path
  released: bool


def find(named: str) -> Candidate:
  """The release of that version, or the source tree at that path.

  Raises:
    MendError: it is neither.
  """
  folder = pathlib.Path(named)
  if folder.is_dir():
    return _tree(folder)
  try:
    version = str(Version(named))
  except InvalidVersion as e:
    raise MendError(f"{named} is no version and no folder.",
                    "name a release, or a checkout of jax: --candidate=DIR"
                    ) from e
  base = release(version)
  return Candidate(base, source.pristine(base), True)


def _tree(folder: pathlib.Path) -> Candidate:
  file = folder / "jax" / "version.py"
  found = _VERSION.search(tree.read(file)) if file.is_file() else None
  if not found:
    raise MendError(f"{folder} is no jax source tree: no version in "
                    "jax/version.py.", "name the folder that holds jax/")
  if (folder / tree.MANIFEST).exists():
    raise MendError(f"{folder} is already mended: it has {tree.MANIFEST}.",
                    "name an unmodified tree")
  line = nearest(found[1]).line
  return Candidate(Base(found[1], "", ">=3.10", (), line), folder, False)


def release(version: str) -> Base:
  """A release as a base: one of ours, or fetched, hashed and read."""
  for base in bases.all_bases():
    if base.version == version:
      return base
  kept = cache.folder("sdists") / f"jax-{version}.tar.gz"
  with cache.lock(f"sdist-{version}"):
    if not cache.intact(kept):
      with report.step(f"downloading the source of jax {version}"):
        with cache.scratch() as scratch:
          _download(version, scratch)
          (scratch / kept.name).replace(kept)
      cache.remember(kept)
  digest = cache.sha256(kept)
  unread = Base(version, digest, ">=3.10", ())
  python, wanted = requirements(source.pristine(unread))
  jaxlib = [f"jaxlib{r.specifier}" for r in wanted if r.name == "jaxlib"]
  near = nearest(version)
  more = [r for r in near.requirements
          if Requirement(r).name != "jaxlib"]
  return Base(version, digest, python, (*jaxlib, *more))


def _download(version: str, folder: pathlib.Path) -> None:
  process.run(
      [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps",
       "--no-binary", "jax", "--no-build-isolation",
       "--ignore-requires-python", "--dest", folder, f"jax=={version}"],
      env=process.same_packages(), what=f"Downloading jax {version} with pip",
      next_step="check that such a release exists, and the network")


def requirements(tree_of: pathlib.Path) -> tuple[str, list[Requirement]]:
  """The Pythons and the packages that a source distribution asks for.

  Those of an extra are not among them.
  """
  info, _ = parse_email((tree_of / "PKG-INFO").read_bytes())
  wanted = [Requirement(r) for r in info.get("requires_dist", ())]
  if not wanted:  # as older setuptools wrote them: beside the metadata
    listed = (tree_of / "jax.egg-info" / "requires.txt").read_text(
        encoding="utf-8").split("[")[0]
    wanted = [Requirement(line) for line in listed.split("\n") if line.strip()]
  return info.get("requires_python") or ">=3.10", [
      r for r in wanted if not (r.marker and "extra" in str(r.marker))]


def nearest(version: str) -> Base:
  """The newest base that is not newer, or else the oldest."""
  older = [b for b in bases.all_bases()
           if Version(b.version) <= Version(version)]
  return older[-1] if older else bases.all_bases()[0]


def neighbours(version: str) -> list[Base]:
  """The base before the version and the one after it, or the base itself."""
  newer = [b for b in bases.all_bases()
           if Version(b.version) > Version(version)]
  found = [nearest(version)]
  if found[0].version != version and newer and newer[0] not in found:
    found.append(newer[0])
  return found


def adapted(series: Iterable[patches.Patch], candidate: Candidate,
            root: pathlib.Path = bases.ROOT,
            ) -> list[tuple[patches.Patch, str]]:
  """Each patch as if written for the candidate, and the base it is taken from.

  A patch can have other edits for older and for newer bases; those of the
  neighbouring base that fit better are tried, and where both fit, those that
  the candidate's own version means.
  """
  found = []
  for patch in series:
    tried: list[tuple[int, bool, int, int, patches.Patch, Base]] = []
    own = _as_on(patch, candidate.base).edits
    for base in neighbours(candidate.base.version):
      if base.within(patch.bases):
        as_there = _as_on(patch, base)
        counts = [s.state for s in states([as_there], candidate, root)]
        lost = counts.count(drift.GONE) + counts.count(drift.THERE)
        # What needs no edits on one base loses none here: that says nothing.
        doubt = counts.count(drift.DRIFTED) if counts else _MANY
        other = as_there.edits != own
        tried.append((lost, other, doubt, len(tried), as_there, base))
    if tried:
      *_, as_there, base = min(tried, key=lambda t: t[:4])
      found.append((as_there, base.version))
  return found


def _as_on(patch: patches.Patch, base: Base) -> patches.Patch:
  """The patch with what it does on `base`, for any version."""
  edits = tuple(dataclasses.replace(e, bases="")
                for e in patch.edits_for(base))
  red = tuple(dataclasses.replace(r, bases="") for r in patch.red
              if not r.bases or base.within(r.bases))
  return dataclasses.replace(patch, bases="", edits=edits, red=red)


def states(series: Iterable[patches.Patch], candidate: Candidate,
           root: pathlib.Path = bases.ROOT) -> list[drift.State]:
  """The state of each edit; `new` is `drifted`: no base has that edit."""
  return [dataclasses.replace(s, state=drift.DRIFTED, detail="")
          if s.state == drift.NEW else s
          for s in drift.states(series, candidate.base, candidate.source, root)]


def applicable(series: Sequence[patches.Patch], base: Base,
               found: Sequence[drift.State]) -> list[patches.Patch]:
  """The patches all of whose edits are found, and what they depend on too."""
  bad = {s.edit.patch for s in found if s.state in (drift.GONE, drift.THERE)}
  good: list[patches.Patch] = []
  for patch in patches.for_base(series, base):
    here = {p.id for p in good}
    if patch.id not in bad and here.issuperset(
        d for d in patch.depends if _for(series, d, base)):
      good.append(patch)
  return good


def _for(series: Sequence[patches.Patch], name: str, base: Base) -> bool:
  return any(p.id == name and base.within(p.bases) for p in series)


@dataclasses.dataclass(frozen=True)
class Trial:
  """The Pythons with the candidate's jax: pristine and as far mended."""
  pristine: pathlib.Path
  mended: pathlib.Path | None
  problems: dict[str, str]  # patch -> why it is not in the mended one


def trial(candidate: Candidate, series: Sequence[patches.Patch],
          good: Sequence[patches.Patch]) -> Trial:
  """Environments of a release; `mended` is None where nothing applies."""
  base = candidate.base
  python = interpreters.for_base(base, lowest=True)
  deps = venvs.dependencies(base, python, "test")
  before = venvs.with_wheels([wheel.pristine(base)], deps,
                           f"pristine-{base.version}")

  def mended(chosen: Sequence[patches.Patch]) -> pathlib.Path:
    made = wheel.mended(chosen, base, python)
    return venvs.with_wheels([made], deps, f"mended-{base.version}")

  problems: dict[str, str] = {}
  if _problem(lambda: mended(good)):
    good, problems = _alone(candidate, series, good, before)
  return Trial(before, mended(good) if good else None, problems)


def _alone(candidate: Candidate, series: Sequence[patches.Patch],
           good: Sequence[patches.Patch], python: pathlib.Path,
           ) -> tuple[list[patches.Patch], dict[str, str]]:
  """Tries each patch alone, with what it needs; those that work, and why not.

  One edit that finds its place and means something else there would hide
  what all others do.
  """
  works: list[patches.Patch] = []
  problems: dict[str, str] = {}
  here = {p.id for p in good}
  with report.step(f"trying {len(good)} patches one by one"):
    for patch in good:
      needed = [p for p in patches.with_needed(series, patch.id)
                if p.id in here]
      why = _problem(lambda: _tree_of(candidate, needed, python))
      if why:
        problems[patch.id] = why
      else:
        works.append(patch)
  return works, problems


def _tree_of(candidate: Candidate, chosen: Sequence[patches.Patch],
             python: pathlib.Path) -> pathlib.Path:
  """A python that imports the candidate with `chosen`, from a bare tree."""
  result = tree.mended(chosen, candidate.base, candidate.source)
  key = cache.key(candidate.base.sha256, *(
      x for item in sorted(result.files.items()) for x in item))
  target = cache.folder("trials") / key
  if not target.is_dir():
    tree.write_copy(result, candidate.source, target, str(python))
  starter = target / "python"
  tree.write(starter, "#!/bin/sh\n"
             f'PYTHONPATH="{target}" exec "{python}" "$@"\n')
  starter.chmod(0o755)
  return starter


def _problem(make: Callable[[], pathlib.Path]) -> str:
  """Why `make` fails, or why what it makes can't run a line of jax."""
  try:
    process.run([make(), "-c", "import jax; jax.jit(lambda x: x + 1)(1)"],
                env={"JAX_PLATFORMS": "cpu"}, what="Importing jax",
                next_step="look at the edits")
  except MendError as e:
    return e.what.strip().splitlines()[-1].strip()
  return ""
