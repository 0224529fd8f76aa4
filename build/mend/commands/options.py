# SPDX-License-Identifier: Apache-2.0
"""The options that several commands have, and what they read."""

from __future__ import annotations

import argparse
from typing import Any

from mend.editing import families
from mend.editing.live_modules import module_of_live
from mend.ground import arguments
from mend.ground.arguments import Option
from mend.ground.errors import MendError
from mend.releases import bases

COMMAND = arguments.PROGRAM


def only_with(args: argparse.Namespace, flag: str,
              *others: tuple[str, object]) -> None:
  """Refuses options that mean nothing without `flag`, instead of ignoring."""
  if getattr(args, flag) is not None:
    return
  for name, default in others:
    if getattr(args, name) != default:
      raise MendError(f"--{name} goes with --{flag}, which was not given.",
                      f"{COMMAND} {args.command} --{flag}=... --{name}, or "
                      f"leave --{name} away")


def names(text: str) -> list[str]:
  return [name.strip() for name in text.split(",") if name.strip()]


def patch_name(text: str) -> str:
  """The word, with the present name of the family of a patch."""
  return module_of_live("jax_mend/words").current(text, families.former())


def positive(text: str) -> int:
  if not text.isdecimal() or int(text) < 1:
    raise argparse.ArgumentTypeError(
        f"wanted a whole number from 1 on, found {text!r}")
  return int(text)


def share(text: str) -> tuple[int, int]:
  """K and N of "K/N"; of "N", which is the first of N, 1 and N."""
  first, slash, last = text.partition("/")
  k, n = (positive(first), positive(last)) if slash else (1, positive(first))
  if k > n:
    raise argparse.ArgumentTypeError(
        f"wanted K/N with K at most N, found {text!r}")
  return k, n


def seconds(text: str) -> float:
  try:
    found = float(text)
  except ValueError:
    found = 0.
  if not 0 < found < float("inf"):
    raise argparse.ArgumentTypeError(f"wanted seconds, found {text!r}")
  return found


def flag(name: str, text: str, **settings: Any) -> Option:
  return name, {"help": text, **settings}


KNOWN = ", ".join(b.version for b in bases.releases())
BASE = flag("--base", f"a base release ({KNOWN}), a line (C, C-D), a list "
            "a,b, or all; without it the newest that the running Python "
            "supports",
            metavar="V")
EVERY = flag("--base", f"a base release ({KNOWN}), a line (C, C-D), a list "
             "a,b, or all (the default)", metavar="V")
OF_TESTS = flag("--base", f"a base release ({KNOWN}), a line (C, C-D), a list "
                "a,b, or all; without it one case of each regression test, and "
                "one other test of each file, on the newest that the running "
                "Python supports", metavar="V")
PATCHES = flag("--patches", "only these families and patches, A,B, or all but "
               "these, -A (write --patches=-A), and what they need",
               type=names, metavar="A,B")
OUTPUT = "the folder to write to"
JSON = flag("--json", "print JSON", action="store_true")
PYTHON = flag("--python_version", "such as 3.12: build and prove with it",
              metavar="V")
