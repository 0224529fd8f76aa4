# SPDX-License-Identifier: Apache-2.0
"""The newest commit of upstream's main that the series was looked at on.

Any look at a checkout notes it in `build/upstream_main.txt`; `check` fails
where the page that describes how the series stands there is of an older one.
"""

from __future__ import annotations

import pathlib
import re

from mend.ground import report
from mend.releases import bases
from mend.trees import git

FILE = "build/upstream_main.txt"
PAGE = "docs/proof/candidates.md"
_LINE = re.compile(r"([0-9a-f]{40}) (\d{4}-\d\d-\d\d)\n")


def upstreams_commit(folder: pathlib.Path) -> tuple[str, str]:
  """The newest commit of upstream's that a checkout stands on, and its date.

  That is where it left the remote's branch; its own commit if it has no remote.
  """
  if not (folder / ".git").exists():
    return "", ""
  repository = git.Git(folder)
  refs = repository.run("for-each-ref", "--format=%(refname)",
                        "refs/remotes/origin/HEAD").split()
  at = repository.run("merge-base", "HEAD", refs[0]).strip() if refs else "HEAD"
  said = repository.run("log", "-1", "--format=%H %cd", "--date=short", at)
  commit, _, date = said.strip().partition(" ")
  return commit, date


def newest(root: pathlib.Path = bases.ROOT) -> tuple[str, str]:
  """The noted commit and its date; "" where there is none."""
  path = root / FILE
  found = _LINE.fullmatch(path.read_text("utf-8")) if path.is_file() else None
  return (found[1], found[2]) if found else ("", "")


def note(folder: pathlib.Path, root: pathlib.Path = bases.ROOT) -> None:
  """Notes the commit of a checkout, if none of its day or later is noted."""
  commit, date = git.commit_of(folder)
  if date > newest(root)[1]:
    (root / FILE).write_text(f"{commit} {date}\n", encoding="utf-8")
    report.say(f"noted in {FILE}: {commit[:10]} of {date}")


def named(commit: str, date: str) -> str:
  """The words by which the page names a commit."""
  return f"Commit {commit[:10]} of {date}."


def stale(root: pathlib.Path = bases.ROOT) -> list[str]:
  """The page, if it is of another commit than the newest looked at."""
  commit, date = newest(root)
  page = (root / PAGE).read_text(encoding="utf-8")
  if not commit:
    return [f"{FILE} names no commit; run check --candidate=CHECKOUT --write"]
  if named(commit, date) in page:
    return []
  return [f"{PAGE} is not of {commit[:10]} ({date}), the newest commit that "
          "was looked at; run check --candidate=CHECKOUT --write"]
