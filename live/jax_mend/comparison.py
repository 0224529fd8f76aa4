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

import argparse
from collections.abc import Sequence
import dataclasses
import json
import os
import sys
import tempfile
from typing import Any

from jax_mend import (active, asked, compare_report, evidence, installed,
                      ordinary, pairing, runs, why)
from jax_mend import table as tables
from jax_mend.errors import NotApplied, Refused
from jax_mend.runs import Run
from jax_mend.together import Alone, Together

USAGE = "compare [OPTION...] [-m MODULE | -c CODE | SCRIPT] [ARG...]"
SAME, DIFFERS, FAILED = 0, 1, 2


@dataclasses.dataclass
class Comparison:
  """The result of comparing two runs.

  Attributes:
    repeated: whether the stock jax was run a second time.
    searched: the runs that were made to find the reasons, without "cut P": the
      patch P and all after it; "alone P": it and those that need it; "above P":
      these.
  """
  stock: Run
  mended: Run
  rows: list[pairing.Row]
  repeated: bool = False
  searched: list[str] = dataclasses.field(default_factory=list)

  @property
  def differing(self) -> list[pairing.Row]:
    return [r for r in self.rows if r.kind != pairing.SAME]

  @property
  def outcomes(self) -> list[tuple[str, str, str]]:
    """The tests with another outcome: its name, stock's and mended."""
    one, two = self.stock.outcomes, self.mended.outcomes
    return [(t, one.get(t, "not run"), two.get(t, "not run"))
            for t in {**one, **two} if one.get(t) != two.get(t)]

  @property
  def ends_alike(self) -> bool:
    one, two = self.stock, self.mended
    return (one.status, one.error.get("type"), one.error.get("text")) == (
        two.status, two.error.get("type"), two.error.get("text"))

  def code(self) -> int:
    """The exit status."""
    if not (self.stock.recorded and self.mended.recorded):
      return FAILED
    if not self.ends_alike or self.outcomes:
      return DIFFERS
    if self.differing:
      return FAILED if all(r.again for r in self.differing) else DIFFERS
    return SAME


def compare(settings: runs.Settings, folder: str,
            tolerance: pairing.Tolerance,
            others: Alone | Together | None = None) -> Comparison:
  """Runs a program stock and mended, and says what differs, and why.

  Args:
    settings: the program.
    folder: for what is recorded.
    tolerance: the differences of values that count as none.
    others: the other processes of the same program.
  """
  others = others or Alone()
  part = os.environ.get("JAX_MEND", "") if asked.words() else "1"
  at = lambda name: os.path.join(folder, name)
  others.gather("stock")
  stock = runs.run(settings, at("stock"), runs.STOCK)
  others.gather("mended")
  mended = runs.run(settings, at("mended"), part, at("stock"), None,
                    evidence=True)
  found = Comparison(stock, mended, pairing.rows(stock, mended, tolerance))
  if any(others.gather(bool(found.differing or not found.ends_alike))):
    again = runs.run(settings, at("again"), runs.STOCK, at("mended"),
                     pairing.unequal(stock, mended))
    found.repeated = True
    found.rows = pairing.rows(stock, mended, tolerance, again)
    pairing.same_twice(stock, again, found.rows)
    _explain(found, settings, at, part, others)
  pairing.after_others(found.rows)
  return found


