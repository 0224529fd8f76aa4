# SPDX-License-Identifier: Apache-2.0
"""Command lines: declaring and reading options, groups, help and errors."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
import dataclasses
import difflib
import re
import sys
from typing import Any, NoReturn

from mend.ground.report import Verdict

PROGRAM = "python3 build/build.py"
Option = tuple[str, dict[str, Any]]
USERS, MAINTAINERS = "for users", "for maintainers"
_EXIT = """\
exit codes: 0 all is well; 1 the command found something wrong (a defect, a
failing test, an edit that has drifted); 2 it could not run, and says what to
do; 130 it was stopped, and the next run recovers.
"""


@dataclasses.dataclass(frozen=True)
class Command:
  """One command: its name, what runs it, its help, an example, its options."""
  name: str
  run: Callable[[argparse.Namespace], Verdict]
  help: str
  example: str
  options: Sequence[Option] = ()
  group: str = MAINTAINERS


class _Help(argparse.ArgumentDefaultsHelpFormatter,
            argparse.RawDescriptionHelpFormatter):
  """Shows defaults, of those options that have one worth showing."""

  def _get_help_string(self, action: argparse.Action) -> str | None:
    if action.default in (None, False):
      return action.help
    return super()._get_help_string(action)


class _Once(argparse.Action):
  """Stores an option's value; a second one would go unseen, and is refused."""

  def __call__(self, reader: argparse.ArgumentParser,
               namespace: argparse.Namespace, values: Any,
               option: str | None = None) -> None:
    given = namespace.__dict__.setdefault("given", set())
    if option and self.dest in given:
      reader.error(f"{option} was given twice; what takes a list takes "
                   f"{option}=A,B")
    given.add(self.dest)
    setattr(namespace, self.dest, values)


class Parser(argparse.ArgumentParser):
  """Ends its errors with the command to run next, as all others do."""

  def __init__(self, *args: Any, **settings: Any):
    super().__init__(*args, **settings)
    self.commands: dict[str, Parser] = {}
    for name in (None, "store"):
      self.register("action", name, _Once)

  def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
    """Reads arguments; an unknown one is an error of its command."""
    found, unknown = self.parse_known_args(args, namespace)
    if unknown:
      reader = self.commands.get(getattr(found, "command", ""), self)
      known = [o for o in reader._option_string_actions if o != "--help"]
      reader.error(f"{' '.join(unknown)}: no such argument"
                   + did_you_mean(unknown[0].partition("=")[0], known))
    return found

  def error(self, message: str) -> NoReturn:
    self.print_usage(sys.stderr)
    wrong = re.search(r"invalid choice: '(.*)' \(choose from (.*)\)", message)
    if wrong:
      message = f"there is no {wrong[1]!r}" + did_you_mean(
          wrong[1], re.findall(r"[\w-]+", wrong[2]))
    stop = "" if message.endswith("?") else "."
    self.exit(2, f"FAILED: {message}{stop} Next: {self.prog} --help\n")


def did_you_mean(word: str, known: Sequence[str]) -> str:
  """"did you mean" for an error about an unknown `word`, or ""."""
  near = difflib.get_close_matches(word, list(known), n=3, cutoff=0.7) or [
      k for k in known if len(word) > 2 and word in k][:3]
  return f"; did you mean {' or '.join(near)}?" if near else ""


def parser(description: str, version: str,
           commands: Sequence[Command]) -> Parser:
  """Reads the command line; each command's help shows defaults, an example."""
  width = max(len(c.name) for c in commands)
  listed = "\n".join(
      f"{group}:\n" + "\n".join(f"  {c.name:{width}}  {c.help}"
                                for c in commands if c.group == group) + "\n"
      for group in (USERS, MAINTAINERS))
  top = Parser(prog=PROGRAM, description=description, formatter_class=_Help,
               epilog=f"{listed}\n{_EXIT}", allow_abbrev=False)
  top.add_argument("--version", action="version", version=version)
  below = top.add_subparsers(dest="command", required=True, metavar="COMMAND",
                             help="COMMAND --help describes a command")
  for command in commands:
    sub = below.add_parser(
        command.name, description=command.help, formatter_class=_Help,
        epilog=f"example: {PROGRAM} {command.example}", allow_abbrev=False)
    top.commands[command.name] = sub
    for flag, settings in command.options:
      sub.add_argument(flag, **settings)
    sub.add_argument("--verbose", action="store_true",
                     help="print all details, and the output of other "
                     "programs")
    sub.set_defaults(function=command.run)
  return top
