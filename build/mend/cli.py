# SPDX-License-Identifier: Apache-2.0
"""The commands of build/build.py."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
import errno
import json
import os
import pathlib
import shutil
import sys

from mend.commands import export_command, random_programs, test_command
from mend.commands.options import (BASE, COMMAND, EVERY, JSON, KNOWN, OUTPUT,
                                   PATCHES, PYTHON, flag, names, only_with)
from mend.editing import patches, reproductions
from mend.ground import arguments, bootstrap, interrupts, report
from mend.ground.arguments import USERS, Command
from mend.ground.errors import MendError
from mend.ground.report import Verdict
from mend.house import anchors, checking, docs, where
from mend.proof import bazel, building, reproduce
from mend.releases import bases, interpreters, source
from mend.trees import checkout, in_place, live_table, tree
from mend.upkeep import candidate_report, maintain


def _build(args: argparse.Namespace) -> Verdict:
  if args.base is None:
    building.say_what_is_newer(bases.default_base())
  return building.build_wheels(building.Request(
      args.wheels, pathlib.Path(args.output_path).absolute(),
      args.python_version, args.patches, not args.no_proof),
                               bases.chosen(args.base))


def _apply(args: argparse.Namespace) -> Verdict:
  if bool(args.tree) == bool(args.output_path):
    raise MendError("apply needs one of --output_path=DIR (a new tree) and "
                    "--tree=DIR (an existing one).",
                    f"{COMMAND} apply --base=V --output_path=DIR")
  base = bases.one(args.base)
  target = pathlib.Path(args.tree or args.output_path).absolute()
  if args.output_path:
    tree.require_empty(target)
  origin = source.pristine(base)
  series = building.chosen_series(args.patches, base)
  part = patches.is_part(series, patches.load(), base)
  result = (checkout.mended(series, base, origin, target, part=part)
            if args.tree else tree.mended(series, base, origin, part=part))
  for name in sorted(result.files):
    line = f"{'edit' if name in result.edited else 'add '} {name}"
    (report.say if args.dry_run else report.detail)(line)
  counts = (f"{len(result.patches)} patches, {result.edits} edits in "
            f"{len(result.edited)} files, {len(result.added)} new files")
  if args.dry_run:
    return Verdict(f"dry run, nothing written: {counts}.")
  python = interpreters.for_base(base)
  if args.tree:
    in_place.write(result, origin, target, python)
  else:
    tree.write_copy(result, origin, target, python)
  report.say(f"{counts}; --verbose names each file.")
  return Verdict(f"mended jax {result.version}: {target}")


def _check(args: argparse.Namespace) -> Verdict:
  if args.places:
    return anchors.show(patches.load(), bases.all_bases())
  only_with(args, "candidate", ("no_tests", False), ("write", False),
            ("run", False))
  if args.candidate:
    return candidate_report.check(args.candidate, not args.no_tests,
                                  args.write, args.run)
  every = "all" if args.base is None else args.base
  return checking.check(bases.chosen(every), args.record,
                        [pathlib.Path(p) for p in args.against])


def _tables(args: argparse.Namespace) -> Verdict:
  changed = live_table.write(patches.load())
  count = len(bases.releases())
  return Verdict(f"live/table: {report.plural(changed, 'file')} changed, of "
                 f"{report.plural(count, 'release')} and the index.")


def _docs(args: argparse.Namespace) -> Verdict:
  return docs.write_quick() if args.quick else docs.write()


def _status(args: argparse.Namespace) -> Verdict:
  return checking.status(args.json)


def _reproduce(args: argparse.Namespace) -> Verdict:
  python = reproduce.absolute_path(
      args.python or shutil.which("python3") or sys.executable)
  what = reproduce.describe(python)
  items = reproductions.collect(patches.load())
  outcomes = reproduce.run_for(items, python, what)
  failed = sum(o.status == reproduce.FAIL for o in outcomes)
  if args.json:
    rows = [{"report": i.report, "defect": i.line, "patch": i.patch,
             "status": o.status, "seen": o.seen}
            for i, o in zip(items, outcomes)]
    report.say(json.dumps({"environment": str(what), "python": python,
                           "results": rows}, indent=1))
  else:
    report.say(f"\n{what} ({python})\n")
    report.show(("report", "regression", "result", "seen"),
                [(i.report, i.line, o.status, report.shorten(o.seen, 60))
                 for i, o in zip(items, outcomes)])
    report.say()
    report.show(("family", "defects here", "programs"),
                reproduce.by_family(items, outcomes))
  away = sum(o.status == reproduce.NOT_APPLICABLE for o in outcomes)
  words = (f"{failed} of {len(items) - away} known defects are in this "
           f"environment; {away} rows are n/a.")
  if not failed:
    return Verdict(words)
  return Verdict(words, reproduce.next_step(python, what))


COMMANDS = (
    Command("build", _build, "builds a wheel and proves it",
            "build --wheels=jax --base=0.6.0", (
        flag("--wheels", "jax, or jax-mend (one wheel for all releases, "
             "proven on this one)", default="jax"), BASE,
        flag("--output_path", OUTPUT, default=str(bases.ROOT / "dist"),
             metavar="DIR"), PYTHON, PATCHES,
        flag("--no_proof", "only build; don't run the reports' programs",
             action="store_true")), USERS),
    Command("reproduce", _reproduce, "shows a jax's known defects",
            "reproduce --python=.venv/bin/python", (
        flag("--python", "the Python to examine; python3 on PATH without it",
             metavar="PATH"), JSON), USERS),
    Command("status", _status, "prints a table of patches and releases",
            "status --json", (JSON,), USERS),
    Command("apply", _apply, "writes the mended source tree",
            "apply --base=0.6.0 --output_path=DIR", (
        BASE, flag("--output_path", OUTPUT, metavar="DIR"),
        flag("--tree", "edit this unmodified jax source tree in place",
             metavar="DIR"),
        flag("--dry_run", "write nothing", action="store_true"), PATCHES),
            USERS),
    *test_command.COMMANDS,
    Command("check", _check, "checks every edit on every release, originality",
            "check --base=0.6.0", (
        EVERY, flag("--record", "record the definitions' hashes after your "
                      "review", action="store_true"),
        flag("--against", "compare our lines with the tests and versions of "
             "this checkout of upstream (jax, pytorch/xla), too; repeatable",
             action="append", default=[], metavar="DIR"),
        flag("--places", "only print the releases on which each edit has "
             "its place", action="store_true"),
        flag("--candidate", "releases a,b that are not mended, or a source "
             "tree", type=names, metavar="V"),
        flag("--no_tests", "with --candidate: examine the edits only",
             action="store_true"),
        flag("--run", "with --candidate: run the reports' programs there, "
             "unpatched, and say what is fixed", action="store_true"),
        flag("--write", "with --candidate: write docs/proof/candidates.md; "
             "with --run, what docs/upstream.md says of main",
             action="store_true"))),
    Command("where", lambda args: where.show(args.place), "says which patches, "
            "tests and pages a file belongs to",
            "where jax/_src/varying/flow.py", (
        flag("place", "a file of ours, or of upstream's; a line of it after a "
             "colon", metavar="FILE[:LINE]"),)),
    Command("tables", _tables, "rewrites live/table, the edits that jax-mend "
            "applies", "tables"),
    Command("docs", _docs, "rewrites the generated parts of the pages "
            "(minutes, if proofs must run again)", "docs", (
        flag("--quick", "only the parts that need no run of a program",
             action="store_true"),)),
    *random_programs.COMMANDS,
    *export_command.COMMANDS,
    *maintain.COMMANDS,
    *bazel.COMMANDS,
)


def _parser() -> arguments.Parser:
  version = (f"Mend, release {bases.release()}: jax-BASE+mend."
             f"{bases.release()} for BASE {KNOWN}")
  return arguments.parser(__doc__ or "", version, COMMANDS)


def main(argv: Sequence[str]) -> int:
  args = _parser().parse_args(argv)
  report.verbose = args.verbose
  try:
    with interrupts.handled():  # so that nothing is left behind
      verdict = args.function(args)
    # Results for machines stand alone.
    machine = args.command == "bazel" or getattr(args, "json", False)
    print(verdict, file=sys.stderr if machine else sys.stdout, flush=True)
    return 0 if verdict.good else 1
  except MendError as e:
    return _fail(args.command, e.what, e.next_step)
  except BrokenPipeError:  # the reader, such as `head`, has seen enough
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1
  except OSError as e:
    if e.errno in (errno.ENOSPC, errno.EDQUOT):
      return _fail(args.command, str(e), bootstrap.FULL)
    return _fail(args.command, str(e), "see that the folders named exist and "
                 "may be written (--output_path, $MEND_CACHE), and that the "
                 "disk has room")
  except KeyboardInterrupt:
    return interrupts.say_stopped()


def _fail(command: str, what: str, next_step: str) -> int:
  *before, last = what.splitlines() or [""]
  verdict = f"FAILED: {command}: {last.strip()} Next: {next_step}"
  print("\n".join([*before, verdict]), file=sys.stderr)
  return 2
