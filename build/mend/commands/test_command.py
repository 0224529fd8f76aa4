# SPDX-License-Identifier: Apache-2.0
"""`build.py test`: the project's tests, upstream's or other libraries'."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
import functools
import pathlib

from mend.commands.options import (COMMAND, OF_TESTS, PATCHES, PYTHON, flag,
                                   names, only_with, patch_name, seconds,
                                   share)
from mend.ground.arguments import USERS, Command
from mend.ground.errors import MendError
from mend.ground.report import Verdict
from mend.house import checking
from mend.mutation import score
from mend.proof import minutes, shares, testing
from mend.proof.shares import Extent
from mend.releases import bases, interpreters
from mend.suites import clients, conformance, upstream

_TIME = 120.0  # seconds for one of upstream's tests
_LAST_RUN = "the last run"  # --since of --mutation


def _with_pythons(args: argparse.Namespace) -> Sequence[bases.Base]:
  """The bases to test.

  Raises:
    MendError: this machine has no Python for one of them.
  """
  asked = (bases.chosen(args.base) if args.base or not args.tests
           else shares.newest_having(args.tests))
  _, others = interpreters.split(asked, args.python_version)
  if others:
    raise interpreters.missing(others, args.python_version)
  return asked


def _refuse_choices_of_others(args: argparse.Namespace) -> None:
  """Refuses --list and --since where they would be ignored.

  Raises:
    MendError: what is run instead isn't the project's tests, or isn't chosen by
      a change.
  """
  theirs = (args.upstream or args.array_api or args.clients is not None
            or args.mutation or args.each)
  if args.list and theirs:
    raise MendError("--list goes with the project's tests only.",
                    f"{COMMAND} test --base=V --list, or leave --list away")
  if args.mutation and args.since and (args.tests or args.since != _LAST_RUN):
    raise MendError("--mutation --since runs the patches that have changed "
                    "since its last run; it takes none and no revision.",
                    f"{COMMAND} test --mutation --since")
  if args.since and not args.mutation and (
      theirs or args.tests or args.patches or args.live or not args.base
      or args.since == _LAST_RUN):
    raise MendError("--since goes with a run of everything on releases that "
                    "--base names.", f"{COMMAND} test --base=all "
                    "--since=REVISION, or leave --since away")


def _test(args: argparse.Namespace) -> Verdict:
  whose = "upstream" if args.clients is None else "clients"
  only_with(args, "upstream", ("only", None))
  only_with(args, "clients", ("sources", None))
  only_with(args, whose, ("time", _TIME))
  number, of = args.share
  if of > 1 and (args.mutation or args.each or args.array_api):
    raise MendError("--share goes with the project's tests, --upstream and "
                    "--clients only.", f"{COMMAND} test --base=V "
                    f"--share={number}/{of}, or leave --share away")
  _refuse_choices_of_others(args)
  is_plain = not (args.tests or args.base or args.patches or args.live
                  or args.whole or args.list or args.each or of > 1)
  if not (args.mutation or is_plain):
    only_with(args, whose, ("write", False))
  if args.clients is not None:
    return clients.compare_wheels(clients.Request(
        args.clients, pathlib.Path(args.sources) if args.sources else None,
        args.time, args.write, of, number - 1), bases.chosen(args.base))
  if args.upstream:
    return upstream.compare_wheels(upstream.Request(
        pathlib.Path(args.upstream), sum(args.only or [], []), args.time,
        args.patches, args.each, args.write, of, number - 1),
                                   bases.chosen(args.base))
  if args.array_api:
    return conformance.compare_wheels(pathlib.Path(args.array_api),
                                      bases.chosen(args.base), args.time)
  chosen = _with_pythons(args)
  if args.mutation:
    return score.run(chosen, args.tests, args.write, bool(args.since))
  if args.each:
    return testing.run_each(chosen, [*args.tests, *(args.patches or ())],
                            args.python_version)
  return _of_project(args, chosen)


def _of_project(args: argparse.Namespace,
                chosen: Sequence[bases.Base]) -> Verdict:
  """Runs the project's tests, and notes their time if that is asked for."""
  extent = (Extent.WHOLE if args.whole else
            Extent.CHANGE if args.base else Extent.PLAIN)
  checks = [functools.partial(checking.project_checks, chosen,
                              linted=extent is not Extent.PLAIN)]
  if args.whole or args.base and len(chosen) > 1:
    checks.append(functools.partial(clients.run_programs, chosen))
  verdict = testing.run_tests(testing.Request(
      chosen, args.tests, args.python_version, args.patches, checks, args.live,
      extent, args.share, args.since or "", args.list))
  if args.write and verdict.good:
    minutes.note()
  return verdict


COMMANDS = (
    Command("test", _test, "runs the project's tests, upstream's or other "
            "libraries'", "test --base=0.6.0", (
        flag("tests", "test files or patch names; all without any", nargs="*",
             type=patch_name, metavar="TEST"), OF_TESTS, PYTHON,
        flag("--upstream", "a jax source checkout", metavar="DIR"),
        flag("--only", "with --upstream: these test files, A,B; without it the "
             "files that the patches name", nargs="+", type=names,
             metavar="FILE"),
        flag("--clients", "other libraries' own tests: a,b, or all", nargs="?",
             type=names, const=[], metavar="a,b"),
        flag("--sources", "with --clients: a folder with checkouts of the "
             "libraries whose source distribution has no tests", metavar="DIR"),
        flag("--array-api", "a checkout of data-apis/array-api-tests, run on "
             "both wheels", metavar="DIR"),
        flag("--time", "seconds for one test of theirs", type=seconds,
             default=_TIME, metavar="S"),
        flag("--share", "the first, or the K-th, of N shares, for N machines; "
             "with --upstream a share of each file, another for each patch",
             type=share, default=(1, 1), metavar="[K/]N"),
        PATCHES,
        flag("--each", "each patch's own tests, on a wheel of it and the "
             "patches it depends on", action="store_true"),
        flag("--mutation", "mutation testing: remove one edit, or one "
             "registration, at a time, and look for a test that fails",
             action="store_true"),
        flag("--needed", "another name of --mutation", action="store_true",
             dest="mutation"),
        flag("--live", "on a stock jax that jax-mend mends",
             action="store_true"),
        flag("--whole", "every test on every release; "
             "with one release, programs of other libraries, too",
             action="store_true"),
        flag("--since", "of the patches that are changed since a revision, "
             "every test on one release of each line; with --mutation, the "
             "patches that are changed since its last run", nargs="?",
             const=_LAST_RUN, metavar="REVISION"),
        flag("--list", "say what would run, and run nothing",
             action="store_true"),
        flag("--write", f"write {upstream.DOCUMENT}, {clients.DOCUMENT} "
             f"or {score.DOCUMENT}; without options, README's minutes",
             action="store_true")), USERS),
)
