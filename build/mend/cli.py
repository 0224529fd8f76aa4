"""The commands of build/build.py."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
import functools
import json
import os
import pathlib
import shutil
import signal
import sys
import threading
from typing import Any, NoReturn

from mend.editing import patches
from mend.ground import arguments, report
from mend.ground.arguments import USERS, Command, Option
from mend.ground.errors import MendError
from mend.ground.report import Verdict
from mend.house import checking, docs
from mend.proof import (bazel, building, clients, conformance, reproduce,
                        testing, upstream)
from mend.releases import bases, interpreters, source
from mend.trees import onto, tree
from mend.upkeep import maintain, outlook

COMMAND = arguments.PROGRAM
_TIME = 120.0  # seconds for one of upstream's tests


def _build(args: argparse.Namespace) -> Verdict:
  return building.build_wheels(building.Request(
      args.wheels, pathlib.Path(args.output_path).absolute(),
      args.python_version, args.patches, not args.no_proof),
                               bases.chosen(args.base))


def _apply(args: argparse.Namespace) -> Verdict:
  if bool(args.tree) == bool(args.output_path):
    raise MendError("apply needs one of --output_path=DIR (a new tree) and "
                    "--tree=DIR (an existing one).",
                    f"{COMMAND} apply --base=0.6.0 --output_path=DIR")
  base = bases.one(args.base)
  target = pathlib.Path(args.tree or args.output_path).absolute()
  if args.output_path:
    tree.require_empty(target)
  origin = source.pristine(base)
  series = building.chosen_series(args.patches)
  result = tree.mended(series, base, origin,
                       checkout=target if args.tree else None,
                       part=patches.is_part(series, patches.load(), base))
  for name in sorted(result.files):
    report.say(f"{'edit' if name in result.edited else 'add '} {name}")
  report.say(f"{len(result.patches)} patches, {result.edits} edits in "
             f"{len(result.edited)} files, {len(result.added)} new files.")
  if args.dry_run:
    return Verdict("dry run, nothing written.")
  python = interpreters.for_base(base)
  if args.tree:
    onto.write_onto(result, origin, target, python)
  else:
    tree.write_copy(result, origin, target, python)
  return Verdict(f"mended jax {result.version}: {target}")


def _only_with(args: argparse.Namespace, flag: str,
               *others: tuple[str, object]) -> None:
  """Refuses options that mean nothing without `flag`, instead of ignoring."""
  if getattr(args, flag) is not None:
    return
  for name, default in others:
    if getattr(args, name) != default:
      raise MendError(f"--{name} goes with --{flag}, which was not given.",
                      f"{COMMAND} {args.command} --{flag}=... --{name}, or "
                      f"leave --{name} away")


def _check(args: argparse.Namespace) -> Verdict:
  _only_with(args, "candidate", ("no_tests", False), ("write", False))
  if args.candidate:
    return outlook.check(args.candidate, not args.no_tests, args.write)
  return checking.check(bases.chosen(args.base or "all"), args.record,
                        [pathlib.Path(p) for p in args.against])


def _docs(args: argparse.Namespace) -> Verdict:
  return docs.write()


def _status(args: argparse.Namespace) -> Verdict:
  return checking.status(args.json)


def _reproduce(args: argparse.Namespace) -> Verdict:
  python = reproduce.found(
      args.python or shutil.which("python3") or sys.executable)
  what = reproduce.describe(python)
  items = reproduce.collect(patches.load())
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
  return Verdict(words, f"{COMMAND} build --wheels=jax-mend, or --wheels=jax "
                 "--base=V; then install the wheel")


def _with_pythons(args: argparse.Namespace) -> tuple[
    Sequence[bases.Base], Sequence[bases.Base]]:
  """The bases to test, and those that this machine has no Python for.

  Raises:
    MendError: those were asked for by name or as `all`, or nothing is left.
  """
  asked = bases.chosen(args.base or "all")
  here, others = interpreters.split(asked, args.python_version)
  if others and (args.base or not here):
    raise interpreters.missing(others, args.python_version)
  return here, others


def _test(args: argparse.Namespace) -> Verdict:
  whose = "upstream" if args.clients is None else "clients"
  _only_with(args, "upstream", ("only", None))
  _only_with(args, "clients", ("sources", None))
  _only_with(args, whose, ("write", False), ("time", _TIME), ("share", 1))
  if args.clients is not None:
    return clients.compare_wheels(clients.Request(
        args.clients, pathlib.Path(args.sources) if args.sources else None,
        args.time, args.write, args.share), bases.chosen(args.base))
  if args.upstream:
    return upstream.compare_wheels(upstream.Request(
        pathlib.Path(args.upstream), args.only or [], args.time, args.patches,
        args.each, args.write, args.share), bases.chosen(args.base))
  if args.array_api:
    return conformance.compare_wheels(pathlib.Path(args.array_api),
                                      bases.chosen(args.base), args.time)
  chosen, left_out = _with_pythons(args)
  if args.each:
    return testing.run_each(chosen, [*args.tests, *(args.patches or ())],
                            args.python_version)
  return testing.run_tests(
      chosen, args.tests, args.python_version, args.patches,
      [functools.partial(checking.project_checks, chosen),
       functools.partial(clients.run_programs, chosen)], args.live, left_out)


def _names(text: str) -> list[str]:
  return [name.strip() for name in text.split(",") if name.strip()]


def _positive(text: str) -> int:
  if int(text) < 1:
    raise ValueError
  return int(text)


def _flag(name: str, text: str, **settings: Any) -> Option:
  return name, {"help": text, **settings}


_KNOWN = ", ".join(b.version for b in bases.all_bases())
_BASE = _flag("--base", f"a base release ({_KNOWN}), a list a,b, or all; "
              "without it the newest that the running Python supports",
              metavar="V")
_EVERY = _flag("--base", f"a base release ({_KNOWN}), a list a,b, or all; "
               "without it every one that a Python here supports", metavar="V")
_PATCHES = _flag("--patches", "only these patches, a,b, with what they need",
                 type=_names, metavar="A,B")
_OUTPUT = "the folder to write to"
_JSON = _flag("--json", "for machines", action="store_true")
_PYTHON = _flag("--python_version", "such as 3.12: build and prove with it",
                metavar="V")
COMMANDS = (
    Command("build", _build, "builds the wheel and proves it",
            "build --wheels=jax --base=0.6.0", (
        _flag("--wheels", "jax, or jax-mend (one wheel for all bases, proven "
              "on this one)", default="jax"), _BASE,
        _flag("--output_path", _OUTPUT, default=str(bases.ROOT / "dist"),
              metavar="DIR"), _PYTHON, _PATCHES,
        _flag("--no_proof", "only build; the reports' programs are not run",
              action="store_true")), USERS),
    Command("reproduce", _reproduce, "which known defects a Python's jax has",
            "reproduce --python=.venv/bin/python", (
        _flag("--python", "the Python to look at; python3 on PATH without it",
              metavar="PATH"), _JSON), USERS),
    Command("status", _status, "a table of patches and bases",
            "status --json", (_JSON,), USERS),
    Command("apply", _apply, "writes the mended source tree",
            "apply --base=0.6.0 --output_path=DIR", (
        _BASE, _flag("--output_path", _OUTPUT, metavar="DIR"),
        _flag("--tree", "an unmodified jax source tree, edited in place",
              metavar="DIR"),
        _flag("--dry_run", "write nothing", action="store_true"), _PATCHES),
            USERS),
    Command("test", _test, "the project's tests, upstream's or other "
            "libraries'", "test --base=0.6.0", (
        _flag("tests", "test files or patch names; all without any", nargs="*",
              metavar="TEST"), _EVERY, _PYTHON,
        _flag("--upstream", "a jax source checkout", metavar="DIR"),
        _flag("--only", "with --upstream: these test files; those that the "
              "patches name without it", nargs="+", metavar="FILE"),
        _flag("--clients", "other libraries' own tests: a,b, or all", nargs="?",
              type=_names, const=[], metavar="a,b"),
        _flag("--sources", "with --clients: a folder with checkouts of those "
              "whose source distribution has no tests", metavar="DIR"),
        _flag("--array-api", "a checkout of data-apis/array-api-tests, run on "
              "both wheels", metavar="DIR"),
        _flag("--time", "seconds for one test of theirs", type=float,
              default=_TIME, metavar="S"),
        _flag("--share", "one test of theirs in N; with --upstream of each "
              "file, another share for each patch", type=_positive,
              default=1, metavar="N"),
        _PATCHES,
        _flag("--each", "each patch alone, with what it depends on: its own "
              "tests", action="store_true"),
        _flag("--live", "on a stock jax that jax-mend mends",
              action="store_true"),
        _flag("--write", f"to {upstream.DOCUMENT} or {clients.DOCUMENT}",
              action="store_true")), USERS),
    Command("check", _check, "checks every edit on every base, and originality",
            "check --base=0.6.0", (
        _EVERY, _flag("--record", "you have reviewed the definitions: keep "
                      "their hashes", action="store_true"),
        _flag("--against", "a checkout of upstream (jax, pytorch/xla): compare "
              "our lines with its tests and versions too; may be repeated",
              action="append", default=[], metavar="DIR"),
        _flag("--candidate", "releases a,b that are no bases, or a source "
              "tree", type=_names, metavar="V"),
        _flag("--no_tests", "with --candidate: only the edits",
              action="store_true"),
        _flag("--write", "with --candidate: to docs/candidates.md",
              action="store_true"))),
    Command("docs", _docs, "rewrites the generated parts of the "
            "pages; minutes where a proof isn't remembered", "docs"),
    *maintain.COMMANDS,
    *bazel.COMMANDS,
)


def _parser() -> arguments.Parser:
  version = (f"Mend, release {bases.release()}: jax-BASE+mend."
             f"{bases.release()} for BASE {_KNOWN}")
  return arguments.parser(__doc__ or "", version, COMMANDS)


def _stopped(*_: object) -> NoReturn:
  raise KeyboardInterrupt


def main(argv: Sequence[str]) -> int:
  args = _parser().parse_args(argv)
  report.verbose = args.verbose
  if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGTERM, _stopped)  # so that nothing is left behind
  try:
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
    return _fail(args.command, str(e), "see that the folders named exist and "
                 "may be written (--output_path, $MEND_CACHE), and that the "
                 "disk has room")
  except KeyboardInterrupt:
    print("FAILED: stopped. Next: run it again; it recovers", file=sys.stderr)
    return 130


def _fail(command: str, what: str, next_step: str) -> int:
  *before, last = what.splitlines() or [""]
  print("\n".join([*before, f"FAILED: {command}: {last} Next: {next_step}"]),
        file=sys.stderr)
  return 2
