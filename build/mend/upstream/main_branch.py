# SPDX-License-Identifier: Apache-2.0
"""Upstream's main branch: the newest commit looked at, and its defects.

Any look at a checkout notes the commit in `build/upstream_main.txt`; `check`
fails where the page that describes how the series stands there is of an older
one. `check --candidate=CHECKOUT --run --write` stores which of the reports'
programs fail there in `build/upstream_reproduced.json`.
"""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
import json
import pathlib
import re

from mend.ground import report
from mend.releases import bases
from mend.trees import git

NEWEST = "build/upstream_main.txt"
DEFECTS = "build/upstream_reproduced.json"
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
  return git.commit_of(folder, repository.run(
      "merge-base", "HEAD", refs[0]).strip() if refs else "HEAD")


def newest(root: pathlib.Path = bases.ROOT) -> tuple[str, str]:
  """The noted commit and its date; "" where there is none."""
  path = root / NEWEST
  found = _LINE.fullmatch(path.read_text("utf-8")) if path.is_file() else None
  return (found[1], found[2]) if found else ("", "")


def note(folder: pathlib.Path, root: pathlib.Path = bases.ROOT) -> None:
  """Notes the commit of a checkout, if none of its day or later is noted."""
  commit, date = git.commit_of(folder)
  if date > newest(root)[1]:
    (root / NEWEST).write_text(f"{commit} {date}\n", encoding="utf-8")
    report.say(f"noted in {NEWEST}: {commit[:10]} of {date}")


def named(commit: str, date: str) -> str:
  """The words by which the page names a commit."""
  return f"Commit {commit[:10]} of {date}."


def stale(root: pathlib.Path = bases.ROOT) -> list[str]:
  """The page, if it is of another commit than the newest looked at."""
  commit, date = newest(root)
  page = (root / PAGE).read_text(encoding="utf-8")
  if not commit:
    return [f"{NEWEST} names no commit; run check --candidate=CHECKOUT --write"]
  if named(commit, date) in page:
    return []
  return [f"{PAGE} is not of {commit[:10]} ({date}), the newest commit that "
          "was looked at; run check --candidate=CHECKOUT --write"]


@dataclasses.dataclass(frozen=True)
class Run:
  """One run of the reproductions.

  Attributes:
    commit: upstream's, that they were run on.
    date: of that commit.
    run: the day of the run.
    patches: patch -> how many of its reproductions fail, and how many ran.
  """
  commit: str
  date: str
  run: str
  patches: Mapping[str, tuple[int, int]]

  @property
  def counts(self) -> tuple[int, int]:
    """The numbers of failing and of run reproductions."""
    return (sum(n for n, _ in self.patches.values()),
            sum(of for _, of in self.patches.values()))

  def said_of(self, patch: str) -> str:
    """Says in a word or two if main has the patch's defect."""
    failing, ran = self.patches.get(patch, (0, 0))
    if not ran:
      return "-"
    if failing in (0, ran):
      return "yes" if failing else "no"
    return f"{failing} of {ran}"


def defects(root: pathlib.Path = bases.ROOT) -> Run:
  """The stored run; one of nothing if there is none."""
  path = root / DEFECTS
  if not path.is_file():
    return Run("", "", "", {})
  data = json.loads(path.read_text(encoding="utf-8"))
  return Run(data["commit"], data["date"], data["run"],
             {p: (n, of) for p, (n, of) in data["patches"].items()})


def store(run: Run, root: pathlib.Path = bases.ROOT) -> None:
  """Stores a run, a patch a line."""
  text = json.dumps({**dataclasses.asdict(run), "patches": {}}, indent=1)
  rows = ",\n  ".join(f"{json.dumps(p)}: {json.dumps(n)}"
                      for p, n in run.patches.items())
  (root / DEFECTS).write_text(
      text.replace("{}", f"{{\n  {rows}\n }}") + "\n", encoding="utf-8")
