# SPDX-License-Identifier: Apache-2.0
"""`build.py export`: the series as one commit per patch, for `git am`.

The commits are made in a throw-away repository that holds only the files that
the series touches, with a neutral git configuration and fixed dates, so that
the bytes depend on the base and the series alone. Nothing is ever pushed.

What only a fork needs (patches whose upstream status is `fork-only`, and the
manifest) comes last, so that the commits before it stand without it.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import pathlib
import textwrap

from mend.editing import patches, placing
from mend.ground import cache
from mend.ground.errors import MendError
from mend.releases import bases
from mend.releases.bases import Base
from mend.trees import (
    checkout, git, heads, in_place, manifests, test_files, tree)

README = "README.txt"
_NOTE = """\
One file for each patch, made for jax {base}. On {where}:

  git am --keep-non-patch DIR/*.patch

Nothing has been sent anywhere. JAX takes contributions from people, not from
tools: before you send one of these, read it, run its tests, be able to answer
for every line, put your own name in its From line, and sign JAX's CLA.

For the fork only, not to be sent: {last}
"""
_CHECKOUT = "a clean copy of that checkout"
_SDIST = ("the source distribution's tree or a checkout of the tag "
          "(export --tree=CHECKOUT brings the tests and the Bazel files)")


@dataclasses.dataclass(frozen=True)
class Commit:
  """One commit of the series: its message and all changed files."""
  message: str
  files: dict[str, str]


def commits(series: Sequence[patches.Patch], base: Base, source: pathlib.Path,
            place: pathlib.Path, root: pathlib.Path = bases.ROOT,
            changelog: bool = False) -> list[Commit]:
  """The commits that take the pristine tree `place` to the mended one."""
  mine = _in_order(patches.for_base(series, base))
  position = {p.id: i for i, p in enumerate(series)}
  found, before = [], dict[str, str]()
  for i, patch in enumerate(mine):
    # Edits are located on the pristine source: make each file that this patch
    # touches from all edits so far.
    prefix = sorted(mine[:i + 1], key=lambda p: position[p.id])
    touched = {e.file for e in placing.placed(patch, base, source)}
    after = checkout.mended(prefix, base, source, place, root, only=touched,
                            changelog=changelog).files
    if not (i + 1 == len(mine) and _fork_only(patch)):
      after.pop(tree.MANIFEST)
    files = {n: heads.for_upstream(t) for n, t in after.items()
             if before.get(n) != t}
    found.append(Commit(message(patch, root), files))
    before.update(after)
  if mine and tree.MANIFEST not in before:
    found.append(Commit(
        _MANIFEST_MESSAGE.format(base=base.version),
        {manifests.FILE: manifests.text(
            base, patches.for_base(series, base), base.mended)}))
  return found


_MANIFEST_MESSAGE = """\
[mend] Record the base and the patches

For the fork only, not for upstream: what this tree was made from,
jax {base} and the list of the patches before this one.
"""


def _fork_only(patch: patches.Patch) -> bool:
  return patch.upstream.status == "fork-only"


def _in_order(mine: Sequence[patches.Patch]) -> list[patches.Patch]:
  """The series' order, with what is for the fork alone at the end."""
  needed = {d for p in mine if not _fork_only(p) for d in p.depends}
  return sorted(mine, key=lambda p: _fork_only(p) and p.id not in needed)


def message(patch: patches.Patch, root: pathlib.Path = bases.ROOT) -> str:
  """A commit message in JAX's style."""
  body = [patch.title, "", textwrap.fill(patch.why.strip(), 72)]
  ends = patch.upstream.commit.closes if patch.upstream.commit else ()
  trailer = [f"Fixes #{issue}" for issue in ends]
  trailer += [f"See {i}" for i in patch.issues
              if i.removeprefix("jax#") not in ends]
  there = test_files.names([patch], root)
  if tests := [there[t] for t in patch.tests if t in there]:
    body += ["", textwrap.fill(
        "Regression test: " + ", ".join(tests), 72,
        subsequent_indent="  ", break_on_hyphens=False)]
  if patch.depends:
    body += ["", textwrap.fill("Needs: " + ", ".join(patch.depends), 72,
                               break_on_hyphens=False)]
  return "\n".join([*body, *([""] if trailer else []), *trailer]) + "\n"


def write_patches(todo: Sequence[Commit], pristine: pathlib.Path,
                  target: pathlib.Path) -> list[str]:
  """Commits each in a throw-away repository; writes the patch files.

  Args:
    todo: the commits.
    pristine: the tree that the first of them starts from.
    target: a folder, made here.

  Returns:
    The names of the files, in order.
  """
  with cache.scratch() as folder:
    here = git.Git(folder)
    here.run("init", "--quiet", "--initial-branch=base")
    for name in sorted({n for c in todo for n in c.files}):
      if (pristine / name).is_file():
        tree.write(folder / name, tree.read(pristine / name))
    here.run("add", "--all", "--force")
    here.run("commit", "--quiet", "--allow-empty", "--message=base")
    here.run("tag", "base")
    for commit in todo:
      for name, text in commit.files.items():
        tree.write(folder / name, text)
      here.run("add", "--all", "--force")
      here.run("commit", "--quiet", "--allow-empty", "--cleanup=verbatim",
              "--file=-", text=commit.message)
    here.format(target, "base..HEAD")
  return sorted(p.name for p in target.glob("*.patch"))


def export(series: Sequence[patches.Patch], base: Base, source: pathlib.Path,
           target: pathlib.Path, checkout_of: pathlib.Path | None = None,
           root: pathlib.Path = bases.ROOT,
           changelog: bool = False) -> list[str]:
  """Writes the series to the new or empty folder `target`.

  Args:
    series: the patches.
    base: the release.
    source: its pristine tree.
    target: the folder.
    checkout_of: a git checkout of the release, if there is one.
    root: where the patches' files lie.
    changelog: whether each commit has a bullet in the change log.

  Raises:
    MendError: `checkout_of` is not a clean checkout of `base`, or the series
      does not apply.
  """
  tree.require_empty(target)
  place = checkout_of or source
  if checkout_of is not None:
    git.require_checkout(checkout_of)
    in_place.require_pristine(
        checkout.mended(series, base, source, place, root), source, place)
  todo = commits(series, base, source, place, root, changelog)
  if not todo:
    raise MendError(f"No patch of the series is for jax {base.version}.",
                    "python3 build/build.py status")
  if target.is_dir():
    target.rmdir()
  with cache.whole(target) as made:
    names = write_patches(todo, place, made)
    tree.write(made / README, _NOTE.format(
        base=base.version, where=_CHECKOUT if checkout_of else _SDIST,
        last=names[-1] if tree.MANIFEST in todo[-1].files else "None"))
  return names
