"""`build.py bazel`: what the rules in build/bazel ask for.

    data         a Starlark file: bases, default base, tests
    sdist        fetches the base's source distribution; prints its path
    environment  makes the environment that tests run in; prints its Python
    wheel        writes the mended wheel into --output_path, without a proof
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
import json
import pathlib
import shutil
from typing import Any

from mend import bases, cache, checkout, envs, interpreters, patches, report
from mend import source, wheel
from mend.bases import Base


def data() -> str:
  """The Starlark file that WORKSPACE and the BUILD files load."""
  tests: dict[str, list[str]] = {}
  helpers: dict[str, list[str]] = {}
  for base in bases.all_bases():
    mine = patches.for_base(patches.load(), base)
    for test, shared in checkout.tests(mine).items():
        name = pathlib.PurePath(test).name
        if shared:
          helpers[name] = [pathlib.PurePath(s).name for s in shared]
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
  return envs.python_of(envs.dependencies(base, python, "test"))


def _wheel(base: Base, target: pathlib.Path) -> pathlib.Path:
  made, _ = wheel.build(base, None)
  target.mkdir(parents=True, exist_ok=True)
  with cache.whole(target / made.name) as whole:
    shutil.copyfile(made, whole)
  return target / made.name


def _bazel(args: argparse.Namespace) -> int:
  if args.what == "data":
    report.say(data().rstrip())
    return 0
  (base,) = bases.chosen(args.base)
  if args.what == "sdist":
    report.say(str(source.sdist(base)))
  elif args.what == "environment":
    report.say(str(_environment(base)))
  else:
    report.say(str(_wheel(base, pathlib.Path(args.output_path).absolute())))
  return 0


COMMANDS: tuple[tuple[str, Callable[[argparse.Namespace], int], str,
                      tuple[tuple[str, dict[str, Any]], ...]], ...] = (
    ("bazel", _bazel, "what the Bazel rules ask for; see build/bazel", (
        ("what", {"choices": ["data", "sdist", "environment", "wheel"]}),
        ("--base", {"help": "a base release"}),
        ("--output_path", {"default": "dist", "help": "for wheel"}))),
)
