# SPDX-License-Identifier: Apache-2.0
"""`build.py export --upstream`: the commits that can be pull requests.

Each is made on the tree at hand from the patch's `[upstream]` table alone, is a
file of its own that applies there alone, and applies after the others; of tests
at one place, in the order of the series. What doesn't is left out. What a
release spells otherwise is decided by the tree's own version where both
spellings have a place, and by the place where one of them has it. A commit
whose edit has no place is left out, and said so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import difflib
import itertools
import pathlib

from mend.editing import edits, operations, patches, placing, sendable, splice
from mend.editing import syntax
from mend.editing.edit import Edit
from mend.ground import cache
from mend.ground.errors import MendError
from mend.releases.bases import Base
from mend.trees import checkout, git, tree

README = "README.txt"
_NOTE = """\
{count} for jax {base}, each by itself a pull request:

  git am --keep-non-patch DIR/0001-*.patch

Nothing has been sent anywhere. JAX takes contributions from people who vouch
for each, not from tools, and few at a time. Before you open one: read it, run
its tests, be able to answer for every line, and sign the CLA. docs/upstream.md
says how.
"""


class Gone(Exception):
  """An edit without a place, or with several; its words name them."""


@dataclasses.dataclass(frozen=True)
class Made:
  """A commit on a tree.

  Attributes:
    patch: the id of the patch.
    message: of the commit.
    files: file name -> whole new text.
    added: lines of source that it adds.
    removed: and removes; tests are not counted.
    without: the files of its edits that the tree lacks.
    commit: what it was made of.
    report: what to file before it.
  """
  patch: str
  message: str
  files: dict[str, str]
  added: int
  removed: int
  without: tuple[str, ...] = ()
  commit: sendable.Commit | None = None
  report: sendable.Report | None = None


def is_test(file: str) -> bool:
  """True of what is no source: upstream's tests and its change log."""
  return file.startswith("tests/") or file == checkout.CHANGELOG


def message(commit: sendable.Commit) -> str:
  """The commit's message, with the issues that it ends."""
  fixes = "".join(f"\nFixes #{issue}" for issue in commit.closes)
  return (f"{commit.title}\n\n{commit.message.strip()}\n"
          + (f"{fixes}\n" if fixes else ""))


def make(patch: patches.Patch, base: Base, place: pathlib.Path,
         changelog: bool = False) -> Made:
  """The commit of a patch that can be sent.

  Args:
    patch: one that has a commit.
    base: the tree's release, which it may be on its way to.
    place: the tree.
    changelog: whether the commit has a bullet in the change log.

  Raises:
    Gone: an edit has no place there.
    MendError: it is too long, or changes nothing.
  """
  assert patch.upstream.commit
  commit, files, lacking = patch.upstream.commit, dict[str, str](), []
  for file, todo in _by_file(commit.edits, base, place).items():
    if (place / file).is_file():
      files[file] = _edited(place / file, todo)
    elif is_test(file):  # a source distribution has none
      lacking.append(file)
    else:
      raise Gone(f"{todo[0].label}: there is no {file}")
  log = place / checkout.CHANGELOG
  bullet = patch.changelog if changelog else commit.changelog
  if bullet and log.is_file():
    files[checkout.CHANGELOG] = checkout.add_bullet(tree.read(log), bullet)
  added, removed = _size(files, place)
  if bool(added + removed) == commit.guard:
    raise MendError(
        f"patch {patch.id}: its commit for upstream changes "
        + ("source, and is to guard alone." if commit.guard else "no source."),
        f"edit patches/{patch.id}.toml")
  if added + removed > sendable.MAX_LINES:
    raise MendError(
        f"patch {patch.id}: its commit for upstream adds {added} lines of "
        f"source and removes {removed}, more than {sendable.MAX_LINES} in all.",
        f"edit patches/{patch.id}.toml")
  return Made(patch.id, message(commit), files, added, removed,
              tuple(lacking), commit, patch.upstream.report)


def _size(files: Mapping[str, str], place: pathlib.Path) -> tuple[int, int]:
  """The lines of source that the files add and remove, counted."""
  added = removed = 0
  for name, text in files.items():
    if not is_test(name):
      for line in difflib.unified_diff(
          tree.read(place / name).splitlines(), text.splitlines(),
          "old", "new", lineterm=""):
        added += line.startswith("+") and line != "+++ new"
        removed += line.startswith("-") and line != "--- old"
  return added, removed


def _by_file(todo: Iterable[Edit], base: Base,
             place: pathlib.Path) -> dict[str, list[Edit]]:
  found: dict[str, list[Edit]] = {}
  for _, table in itertools.groupby(todo, key=lambda e: e.number):
    for edit in _chosen(list(table), base, place):
      found.setdefault(edit.file, []).append(edit)
  return found


