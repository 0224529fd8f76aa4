"""The commands for maintainers: export, new, retire, new_release."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
import pathlib

from mend.editing import patches
from mend.ground import report
from mend.ground.arguments import Command
from mend.ground.errors import MendError
from mend.ground.report import Verdict
from mend.house import lint
from mend.releases import bases, source
from mend.trees import drift, export, git
from mend.upkeep import (
    candidate_report, candidates, lifecycle, new_release)

_COMMAND = "python3 build/build.py"


def _export(args: argparse.Namespace) -> Verdict:
  series: Sequence[patches.Patch] = patches.load()
  if args.names:
    series = patches.select(series, args.names)
  target = pathlib.Path(args.output_path).absolute()
  if args.candidate:
    base, series, origin = _on_candidate(args, series)
    checkout: pathlib.Path | None = origin
  else:
    base = bases.one(args.base)
    origin = source.pristine(base)
    checkout = pathlib.Path(args.tree).absolute() if args.tree else None
  with report.step(f"exporting for jax {base.version}"):
    names = export.export(series, base, origin, target, checkout)
  for name in names:
    report.say(name)
  report.say(f"\nApply them: git am --keep-non-patch '{target}'/*.patch\n"
             "Nothing was pushed or sent. A person must read and vouch for "
             f"each before it goes upstream: see {target / export.README}")
  return Verdict(f"{report.plural(len(names), 'commit')} for jax "
                 f"{base.version}: {target}")


def _on_candidate(args: argparse.Namespace, series: Sequence[patches.Patch],
                  ) -> tuple[bases.Base, list[patches.Patch], pathlib.Path]:
  """The base, series and tree for a checkout that is no release of ours."""
  if args.base or args.tree:
    raise MendError("--candidate is a checkout by itself: neither --base nor "
                    "--tree goes with it.",
                    f"{_COMMAND} export --candidate=GIT_CHECKOUT "
                    "--output_path=DIR")
  folder = pathlib.Path(args.candidate).absolute()
  git.require_checkout(folder)
  found = candidates.find(str(folder))
  mine = [p for p, _ in candidates.adapted(series, found)]
  for state in candidates.states(mine, found):
    if state.state != drift.EXACT:
      report.say(f"{state.state.upper()}: {state.edit.label}")
  return found.base, mine, folder


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
  return Verdict("ruff and mypy are content.")


_BASE = ("--base", {"help": "a base release", "metavar": "V"})
COMMANDS = (
    Command("export", _export, "writes one commit per patch, for git am",
            "export --base=0.12.0.1 --output_path=DIR", (
        ("names", {"nargs": "*", "metavar": "PATCH",
                   "help": "only these patches"}), _BASE,
        ("--output_path", {"required": True, "help": "a new folder",
                           "metavar": "DIR"}),
        ("--tree", {"help": "a clean git checkout of jax at the base's tag: "
                    "adds the change log and the Bazel files",
                    "metavar": "GIT_CHECKOUT"}),
        ("--candidate", {"help": "instead: a clean git checkout of no base, "
                         "such as upstream's main; the edits of the base that "
                         "fits best are made there",
                         "metavar": "GIT_CHECKOUT"}))),
    Command("lint", _lint, "ruff and mypy, as `test` runs them", "lint"),
    Command("new", _new, "starts a patch",
            "new varying/name --report=jax#28193", (
        ("name", {"metavar": "FAMILY/NAME"}),
        ("--report", {"default": "jax#0", "help": "such as jax#28193",
                      "metavar": "ISSUE"}),
        ("--bases", {"default": ">=0.5.3", "help": "such as '>=0.6,<0.12'",
                     "metavar": "SPECIFIER"}))),
    Command("retire", _retire, "upstream has it: takes a patch out of the "
            "series", "retire varying/loops --landed=0.12.1", (
        ("name", {"metavar": "FAMILY/NAME"}),
        ("--landed", {"required": True, "metavar": "V",
                      "help": "the first release that has it"}))),
    Command("new_release", _new_release, "takes a release in: fetches, "
            "hashes, records, looks, runs a sample", "new_release 0.12.1", (
        ("version", {"metavar": "V"}),
        ("--no_tests", {"action": "store_true",
                        "help": "only look at the edits"}))),
)
