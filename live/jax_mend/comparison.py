# SPDX-License-Identifier: Apache-2.0
"""`python -m jax_mend compare`: does this program give other numbers, and why?

Runs it on the stock jax and mended; where they differ once more on the stock
jax, to see whether it is the same twice; then, for the reason, mended with
fewer patches, at most four times. Each run is a process of its own.

Of the first run's values only digests are kept, of the second's those that the
first doesn't have: of a program that no fix concerns nothing is written. The
stock values that differ are kept by the run that is made once more.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import os
import sys
from typing import Any

from jax_mend import (active, asked, differences, evidence, installed, ordinary,
                      pairing, rows, runs, why)
from jax_mend import table as tables
from jax_mend.errors import NotApplied
from jax_mend.rows import Row
from jax_mend.runs import Run
from jax_mend.together import Alone, Together

SAME, DIFFERS, FAILED = 0, 1, 2


@dataclasses.dataclass
class Comparison:
  """The result of comparing two runs.

  Attributes:
    again: a second run on the stock jax, if one was made.
    mended_again: a second one mended, if the texts alone differ.
    searched: the runs that were made to find the reasons, without "cut P": the
      patch P and all after it; "alone P": it and those that need it; "above P":
      these.
  """
  stock: Run
  mended: Run
  rows: list[Row]
  again: Run | None = None
  mended_again: Run | None = None
  searched: list[str] = dataclasses.field(default_factory=list)

  @property
  def runs(self) -> int:
    """The number of times that the program was run."""
    return 2 + bool(self.again) + bool(self.mended_again) + len(self.searched)

  @property
  def differing(self) -> list[Row]:
    return [r for r in self.rows if r.kind in rows.COUNTED]

  @property
  def outcomes(self) -> list[tuple[str, str, str]]:
    """The tests with another outcome: its name, stock's and mended."""
    one, two = self.stock.outcomes, self.mended.outcomes
    return [(t, one.get(t, "not run"), two.get(t, "not run"))
            for t in {**one, **two} if one.get(t) != two.get(t)]

  def differs(self) -> bool:
    return bool(self.outcomes) or any(not r.again for r in self.differing)

  def failure(self) -> str:
    """Why it can't be compared, or ""."""
    one, two = self.stock, self.mended
    if not (one.recorded and two.recorded):
      return "Python did not start as usual"
    if not (one.jax or two.jax):
      return ("this process hasn't imported jax (processes that it starts are "
              "not recorded)")
    if one.status and two.status and not (one.programs or two.programs):
      return "it ended before jax compiled a program"
    if self.differs():
      return ""
    if any(r.again for r in self.rows) or rows.unstable_end(one, self.again):
      alike = self.rows and all(r.same_code for r in self.rows)
      return ("it isn't the same twice on the stock jax (dates, random numbers "
              "without a seed, threads, files that it leaves?)" + (
                  "; each compiled program has the same code mended"
                  if alike else ""))
    return ""

  def code(self) -> int:
    """The exit status."""
    if self.failure():
      return FAILED
    return DIFFERS if self.differs() else SAME


def compare(settings: runs.Settings, folder: str,
            tolerance: differences.Tolerance,
            others: Alone | Together | None = None) -> Comparison:
  """Runs a program stock and mended, and says what differs, and why.

  Args:
    settings: the program.
    folder: for what is recorded.
    tolerance: the differences of values that count as none.
    others: the other processes of the same program.
  """
  others = others or Alone()
  part = ",".join(asked.words()) or "1"
  at = lambda name: os.path.join(folder, name)
  others.gather("stock")
  stock = runs.run(settings, at("stock"), runs.STOCK)
  others.gather("mended")
  mended = runs.run(settings, at("mended"), part, at("stock"), None,
                    evidence=True)
  found = Comparison(stock, mended, rows.rows(stock, mended, tolerance))
  unlike = (any(r.kind != rows.SAME for r in found.rows) or found.outcomes
            or rows.of_texts(stock, mended))
  if any(others.gather(bool(unlike) and not found.failure())):
    _explain(found, settings, at, part, others, tolerance)
  return found


def _explain(found: Comparison, settings: runs.Settings, at: Any, part: str,
             others: Alone | Together,
             tolerance: differences.Tolerance) -> None:
  """Runs it again, and writes into the rows which patch they come of."""
  stock, mended = found.stock, found.mended
  found.again = again = runs.run(settings, at("again"), runs.STOCK,
                                 at("mended"), pairing.unequal(stock, mended))
  found.rows = rows.rows(stock, mended, tolerance, again)
  rows.same_twice(stock, again, mended, found.rows)
  rows.judge_given(found.rows)
  said = rows.of_texts(stock, mended, again)
  if any(others.gather(bool(said) and not found.differing)):
    found.mended_again = runs.run(settings, at("mended_again"), part)
    said = rows.of_texts(stock, mended, again, found.mended_again)
  if not any(r.kind in (rows.ONLY_MENDED, rows.ONLY_STOCK)
             for r in found.rows) or stock.status == mended.status:
    found.rows += said
  patches = _patches(ordinary.functions(settings, at("ordinary"), part))

  def restored(probe: why.Probe, gone: Sequence[str]) -> why.Restored:
    found.searched.append(f"{probe.kind} {probe.patch}")
    others.gather("again")
    run = runs.run(settings, at(f"without{len(found.searched)}"),
                   _without(gone, patches), cache=at("cache"))
    return why.as_on_stock(stock, mended, run, found.rows, again)

  agree = lambda probe: next(filter(None, others.gather(probe)), "")
  answers = why.search(found.rows, patches, restored, agree)
  answer = why.Answer([])
  for row in found.differing:
    if row.key in answers or row.follows:
      answer = answers.get(row.key, answer)
      row.why = why.said(answer.patches, page_of)
      row.confirmed, row.proof = answer.confirmed, answer.proof


def _without(gone: Sequence[str], patches: why.Patches) -> str:
  """The value of JAX_MEND that leaves out these patches."""
  if len(gone) == len(patches.ids):
    return runs.STOCK
  return ",".join([*(p for p in patches.ids if p not in gone),
                   *(f"-{p}" for p in gone)])


def _patches(ordinary_ones: set[str]) -> why.Patches:
  table, known = installed.table_for(installed.find()), tables.index()
  return why.Patches(
      table.patches, frozenset(evidence.silent(evidence.pieces_of(table))),
      {p: known["patches"][p]["needs"] for p in table.patches},
      frozenset(ordinary_ones))


def page_of(patch: str) -> str:
  """The page about a patch, in the project's repository."""
  pages = tables.index()["pages"]
  return pages.get(patch) or pages.get(patch.partition("/")[0], "")


def require_both() -> None:
  """Refuses a jax that can't be run both stock and mended.

  Raises:
    NotApplied: says why.
  """
  if asked.is_off():
    raise NotApplied("JAX_MEND=0 is set, and one of the sides is mended.",
                     "unset JAX_MEND")
  jax = installed.find()
  if jax.by_wheel:
    raise NotApplied(
        "This jax was mended when its wheel was built, so there is no stock "
        "one.", f"{sys.executable} -m pip install --force-reinstall --no-deps "
        f"jax=={jax.version.partition('+')[0]}")
  active.activate()
