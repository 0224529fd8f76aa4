# SPDX-License-Identifier: Apache-2.0
"""`python -m jax_mend`: run, compare, status, doctor, enable, disable."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
import os
import subprocess
import sys

from jax_mend import (active, asked, children, doctor, processes, startup_file,
                      status)
from jax_mend.errors import NotApplied, Refused

_RUN = "run [--patches=WORDS] [-m MODULE | SCRIPT] [ARG...]"
_PART = "--patches="


def _run(args: Sequence[str]) -> int:
  """Starts Python anew on `args`, as `python` would be, and mended."""
  if args and args[0].startswith(_PART):
    with asked.instead(args[0].removeprefix(_PART)):
      return _run(args[1:])
  if not args:
    raise NotApplied("run was given nothing to run.",
                     f"{sys.executable} -m jax_mend {_RUN}")
  if sys.flags.ignore_environment:
    raise NotApplied("Python was started with -E or -I, which hides from it "
                     "how it is to start.", "leave them away, or run "
                     f"{sys.executable} -m jax_mend enable once")
  active.activate()  # says why not now, and not in the middle of the program
  env = dict(os.environ)
  if not asked.is_off():
    children.export(env)
    _say_part()
  flags = subprocess._args_from_interpreter_flags()  # type: ignore
  command = [sys.executable, *flags, *args]
  if os.name == "nt":
    return subprocess.call(command, env=env)
  sys.stdout.flush()
  sys.stderr.flush()
  os.execve(command[0], command, env)


def _say_part() -> None:
  """Names what a part of the patches needs, once and not in children."""
  finder = active.finder()
  if finder and asked.words() and not os.environ.get("JAX_MEND_QUIET"):
    print(f"jax-mend: {asked.source()}: {finder.table.described()}",
          file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
      prog="python -m jax_mend", description="Mends the jax of this Python as "
      "it is imported; nothing on disk is changed.")
  commands = parser.add_subparsers(dest="command", required=True)
  commands.add_parser(
      "run", help=f"{_RUN}: what `python` does with these, with jax mended")
  commands.add_parser(
      "compare", help="runs a program stock and mended: what differs, and why")
  for name, text in (
      ("status", "tells the release, and what is applied or why not"),
      ("doctor", "runs the reports' programs: does this jax have a defect?"),
      ("enable", "mends every Python program of this environment, from now on"),
      ("disable", "ends what enable began")):
    sub = commands.add_parser(name, help=text, description=text)
    if name == "enable":
      sub.add_argument("--patches", default="", metavar="WORDS",
                       help="only these families and patches, A,B; or all but "
                       "these, -A; and what they need")
    if name in ("status", "doctor"):
      sub.add_argument("--json", action="store_true", help="print JSON")
    if name == "status":
      sub.add_argument("--verbose", action="store_true",
                       help="print the title of each patch, too")
    if name == "doctor":
      sub.add_argument("words", nargs="*", metavar="WORD",
                       help="only reports that have one of these words")
  return parser


def main(argv: Sequence[str]) -> int:
  try:
    if argv[:1] == ["run"] and argv[1:2] not in (["-h"], ["--help"]):
      return _run(argv[1:])
    if argv[:1] == ["compare"]:
      from jax_mend import compare_command
      return compare_command.run(argv[1:])
    code = _command(_parser().parse_args(argv))
    sys.stdout.flush()  # not later, when nobody would catch what it raises
    return code
  except (NotApplied, Refused) as e:
    print(f"jax-mend: {e}", file=sys.stderr)
    return 2
  except KeyboardInterrupt:
    print("jax-mend: stopped.", file=sys.stderr)
    return 130
  except processes.Ended as e:
    return 128 + e.number
  except BrokenPipeError:  # the reader, such as `head`, has seen enough
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1
  except OSError as e:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    print(f"jax-mend: {e}.\nNext: see that what it prints to can be written, "
          "and that the disk has room", file=sys.stderr)
    return 2


def _command(args: argparse.Namespace) -> int:
  if args.command == "status":
    return status.show(args.json, args.verbose)
  if args.command == "doctor":
    return doctor.run(args.words, args.json)
  return startup_file.enable(args.patches) if args.command == "enable" else (
      startup_file.disable())


if __name__ == "__main__":
  sys.exit(main(sys.argv[1:]))
