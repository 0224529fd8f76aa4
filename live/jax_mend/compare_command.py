# SPDX-License-Identifier: Apache-2.0
"""The command line of `python -m jax_mend compare`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
import json
import math
import os
import re
import sys

from jax_mend import compare_report, comparison, differences, processes, runs
from jax_mend.errors import Refused
from jax_mend.progress import Progress
from jax_mend.together import Alone, Together
from jax_mend.why import MOST

USAGE = "compare [OPTION...] [-m MODULE | -c CODE | SCRIPT] [ARG...]"
_RUNS = 5 + MOST  # at most: two each, those of the search, and a small one
_ONCE = "run twice, and up to eight times where something differs"
_VALUED = {"--json", "--timeout", "--rtol", "--atol", "--store", "--rank",
           "--meet"}


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
      prog="python -m jax_mend compare", usage=f"python -m jax_mend {USAGE}",
      allow_abbrev=False, description="Runs a program stock and mended, and "
      "tells what differs: how it ends, its output, the programs that JAX "
      "compiles and the values that they return; and the patch that each "
      f"difference comes of. The program is {_ONCE}.",
      epilog="exit status: 0 the same; 1 it differs; 2 it can't be compared")
  add = parser.add_argument
  add("--yes", action="store_true", help="don't ask before running it")
  add("--json", metavar="FILE", help="write all that was found to a file")
  add("--show", action="store_true", help="show what the program prints as it "
      "runs (on a terminal its standard error is shown anyway)")
  add("--timeout", type=_positive, default=600., metavar="SECONDS",
      help="a run that takes longer hangs (600)")
  add("--rtol", type=_number, help="the relative difference that counts as "
      "none; without it the dtype's")
  add("--atol", type=_number, help="the absolute difference that counts as "
      "none")
  add("--store", default="1GB", metavar="SIZE", type=_bytes,
      help="keep so many bytes of values; of others digest, largest and norm "
      "(1GB)")
  add("--rank", metavar="K/N", help="this is process K, from 0, of N of one "
      "program")
  add("--meet", metavar="DIR", help="a new folder that all ranks see")
  return parser


def _number(text: str) -> float:
  """A number that is not negative."""
  found = float(text)
  if not 0 <= found < math.inf:
    raise argparse.ArgumentTypeError(f"{text}: not a number from 0 on")
  return found


def _positive(text: str) -> float:
  found = _number(text)
  if not found:
    raise argparse.ArgumentTypeError("0: more than none is needed")
  return found


def _bytes(text: str) -> int:
  units = {"KB": 10**3, "MB": 10**6, "GB": 10**9}
  unit = units.get(text[-2:].upper(), 1)
  return int(_number(text[:-2] if unit > 1 else text) * unit)


def split(args: Sequence[str]) -> tuple[list[str], list[str]]:
  """The options of compare, and the program with its arguments."""
  at = 0
  while at < len(args) and (args[at].startswith("--") or args[at] == "-h"):
    at += 2 if args[at] in _VALUED else 1
  return [*args[:at]], [*args[at:]]


def _refuse_hidden(command: Sequence[str]) -> None:
  """Refuses options of Python that hide from it how it is to start.

  Raises:
    Refused: one is given.
  """
  for word in command:
    if not word.startswith("-") or word in ("-m", "-c", "-"):
      return
    if found := re.match(r"-[bBdiOPqsuvx]*([EIS])", word):
      raise Refused(f"-{found[1]} hides from Python how it is to start, so it "
                    "can't be recorded.", f"leave -{found[1]} away")


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
  if sys.flags.ignore_environment or sys.flags.no_site:
    raise Refused("Python was started with -E, -I or -S, which hide from it "
                  "how it is to start.", "leave them away")
  _refuse_hidden(command)
  comparison.require_both()
  terminal = sys.stderr is not None and sys.stderr.isatty()
  if not given.yes and terminal and sys.stdin and sys.stdin.isatty():
    print(f"It is {_ONCE}. Go on? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
      raise Refused("Nothing was run.", "add --yes")
  shown = (["stdout", "stderr"] if given.show else
           ["stderr"] if terminal else [])
  quiet = os.environ.get("JAX_MEND_QUIET") and not given.show
  with processes.keeping() as keeper:
    settings = runs.Settings(
        command, keeper, processes.Input(keeper.folder), given.timeout,
        given.store, os.getcwd(), Progress(not quiet, shown, _RUNS))
    found = comparison.compare(
        settings, keeper.folder,
        differences.Tolerance(given.rtol, given.atol), _others(given))
    text, facts = compare_report.lines(found), compare_report.facts(found)
  print("\n".join(text))
  if given.json:
    with open(given.json, "w", encoding="utf-8") as file:
      json.dump(facts, file, indent=1)
  return found.code()


def _others(given: argparse.Namespace) -> Alone | Together:
  if not given.rank:
    return Alone()
  rank, _, of = given.rank.partition("/")
  if not given.meet or not rank.isdecimal() or not of.isdecimal() or (
      int(rank) >= int(of)):
    raise Refused(f"--rank={given.rank} wants K/N, K from 0 to N - 1, and "
                  "--meet=DIR.", "--rank=0/2 --meet=/shared/new-folder")
  return Together(int(rank), int(of), given.meet, given.timeout)
