# SPDX-License-Identifier: Apache-2.0
"""An invented checkout of upstream, and git."""

from conftest import PATCH
from mend.trees.git import Git

# Of upstream's checkout: its settings, hooks and checkers.
SETTINGS = """
[tool.pytest.ini_options]
addopts = "--import-mode=importlib"

[tool.ruff]
line-length = 80

[tool.ruff.lint]
select = ["F", "W"]
"""
HOOKS = """
repos:
- repo: https://host.example/ruff-pre-commit
  rev: 0123456789abcdef  # frozen: v0.16.1
- repo: https://host.example/pyrefly-pre-commit
  rev: fedcba9876543210  # frozen: v1.1.1
"""
COPYRIGHT = """
import sys

wrong = [f for f in sys.argv[1:] if "Copyright" not in open(f).read()]
print("\\n".join(wrong))
sys.exit(bool(wrong))
"""
# A stand-in: a type error for each line that says so.
TYPES = """
import json, pathlib, sys
print(json.dumps({"errors": [
    {"path": str(p), "name": "bad", "concise_description": line.strip()}
    for p in map(pathlib.Path, sys.argv[1:] or pathlib.Path("jax").rglob(
        "*.py"))
    for line in p.read_text().splitlines() if "wrong type" in line]}))
"""
SECOND = """
id = "greet/fork"
title = "[mend] Say which fork this is"
why = "A bug report must say so."
bases = ">=1.0"
issues = []
upstream = { status = "fork-only", pr = "", landed_in = "" }
modules = []
tests = ["tests/greet/fork_test.py"]
changelog = "New features: it says so."

[[edit]]
file = "jax/_src/greet.py"
op = "append"
code = "FORK = True"
"""
BUILD = """
load("//jaxlib:jax.bzl", "pytype_library")

pytype_library(
    name = "jax",
    srcs = [
        "_src/zebra.py",
    ] + glob(["lax/**/*.py"]),
)

pytype_library(
    name = "greet",
    srcs = ["_src/greet.py"],
)
"""
TESTS_BUILD = """
load("//jaxlib:jax.bzl", "jax_multiplatform_test", "py_deps")

jax_multiplatform_test(
    name = "old_test",
    srcs = ["old_test.py"],
)
"""
LOG = """
# Change log

## toy 1.0

* New features
  * It greets.
"""
ONE_LINE = 'upstream = { status = "not-sent", pr = "", landed_in = "" }\n'
SENDABLE = '''
[upstream]
status = "not-sent"
sendable = true
closes = ["28193"]
title = "[greet] Greet politely"
message = """
`greet` says "oi".

It didn't know the word hello.
"""

[[upstream.edit]]
file = "jax/_src/greet.py"
op = "replace_statement"
in = "Greeter.greet"
value = "assign:out"
code = \'\'\'
out = "Hello, "
out += name
\'\'\'

[[upstream.edit]]
file = "tests/greet_test.py"
op = "add_member"
in = "GreetTest"
after = "def:test_first"
code = """
def test_hello(self):
  self.assertIn("Hello", greet.Greeter().greet("you"))
"""
'''
GREET_TEST = '''
from absl.testing import absltest
import jax
from jax._src import config
from jax._src import test_util
import numpy as np


class GreetTest(absltest.TestCase):

  @staticmethod
  def test_first():
    pass

  def test_second(self):
    pass
'''


def with_block(block=SENDABLE):
  return PATCH.replace(ONE_LINE, "").replace(
      "\n[[edit]]", block + "\n[[edit]]", 1)


def git(folder, *arguments):
  return Git(folder).run(*arguments)


def commit_all(folder, message="upstream"):
  """Makes a repository of a folder, with one commit of all that it has."""
  git(folder, "init", "--quiet")
  git(folder, "add", "--all")
  git(folder, "commit", "--quiet", f"--message={message}")


def snapshot(folder):
  return {str(p.relative_to(folder)): p.read_bytes()
          for p in sorted(folder.rglob("*"))
          if p.is_file() and ".git" not in p.relative_to(folder).parts}
