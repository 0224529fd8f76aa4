# SPDX-License-Identifier: Apache-2.0
"""The defects that upstream's main has, by the last run of the reproductions.

`check --candidate=CHECKOUT --run --write` stores it, in
`build/upstream_reproduced.json`.
"""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
import json
import pathlib

from mend.releases import bases

FILE = "build/upstream_reproduced.json"


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
    """The numbers of reproductions that fail, and that ran."""
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


def read(root: pathlib.Path = bases.ROOT) -> Run:
  """The stored run; one of nothing if there is none."""
  path = root / FILE
  if not path.is_file():
    return Run("", "", "", {})
  data = json.loads(path.read_text(encoding="utf-8"))
  return Run(data["commit"], data["date"], data["run"],
             {p: (n, of) for p, (n, of) in data["patches"].items()})


def write(run: Run, root: pathlib.Path = bases.ROOT) -> None:
  """Stores a run, a patch a line."""
  text = json.dumps({**dataclasses.asdict(run), "patches": {}}, indent=1)
  rows = ",\n  ".join(f"{json.dumps(p)}: {json.dumps(n)}"
                      for p, n in run.patches.items())
  (root / FILE).write_text(
      text.replace("{}", f"{{\n  {rows}\n }}") + "\n", encoding="utf-8")