def _explain(found: Comparison, settings: runs.Settings, at: Any, part: str,
             others: Alone | Together) -> None:
  """Writes into the rows which patch they come of."""

  patches = _patches(ordinary.functions(settings, at("ordinary"), part))

  def restored(probe: why.Probe,
               gone: Sequence[str]) -> why.Restored:
    found.searched.append(f"{probe.kind} {probe.patch}")
    others.gather("again")
    words = why.words(gone)
    if part != "1":
      words = f"{part},{words}"
    if len(gone) == len(patches.ids):
      words = runs.STOCK
    run = runs.run(settings, at(f"without{len(found.searched)}"), words)
    return why.as_on_stock(found.stock, run, found.rows)

  def agree(probe: str) -> str:
    return next(filter(None, others.gather(probe)), "")

  answers = why.search(found.rows, patches, restored, agree)
  answer = why.Answer([])
  for row in found.rows:
    if row.key in answers or row.follows:
      answer = answers.get(row.key, answer)
      row.why = why.said(answer.patches, page_of)
      row.confirmed, row.proof = answer.confirmed, answer.proof


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


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
      prog="python -m jax_mend compare", usage=f"python -m jax_mend {USAGE}",
      allow_abbrev=False, description="Runs a program stock and mended, and "
      "tells what differs: how it ends, its output, the programs that JAX "
      "compiles and the values that they return; and the patch that each "
      "difference comes of. The program runs twice, and up to seven times "
      "where something differs.",
      epilog="exit status: 0 the same; 1 it differs; 2 it can't be compared")
  add = parser.add_argument
  add("--yes", action="store_true", help="don't ask before running it")
  add("--json", metavar="FILE", help="write all that was found to a file")
  add("--timeout", type=float, default=600., metavar="SECONDS",
      help="a run that takes longer hangs (600)")
  add("--rtol", type=float, help="the relative difference that counts as none; "
      "without it the dtype's")
  add("--atol", type=float, help="the absolute difference that counts as none")
  add("--store", default="1GB", metavar="SIZE", type=_bytes,
      help="keep so many bytes of values; of others checksum, largest and norm "
      "(1GB)")
  add("--rank", metavar="K/N", help="this is process K, from 0, of N of one "
      "program")
  add("--meet", metavar="DIR", help="a new folder that all ranks see")
  return parser


def _bytes(text: str) -> int:
  units = {"KB": 10**3, "MB": 10**6, "GB": 10**9}
  unit = units.get(text[-2:].upper(), 1)
  return int(float(text[:-2] if unit > 1 else text) * unit)


def split(args: Sequence[str]) -> tuple[list[str], list[str]]:
  """The options of compare, and the program with its arguments."""
  valued = {"--json", "--timeout", "--rtol", "--atol", "--store", "--rank",
            "--meet"}
  at = 0
  while at < len(args) and (args[at].startswith("--") or args[at] == "-h"):
    at += 2 if args[at] in valued else 1
  return [*args[:at]], [*args[at:]]


def run(args: Sequence[str]) -> int:
  """Runs the command.

  Raises:
    NotApplied: jax can't be mended here, or was by its wheel.
    Refused: nothing is to be run, or the user didn't want it.
  """
  options, command = split(args)
  given = _parser().parse_args(options)
  if not command:
    raise Refused("compare was given nothing to run.",
                  f"{sys.executable} -m jax_mend {USAGE}")
  require_both()
  if not given.yes and sys.stdin.isatty() and sys.stderr.isatty():
    print("It is run twice, and up to seven times where something differs. Go "
          "on? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
      raise Refused("Nothing was run.", "add --yes")
  with tempfile.TemporaryDirectory(prefix="jax-mend-") as folder:
    settings = runs.Settings(command, _stdin(folder), given.timeout,
                             given.store, os.getcwd())
    found = compare(settings, folder, pairing.Tolerance(
        given.rtol, given.atol), _others(given))
    text, facts = compare_report.lines(found), compare_report.facts(found)
  print("\n".join(text))
  if given.json:
    with open(given.json, "w", encoding="utf-8") as file:
      json.dump(facts, file, indent=1)
  return found.code()


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


def _stdin(folder: str) -> str:
  """A file with the standard input, which each run is given."""
  path = os.path.join(folder, "stdin")
  with open(path, "wb") as file:
    if sys.stdin is not None and not sys.stdin.isatty():
      file.write(sys.stdin.buffer.read())
  return path


def _others(given: argparse.Namespace) -> Alone | Together:
  if not given.rank:
    return Alone()
  rank, _, of = given.rank.partition("/")
  if not given.meet or not rank.isdecimal() or not of.isdecimal() or (
      int(rank) >= int(of)):
    raise Refused(f"--rank={given.rank} wants K/N, K from 0 to N - 1, and "
                  "--meet=DIR.", "--rank=0/2 --meet=/shared/new-folder")
  return Together(int(rank), int(of), given.meet, given.timeout)
