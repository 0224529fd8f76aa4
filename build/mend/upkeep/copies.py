# SPDX-License-Identifier: Apache-2.0
"""A copy of a checkout of upstream's, which commits are applied to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import pathlib
import shutil

from mend.trees import git, sending
from mend.upkeep import upstream_checks
from mend.upkeep.upstream_checks import Errors, Tools

_ORIGIN, _BASE = "checkout", "verified-from"


def needed(made: sending.Made, commits: Mapping[str, sending.Made],
           folder: pathlib.Path) -> list[pathlib.Path]:
  """The files of the commits that one is to be sent after."""
  assert made.commit
  files = {one.patch: folder / name for name, one in commits.items()}
  return [files[p] for p in made.commit.after if p in files]


class Copy:
  """A copy of the checkout that commits are applied to."""

  def __init__(self, checkout: pathlib.Path, folder: pathlib.Path,
               tools: Tools, release: pathlib.Path | None = None):
    """Makes the copy, with a release's sources if they are given."""
    self.folder, self.tools = folder / "checkout", tools
    git.Git(folder).run("clone", "--quiet", "--shared", "--no-tags",
                        str(checkout), str(self.folder))
    self.git = git.Git(self.folder)
    if release:
      shutil.rmtree(self.folder / "jax")
      shutil.copytree(release / "jax", self.folder / "jax")
      self.git.run("add", "--all", "--force", "jax")
      self.git.run("commit", "--quiet", "--message=the release's sources")
    self.git.run("tag", _ORIGIN)
    self._collected: dict[tuple[str, str], list[str]] = {}
    self.start()

  def start(self, after: Sequence[pathlib.Path] = ()) -> None:
    """The checkout, with the commits that one is to be sent after."""
    self.git.run("reset", "--quiet", "--hard", _ORIGIN)
    for file in after:
      self.apply(file)
    self.git.run("tag", "--force", _BASE)

  def apply(self, file: pathlib.Path) -> None:
    self.git.run("am", "--quiet", "--3way", "--keep-non-patch", str(file))

  def changed(self) -> list[str]:
    """The files that differ from the checkout's, without deleted ones."""
    return self.git.run("diff", "--name-only", "--diff-filter=d",
                        _BASE, "HEAD").split()

  def was(self, file: str) -> str:
    """The text of a file in the checkout; "" where it has none."""
    there = self.git.run("ls-tree", "--name-only", _BASE, "--", file).strip()
    return self.git.run("show", f"{_BASE}:{file}") if there else ""

  def diff(self) -> str:
    return self.git.run("diff", "--unified=0", _BASE, "HEAD")

  def take_source_away(self) -> None:
    """The tree with the commit's tests and without its source."""
    names = self.git.run("diff", "--name-only", "--no-renames", _BASE,
                         "HEAD").split()
    there = self.git.run("ls-tree", "-r", "--name-only", _BASE).splitlines()
    for name in names:
      if sending.is_test(name):
        continue
      if name in there:
        self.git.run("checkout", "--quiet", _BASE, "--", name)
      else:
        (self.folder / name).unlink()

  def put_back(self) -> None:
    self.git.run("reset", "--quiet", "--hard", "HEAD")

  def types(self, files: Sequence[str]) -> Errors:
    """The type errors in those of the files that upstream checks."""
    mine = upstream_checks.typed(files)
    return upstream_checks.type_errors(
        self.tools, self.folder, mine) if mine else Errors()

  def before(self, files: Sequence[str]) -> set[str]:
    """The tests that files have at the start."""
    at = self.git.run("rev-parse", _BASE)
    for file in files:
      if (at, file) not in self._collected:
        self._collected[at, file] = (
            upstream_checks.collected(self.tools, self.folder, [file])[0]
            if (self.folder / file).is_file() else [])
    return {test for file in files for test in self._collected[at, file]}
