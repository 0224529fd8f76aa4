"""The commands for maintainers: export, new, retire, add_base."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
import pathlib
from typing import Any

from mend import (bases, candidates, drift, export, lint, outlook, patches,
                  report, source, upkeep)
from mend.errors import MendError

_COMMAND = "python3 build/build.py"
Option = tuple[str, dict[str, Any]]


def _export(args: argparse.Namespace) -> int:
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
  report.say(f"\n{len(names)} commits for jax {base.version}: {target}\n"
             f"Apply them: git am --keep-non-patch '{target}'/*.patch\n"
             "Nothing was pushed or sent. A person must read and vouch for "
             f"each before it goes upstream: see {target / export.README}")
  return 0


def _on_candidate(args: argparse.Namespace, series: Sequence[patches.Patch],
                  ) -> tuple[bases.Base, list[patches.Patch], pathlib.Path]:
  """The base, series and tree for a checkout that is no release of ours."""
  if args.base or args.tree:
    raise MendError("--candidate is a checkout by itself: neither --base nor "
                    "--tree goes with it.",
                    f"{_COMMAND} export --candidate=GIT_CHECKOUT "
                    "--output_path=DIR")
  folder = pathlib.Path(args.candidate).absolute()
  export.require_checkout(folder)
  found = candidates.find(str(folder))
  mine = [p for p, _ in candidates.adapted(series, found)]
  for state in candidates.states(mine, found):
    if state.state != drift.EXACT:
      report.say(f"{state.state.upper()}: {state.edit.label}")
  return found.base, mine, folder


def _new(args: argparse.Namespace) -> int:
  for file in upkeep.new(args.name, args.report, args.bases):
    report.say(f"wrote {file}")
  report.say(f"Next: fill these in, then {_COMMAND} check --record and "
             f"{_COMMAND} test {args.name}; see CONTRIBUTING.md")
  return 0


def _retire(args: argparse.Namespace) -> int:
  for line in upkeep.retire(args.name, args.landed):
    report.say(line)
  report.say(f"Next: {_COMMAND} docs, then {_COMMAND} test")
  return 0


def _add_base(args: argparse.Namespace) -> int:
  upkeep.add_base(args.version)
  status = outlook.check([args.version], not args.no_tests, False)
  report.say(f"\nRecorded in build/bases.toml.\nNext: correct the edits that "
             f"are not exact, then {_COMMAND} check --base={args.version} "
             f"--record and {_COMMAND} test --base={args.version}")
  return status


def _lint(args: argparse.Namespace) -> int:
  del args
  return 0 if all(good for _, good in lint.results()) else 1


_BASE = ("--base", {"help": "a base release"})
COMMANDS: tuple[tuple[str, Callable[[argparse.Namespace], int], str,
                      tuple[Option, ...]], ...] = (
    ("export", _export, "writes one commit per patch, for git am", (
        ("names", {"nargs": "*", "metavar": "PATCH",
                   "help": "only these patches"}), _BASE,
        ("--output_path", {"required": True, "help": "a new folder"}),
        ("--tree", {"help": "a clean git checkout of jax at the base's tag: "
                    "adds the change log and the Bazel files",
                    "metavar": "GIT_CHECKOUT"}),
        ("--candidate", {"help": "instead: a clean git checkout of no base, "
                         "such as upstream's main; the edits of the base that "
                         "fits best are made there",
                         "metavar": "GIT_CHECKOUT"}))),
    ("lint", _lint, "ruff and mypy, as `test` runs them", ()),
    ("new", _new, "starts a patch", (
        ("name", {"metavar": "NAME"}),
        ("--report", {"default": "jax#0", "help": "such as jax#28193"}),
        ("--bases", {"default": ">=0.5.3", "help": "such as '>=0.6,<0.12'",
                     "metavar": "SPECIFIER"}))),
    ("retire", _retire, "upstream has it: takes a patch out of the series", (
        ("name", {"metavar": "NAME"}),
        ("--landed", {"required": True, "metavar": "V",
                      "help": "the first release that has it"}))),
    ("add_base", _add_base, "fetches, hashes, records and looks at a release", (
        ("version", {"metavar": "V"}),
        ("--no_tests", {"action": "store_true",
                        "help": "only look at the edits"}))),
)