def _chosen(table: Sequence[Edit], base: Base,
            place: pathlib.Path) -> list[Edit]:
  """The edits of one table that are for the tree.

  The row of the tree's own version, if it has its place; else another that
  has.
  """
  rows: dict[str, list[Edit]] = {}
  for edit in table:
    rows.setdefault(edit.bases, []).append(placing.at_place(edit, place))
  own = [row for spec, row in rows.items() if not spec or base.within(spec)]
  others = [row for row in rows.values() if row not in own]
  fitting = [row for row in (*own, *others)
             if all(_has_place(e, place) for e in row)]
  if len(rows) == 1 and not own:  # an edit of other releases alone
    return []
  return (fitting or own or others)[0]


def _has_place(edit: Edit, place: pathlib.Path) -> bool:
  path = place / edit.file
  if not path.is_file():
    return is_test(edit.file)
  try:
    edits.locate(operations.parsed(tree.read(path)), edit)
  except syntax.NotFound:
    return False
  return True


def _edited(path: pathlib.Path, todo: Sequence[Edit]) -> str:
  def refuse(edit: Edit, found: syntax.NotFound) -> Gone:
    return Gone(f"{edit.label}: wanted exactly one place; found: {found}")

  try:
    return edits.apply(operations.parsed(tree.read(path)), todo, refuse)[0]
  except splice.Overlap as e:
    raise MendError(f"Two edits touch the same text: {e}.",
                    "make one of them smaller, or merge them") from e


def all_made(series: Sequence[patches.Patch], base: Base, place: pathlib.Path,
             changelog: bool = False) -> tuple[list[Made], list[str]]:
  """The commits of the series, and what is left out and why."""
  made, left_out = [], []
  for patch in series:
    if patch.upstream.commit:
      try:
        made.append(make(patch, base, place, changelog))
      except Gone as e:
        left_out.append(f"{e}")
  return made, left_out


def write(todo: Sequence[Made], base: Base, place: pathlib.Path,
          target: pathlib.Path, author: git.Author,
          in_a_row: bool = True) -> tuple[list[str], list[str]]:
  """Writes each commit to a file of its own in `target`, which is made here.

  Args:
    todo: the commits.
    base: the tree's release.
    place: the tree.
    target: a new or empty folder.
    author: the commits' author.
    in_a_row: whether to try that they apply one after another.

  Returns:
    The names of the files, one for each commit, and what is left out and why:
    what doesn't apply after those before it.
  """
  tree.require_empty(target)
  if target.is_dir():
    target.rmdir()
  with cache.whole(target) as made, cache.scratch() as folder:
    made.mkdir(parents=True)
    repository = _repository(folder, todo, place, author)
    for number, commit in enumerate(todo, 1):
      repository.run("checkout", "--quiet", "--detach", "base")
      for name, text in commit.files.items():
        tree.write(folder / name, text)
      repository.run("add", "--all", "--force")
      repository.run("commit", "--quiet", "--cleanup=verbatim", "--file=-",
                     text=commit.message)
      repository.format(made, "base..HEAD", number)
    names, left_out = sorted(p.name for p in made.glob("*.patch")), []
    if in_a_row:
      left_out = _try_in_a_row(repository, todo, [made / n for n in names])
      names = [name for name in names if (made / name).exists()]
    count = "1 commit" if len(names) == 1 else f"{len(names)} commits"
    tree.write(made / README, _NOTE.format(count=count, base=base.version))
  return names, left_out


def _repository(folder: pathlib.Path, todo: Sequence[Made],
                place: pathlib.Path, author: git.Author) -> git.Git:
  """A throw-away repository of the files that the commits touch."""
  repository = git.Git(folder, author)
  repository.run("init", "--quiet", "--initial-branch=main")
  # Two tests at one place are one after the other.
  tree.write(folder / ".git" / "info" / "attributes",
             "tests/** merge=union\n")
  for name in sorted({n for c in todo for n in c.files}):
    tree.write(folder / name, tree.read(place / name))
  repository.run("add", "--all", "--force")
  repository.run("commit", "--quiet", "--allow-empty", "--message=base")
  repository.run("tag", "base")
  return repository


def _try_in_a_row(repository: git.Git, todo: Sequence[Made],
                  files: Sequence[pathlib.Path]) -> list[str]:
  """Removes each file that doesn't apply after those before it; says why."""
  repository.run("checkout", "--quiet", "--detach", "base")
  left_out = []
  for commit, file in zip(todo, files):
    try:
      repository.run("am", "--quiet", "--3way", "--keep-non-patch", str(file))
    except MendError as e:
      repository.run("am", "--abort")
      file.unlink()
      others = [c.patch for c in todo if c is not commit
                and c.files.keys() & commit.files.keys()]
      left_out.append(
          f"patch {commit.patch}: its commit for upstream applies alone, and "
          f"not after those before it ({', '.join(others)}): {e.what} Next: "
          "give its edits a place that is not the others'")
  return left_out
