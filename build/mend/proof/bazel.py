# SPDX-License-Identifier: Apache-2.0
"""`build.py bazel`: what the rules in build/bazel ask for.

    data         a Starlark file: bases, default base, tests
    sdist        fetches the base's source distribution; prints its path
    environment  makes the environment that tests run in; prints its Python
    wheel        writes the mended wheel into --output_path, without a proof
"""

from __future__ import annotations

import argparse
import json
import pathlib

from mend.editing import patches
from mend.ground import report
from mend.ground.arguments import Command
from mend.ground.report import Verdict
from mend.proof import building, venvs
from mend.releases import bases, interpreters, source
from mend.releases.bases import Base
from mend.trees import checkout, wheel


def data() -> str:
  """The Starlark file that WORKSPACE and the BUILD files load."""
  tests: dict[str, list[str]] = {}
  helpers: dict[str, list[str]] = {}
  for base in bases.all_bases():
    mine = patches.for_base(patches.load(), base)
    for test, shared in checkout.tests(mine).items():
        name = test.removeprefix("tests/")
        if shared:
          helpers[name] = [s.removeprefix("tests/") for s in shared]
        versions = tests.setdefault(name, [])
        if base.version not in versions:
          versions.append(base.version)
  known = {b.version: next(r for r in b.requirements if "jaxlib" in r)
           for b in bases.all_bases()}
  return (f"BASES = {json.dumps(known, indent=4)}\n"
          f'DEFAULT = "{bases.default_base().version}"\n'
          f"HELPERS = {json.dumps(helpers, indent=4, sort_keys=True)}\n"
          f"TESTS = {json.dumps(tests, indent=4, sort_keys=True)}\n")


def _environment(base: Base) -> pathlib.Path:
  python = interpreters.for_base(base, lowest=True)
  return venvs.python_of(venvs.dependencies(base, python, "test"))


def _wheel(base: Base, target: pathlib.Path) -> pathlib.Path:
  made, _ = wheel.build(base, None)
  return building.deliver(made, target)


def _bazel(args: argparse.Namespace) -> Verdict:
  if args.what == "data":
    report.say(data().rstrip())
    return Verdict("data.")
  (base,) = bases.chosen(args.base)
  if args.what == "sdist":
    report.say(str(source.sdist(base)))
  elif args.what == "environment":
    report.say(str(_environment(base)))
  else:
    report.say(str(_wheel(base, pathlib.Path(args.output_path).absolute())))
  return Verdict(f"{args.what} of jax {base.version}.")


COMMANDS = (
    Command("bazel", _bazel, "serves the Bazel rules; see build/bazel",
            "bazel sdist --base=0.6.0", (
        ("what", {"choices": ["data", "sdist", "environment", "wheel"]}),
        ("--base", {"help": "a release", "metavar": "V"}),
        ("--output_path", {"default": "dist", "help": "for wheel",
                           "metavar": "DIR"}))),
)
