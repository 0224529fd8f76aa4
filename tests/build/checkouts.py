"""An invented checkout of upstream, and git."""

from mend.trees.git import Git

SECOND = """
id = "greet/fork"
title = "[mend] Say which fork this is"
why = "A bug report must say so."
bases = ">=1.0"
issues = []
upstream = { status = "fork-only", pr = "", landed_in = "" }
modules = []
tests = ["tests/greet/fork_test.py"]
test_helpers = ["tests/greet/testing/shared.py"]
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


def git(folder, *arguments):
  return Git(folder).run(*arguments)


def snapshot(folder):
  return {str(p.relative_to(folder)): p.read_bytes()
          for p in sorted(folder.rglob("*"))
          if p.is_file() and ".git" not in p.relative_to(folder).parts}
