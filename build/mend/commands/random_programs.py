# SPDX-License-Identifier: Apache-2.0
"""`build.py fuzz`: random programs in shard_map, against an emulation."""

from __future__ import annotations

import argparse
import pathlib

from mend.commands.options import BASE, flag, positive
from mend.ground.arguments import Command
from mend.ground.report import Verdict
from mend.proof import pools
from mend.releases import bases
from mend.suites import fuzzing


def _fuzz(args: argparse.Namespace) -> Verdict:
  return fuzzing.fuzz(fuzzing.Request(
      args.programs, args.seed, args.jobs,
      pathlib.Path(args.output_path).absolute()), bases.chosen(args.base))


COMMANDS = (
    Command("fuzz", _fuzz, "compares random programs with an emulation",
            "fuzz --base=0.12.0.1 --programs=500 --seed=1000", (
        BASE,
        flag("--programs", "number of programs, on each release", type=positive,
             default=100, metavar="N"),
        flag("--seed", "of the first program; the others count up from it",
             type=int, default=0, metavar="S"),
        flag("--jobs", "number of processes at a time", type=positive,
             default=pools.workers(), metavar="N"),
        flag("--output_path", "keeps the results, so that a stopped run can "
             "continue, and the programs that fail",
             default=str(bases.ROOT / "dist" / "fuzz"), metavar="DIR"))),
)
