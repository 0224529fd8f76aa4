# SPDX-License-Identifier: Apache-2.0
"""The commands for maintainers: new, retire, new_release."""

from __future__ import annotations

import argparse

from mend.editing import patches
from mend.ground import report
from mend.ground.arguments import Command
from mend.ground.report import Verdict
from mend.house import lint
from mend.upkeep import candidate_report, lifecycle, new_release

_COMMAND = "python3 build/build.py"


def _new(args: argparse.Namespace) -> Verdict:
  for file in lifecycle.new(args.name, args.report, args.bases):
    report.say(f"wrote {file}")
  return Verdict(f"fill these in, then {_COMMAND} check --record and "
                 f"{_COMMAND} test {args.name}; see CONTRIBUTING.md")


def _retire(args: argparse.Namespace) -> Verdict:
  lifecycle.require_retirable(args.name, args.landed)
  (patch,) = (p for p in patches.load() if p.id == args.name)
  candidate_report.require_landed(patch, args.landed)
  for line in lifecycle.retire(args.name, args.landed):
    report.say(line)
  return Verdict(f"retired; then {_COMMAND} docs and {_COMMAND} test")


def _new_release(args: argparse.Namespace) -> Verdict:
  return new_release.run(args.version, not args.no_tests)


def _lint(args: argparse.Namespace) -> Verdict:
  del args
  bad = [name for name, good in lint.results() if not good]
  if bad:
    return Verdict(f"{', '.join(bad)}.", "correct what is named above")
  return Verdict("ruff, mypy and the change log are content.")


COMMANDS = (
    Command("lint", _lint, "runs ruff and mypy, and looks at the change log, "
            "as `test` does", "lint"),
    Command("new", _new, "starts a patch",
            "new varying/name --report=jax#28193", (
        ("name", {"metavar": "FAMILY/NAME"}),
        ("--report", {"default": "jax#0", "help": "such as jax#28193",
                      "metavar": "ISSUE"}),
        ("--bases", {"default": ">=0.6", "help": "such as '>=0.6,<0.12'",
                     "metavar": "SPECIFIER"}))),
    Command("retire", _retire, "removes a patch that upstream has from the "
            "series", "retire varying/loops --landed=0.12.1", (
        ("name", {"metavar": "FAMILY/NAME"}),
        ("--landed", {"required": True, "metavar": "V",
                      "help": "the first release that contains the fix"}))),
    Command("new_release", _new_release, "adds a release: records "
            "it, examines the edits, runs a sample", "new_release 0.12.1", (
        ("version", {"metavar": "V"}),
        ("--no_tests", {"action": "store_true",
                        "help": "examine the edits only"}))),
)
