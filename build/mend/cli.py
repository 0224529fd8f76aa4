"""The commands of build/build.py."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
import json
import os
import pathlib
import shutil
import sys
from typing import Any, NoReturn

from mend import (bases, bazel, cache, checking, docs, interpreters, maintain,
                  outlook, patches, report, reproduce, sides, source, testing,
                  tree, upstream)
from mend.errors import MendError

COMMAND = "python3 build/build.py"
Option = tuple[str, dict[str, Any]]
Command = Callable[[argparse.Namespace], int]
_TIME = 120.0  # seconds for one of upstream's tests


def _build(args: argparse.Namespace) -> int:
  if args.wheels != "jax":
    raise MendError(f"--wheels={args.wheels} is not built here, only jax; the "
                    "stock jaxlib is used.", f"{COMMAND} build --wheels=jax")
  out = pathlib.Path(args.output_path).absolute()
  tree.require_writable(out)
  out.mkdir(parents=True, exist_ok=True)  # or else now, not after the build
  status = 0
  for base in bases.chosen(args.base):
    status |= _build_one(base, out, args)
  return status


def _build_one(base: bases.Base, out: pathlib.Path,
               args: argparse.Namespace) -> int:
  python = interpreters.for_base(base, args.python_version)
  series = patches.for_base(_chosen_series(args.patches), base)
  made = sides.of(base, series=series, python=python)
  out.mkdir(parents=True, exist_ok=True)
  final = out / made.wheel.name
  with cache.whole(final) as whole:
    shutil.copyfile(made.wheel, whole)
  items = reproduce.collect(series)
  before = reproduce.remembered(items, made.pristine, f"jax {base.version}")
  after = reproduce.remembered(items, made.mended, f"jax {base.mended}")
  report.say(f"\njax {base.mended} against jax {base.version}:\n")
  report.say(report.table(("report", "regression", "pristine", "mended"),
                          reproduce.proof_rows(items, before, after)))
  failed = sum(o.status == reproduce.FAIL for o in after)
  report.say(f"\nProof: {len(items)} regressions, "
             f"{sum(o.status == reproduce.FAIL for o in before)} fail on "
             f"pristine, {failed} on mended.")
  report.say(f"Wheel: {final}\nInstall it: python3 -m pip install '{final}'\n")
  return 1 if failed or not (items or args.patches) else 0


def _chosen_series(names: list[str] | None) -> Sequence[patches.Patch]:
  series = patches.load()
  return patches.select(series, names) if names else series


def _apply(args: argparse.Namespace) -> int:
  if bool(args.tree) == bool(args.output_path):
    raise MendError("apply needs one of --output_path=DIR (a new tree) and "
                    "--tree=DIR (an existing one).",
                    f"{COMMAND} apply --base=0.6.0 --output_path=DIR")
  base = bases.one(args.base)
  target = pathlib.Path(args.tree or args.output_path).absolute()
  if args.output_path:
    tree.require_empty(target)
  origin = source.pristine(base)
  result = tree.mended(_chosen_series(args.patches), base, origin,
                       checkout=target if args.tree else None)
  for name in sorted(result.files):
    report.say(f"{'edit' if name in result.edited else 'add '} {name}")
  report.say(f"{len(result.patches)} patches, {result.edits} edits in "
             f"{len(result.edited)} files, {len(result.added)} new files.")
  if args.dry_run:
    report.say("Dry run: nothing written.")
    return 0
  python = interpreters.for_base(base)
  if args.tree:
    tree.write_onto(result, origin, target, python)
  else:
    tree.write_copy(result, origin, target, python)
  report.say(f"Mended jax {base.mended}: {target}")
  return 0


def _only_with(args: argparse.Namespace, flag: str,
               *others: tuple[str, object]) -> None:
  """Refuses options that mean nothing without `flag`, instead of ignoring."""
  if getattr(args, flag):
    return
  for name, default in others:
    if getattr(args, name) != default:
      raise MendError(f"--{name} goes with --{flag}, which was not given.",
                      f"{COMMAND} {args.command} --{flag}=... --{name}, or "
                      f"leave --{name} away")


def _check(args: argparse.Namespace) -> int:
  _only_with(args, "candidate", ("no_tests", False), ("write", False))
  if args.candidate:
    return outlook.check(args.candidate, not args.no_tests, args.write)
  return checking.check(bases.chosen(args.base or "all"), args.record)


def _docs(args: argparse.Namespace) -> int:
  return docs.write()


def _status(args: argparse.Namespace) -> int:
  return checking.status(args.json)


def _reproduce(args: argparse.Namespace) -> int:
  python = args.python or shutil.which("python3") or sys.executable
  what = reproduce.describe(python)
  items = reproduce.collect(patches.load())
  outcomes = reproduce.run_all(items, python, what)
  failed = sum(o.status == reproduce.FAIL for o in outcomes)
  if args.json:
    rows = [{"report": i.report, "defect": i.line, "patch": i.patch,
             "status": o.status, "seen": o.seen}
            for i, o in zip(items, outcomes)]
    report.say(json.dumps({"environment": what, "python": python,
                           "results": rows}, indent=1))
  else:
    report.say(f"\n{what} ({python})\n")
    report.say(report.table(
        ("report", "regression", "result", "seen"),
        [(i.report, i.line, o.status, report.shorten(o.seen, 60))
         for i, o in zip(items, outcomes)]))
    report.say(f"\n{failed} of {len(items)} known defects are in this "
               "environment.")
    if failed:
      report.say(f"Next: {COMMAND} build --wheels=jax --base=V, then install "
                 "the wheel")
  return 1 if failed or not items else 0


def _test(args: argparse.Namespace) -> int:
  _only_with(args, "upstream", ("only", None), ("write", False),
             ("time", _TIME), ("share", 1))
  if args.upstream:
    return upstream.run(upstream.Request(
        pathlib.Path(args.upstream), args.only or [], args.time, args.patches,
        args.each, args.write, args.share), bases.chosen(args.base))
  chosen = bases.chosen(args.base or "all")
  if args.each:
    return testing.run_each(chosen, [*args.tests, *(args.patches or ())],
                            args.python_version)
  return testing.run(chosen, args.tests, args.python_version, args.patches)


def _names(text: str) -> list[str]:
  return [name.strip() for name in text.split(",") if name.strip()]


def _count(text: str) -> int:
  if int(text) < 1:
    raise ValueError
  return int(text)


def _flag(name: str, text: str, **settings: Any) -> Option:
  return name, {"help": text, **settings}


_BASE = _flag("--base", "a base release, a list a,b, or all")
_PATCHES = _flag("--patches", "only these patches: a,b", type=_names)
_OUTPUT = "the folder to write to"
_JSON = _flag("--json", "for machines", action="store_true")
_PYTHON = _flag("--python_version", "such as 3.12: build and prove with it")
# Each command: its name, what runs it, its help and its options.
COMMANDS: tuple[tuple[str, Command, str, tuple[Option, ...]], ...] = (
    ("build", _build, "builds the wheel and proves it", (
        _flag("--wheels", "jax (the only one)", default="jax"), _BASE,
        _flag("--output_path", _OUTPUT, default="dist"), _PYTHON, _PATCHES)),
    ("apply", _apply, "writes the mended source tree", (
        _BASE, _flag("--output_path", _OUTPUT),
        _flag("--tree", "an unmodified jax source tree, edited in place"),
        _flag("--dry_run", "write nothing", action="store_true"), _PATCHES)),
    ("check", _check, "checks every edit on every base, and originality", (
        _BASE, _flag("--record", "you have reviewed the definitions: keep "
                     "their hashes", action="store_true"),
        _flag("--candidate", "releases a,b that are no bases, or a source "
              "tree", type=_names, metavar="V"),
        _flag("--no_tests", "with --candidate: only the edits",
              action="store_true"),
        _flag("--write", "with --candidate: to docs/candidates.md",
              action="store_true"))),
    ("docs", _docs, "rewrites the generated parts of README and CHANGELOG", ()),
    ("status", _status, "a table of patches and bases", (_JSON,)),
    ("reproduce", _reproduce, "which known defects a Python's jax has", (
        _flag("--python", "the Python to look at (python3 on PATH)"), _JSON)),
    ("test", _test, "the project's tests, or upstream's with --upstream", (
        _flag("tests", "test files or patch names (all)", nargs="*",
              metavar="TEST"), _BASE, _PYTHON,
        _flag("--upstream", "a jax source checkout", metavar="DIR"),
        _flag("--only", "with --upstream: these test files (those that the "
              "patches name)", nargs="+", metavar="FILE"),
        _flag("--time", "with --upstream: seconds for one test (120)",
              type=float, default=_TIME, metavar="S"),
        _flag("--share", "with --upstream: one test in N of each file, another "
              "share for each patch (1: all)", type=_count, default=1,
              metavar="N"), _PATCHES,
        _flag("--each", "each patch alone, with what it depends on: its own "
              "tests", action="store_true"),
        _flag("--write", f"with --upstream: to {upstream.DOCUMENT}",
              action="store_true"))),
    *maintain.COMMANDS,
    *bazel.COMMANDS,
)


class _Parser(argparse.ArgumentParser):
  """Ends its errors with the command to run next, as all others do."""

  def error(self, message: str) -> NoReturn:
    self.print_usage(sys.stderr)
    self.exit(2, f"{self.prog}: {message}\nNext: {self.prog} --help\n")


def _parser() -> argparse.ArgumentParser:
  parser = _Parser(prog=COMMAND, description=__doc__)
  commands = parser.add_subparsers(dest="command", required=True)
  for name, function, text, options in COMMANDS:
    sub = commands.add_parser(name, help=text, description=text)
    for flag, settings in options:
      sub.add_argument(flag, **settings)
    sub.set_defaults(function=function)
  return parser


def main(argv: Sequence[str]) -> int:
  args = _parser().parse_args(argv)
  try:
    return args.function(args)
  except MendError as e:
    print(f"build.py {args.command}: {e}", file=sys.stderr)
    return 2
  except BrokenPipeError:  # the reader, such as `head`, has seen enough
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1
  except OSError as e:
    print(f"build.py {args.command}: {e}\nNext: see that the folders named "
          "exist and may be written (--output_path, $MEND_CACHE), and that "
          "the disk has room", file=sys.stderr)
    return 2
  except KeyboardInterrupt:
    print("build.py: stopped; the next run recovers", file=sys.stderr)
    return 130
