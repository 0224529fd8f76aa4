# SPDX-License-Identifier: Apache-2.0
"""`build.py export`: commits for upstream, or the whole series as commits."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
import pathlib

from mend.commands.options import COMMAND, patch_name
from mend.editing import patches, sendable, upstream_alone
from mend.ground import report
from mend.ground.arguments import Command
from mend.ground.errors import MendError
from mend.ground.report import Verdict
from mend.releases import bases, source
from mend.releases.bases import Base
from mend.trees import drift, export, git, sending, stand_ins
from mend.upkeep import candidates, releases, verifying
from mend.upstream import commits, main_branch

_BY_A_PERSON = ("\nApply them: git am --keep-non-patch '{folder}'/*.patch\n"
                "Nothing was pushed or sent. A person must read and vouch for "
                "each before it goes upstream: see {folder}/README.txt")


def _export(args: argparse.Namespace) -> Verdict:
  _check_options(args)
  args.candidate = args.candidate or args.verify
  target = pathlib.Path(args.output_path).absolute()
  series: Sequence[patches.Patch] = patches.load()
  if args.upstream or (args.candidate and not args.whole):
    return _sendable(args, series, target)
  if args.names:
    series = patches.select(series, args.names)
  if args.candidate:
    base, series, origin = _on_candidate(args.candidate, series)
    checkout: pathlib.Path | None = origin
  else:
    base = bases.one(args.base)
    origin = source.pristine(base)
    checkout = pathlib.Path(args.tree).absolute() if args.tree else None
  with report.step(f"exporting for jax {base.version}"):
    names = export.export(series, base, origin, target, checkout,
                          changelog=args.changelog)
  said = _said(names, base, target)
  if not args.verify:
    return said
  assert checkout
  return verifying.verify_series(target, names, checkout)


def _check_options(args: argparse.Namespace) -> None:
  if args.candidate and (args.base or args.tree):
    raise MendError("--candidate is a checkout by itself: neither --base nor "
                    "--tree goes with it.",
                    f"{COMMAND} export --candidate=GIT_CHECKOUT "
                    "--output_path=DIR")
  if args.verify and (args.base or args.tree or args.changelog
                      or args.candidate not in (None, args.verify)):
    raise MendError("--verify is of the commits that are written for that "
                    "checkout, and of nothing else.",
                    f"{COMMAND} export --verify=CHECKOUT --output_path=DIR")
  if args.whole and args.upstream:
    raise MendError("--upstream and --whole are different exports.",
                    "leave one of them away")


def _said(names: Sequence[str], base: Base, target: pathlib.Path) -> Verdict:
  for name in names:
    report.say(name)
  report.say(_BY_A_PERSON.format(folder=target))
  return Verdict(f"{report.plural(len(names), 'commit')} for jax "
                 f"{base.version}: {target}")


def _sendable(args: argparse.Namespace, series: Sequence[patches.Patch],
              target: pathlib.Path) -> Verdict:
  """Writes the commits that can be sent, those named or all."""
  series = upstream_alone.with_commits(series)
  chosen = _chosen(series, args.names)
  base, place = _place_of(args)
  author = git.caller(pathlib.Path.cwd())
  made, left_out = sending.all_made(chosen, base, place, args.changelog)
  _say_sizes(made)
  names: list[str] = []
  if made:
    names, conflicts = sending.write(made, base, place, target, author,
                                     in_a_row=not args.changelog)
    left_out += conflicts
  for line in left_out:
    report.say(f"LEFT OUT: {line}")
  if not names:
    raise MendError(f"No commit has its place on jax {base.version}.",
                    f"{COMMAND} check --candidate={place} --no_tests")
  said = _said(names, base, target)
  if left_out:
    return Verdict(f"{said.words}; {len(left_out)} left out",
                   "see LEFT OUT above, and correct [upstream] there")
  if not args.verify:
    return said
  main_branch.note(place)
  stand_ins.store(stand_ins.found_in(place, [
      p.upstream.commit for p in series if p.upstream.commit]))
  return verifying.verify(
      target, dict(zip(names, made)), place,
      keep=lambda passed: commits.store(
          passed, releases.passing(chosen, passed, place), place, series))


def _chosen(series: Sequence[patches.Patch],
            names: Sequence[str]) -> list[patches.Patch]:
  """The patches that are named, and those that they come after; or all.

  Raises:
    MendError: one is not known, or has no commit.
  """
  patches.require_known(series, names)
  before = [a for p in series if p.id in names and p.upstream.commit
            for a in p.upstream.commit.after]
  chosen = [p for p in series if p.id in (*names, *before) or not names and (
      p.upstream.verdict == sendable.SENDABLE)]
  if bare := [p.id for p in chosen if not p.upstream.commit]:
    raise MendError(
        f"{', '.join(bare)}: no commit for upstream, [upstream] says why.",
        "docs/upstream.md lists those that have one; --whole exports any")
  return chosen


def _say_sizes(made: Sequence[sending.Made]) -> None:
  for commit in made:
    report.say(f"{commit.patch}: {commit.added} lines of source added, "
               f"{commit.removed} removed"
               + (f"; without {', '.join(commit.without)}, which the tree "
                  "lacks" if commit.without else ""))


def _place_of(args: argparse.Namespace) -> tuple[Base, pathlib.Path]:
  """The release and the tree that the commits are for."""
  if args.candidate:
    place = pathlib.Path(args.candidate).absolute()
    git.require_checkout(place)
    return candidates.find(str(place)).base, place
  base = bases.one(args.base)
  if not args.tree:
    return base, source.pristine(base)
  place = pathlib.Path(args.tree).absolute()
  git.require_checkout(place)
  return base, place


def _on_candidate(named: str, series: Sequence[patches.Patch],
                  ) -> tuple[Base, list[patches.Patch], pathlib.Path]:
  """The base, series and tree for a checkout that is no release of ours."""
  folder = pathlib.Path(named).absolute()
  git.require_checkout(folder)
  found = candidates.find(str(folder))
  mine = [p for p, _ in candidates.adapted(series, found)]
  states = candidates.states(mine, found)
  for state in states:
    if state.state != drift.EXACT:
      report.say(f"{state.state.upper()}: {state.edit.label}")
  good = candidates.applicable(mine, found.base, states)
  for patch in mine:
    if patch not in good:
      report.say(f"LEFT OUT: {patch.id}: it, or what it needs, has an edit "
                 "that has no place there, or is there already")
  return found.base, good, folder


COMMANDS = (
    Command("export", _export, "writes commits for upstream, for git am",
            "export --upstream --candidate=CHECKOUT --output_path=DIR", (
        ("names", {"nargs": "*", "metavar": "PATCH", "type": patch_name,
                   "help": "only these patches"}),
        ("--base", {"help": "a release", "metavar": "V"}),
        ("--output_path", {"required": True, "help": "a new folder",
                           "metavar": "DIR"}),
        ("--upstream", {"action": "store_true", "help": "only the commits "
                        "that can be pull requests, each alone; what "
                        "--candidate means without --whole"}),
        ("--whole", {"action": "store_true", "help": "the whole series, one "
                     "commit a patch; what --base means without --upstream"}),
        ("--changelog", {"action": "store_true", "help": "add bullets to the "
                         "change log; of --upstream, they don't apply one "
                         "after another"}),
        ("--tree", {"help": "a clean git checkout of jax at the release's "
                    "tag: add the tests and the Bazel files",
                    "metavar": "GIT_CHECKOUT"}),
        ("--verify", {"help": "as --candidate, then make upstream's own "
                      "checks of each commit: ruff, copyright, types, "
                      "collection, tests red and green; with --whole: "
                      "ruff, Bazel's graph and collection, of the series",
                      "metavar": "GIT_CHECKOUT"}),
        ("--candidate", {"help": "instead: a clean git checkout of no release, "
                         "such as upstream's main",
                         "metavar": "GIT_CHECKOUT"}))),
)
