# SPDX-License-Identifier: Apache-2.0
"""Fixtures: an invented base, an invented patch, and the tool's modules."""

import pathlib
import sys
import textwrap

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "build"))

from mend.ground import bootstrap
from mend.releases import bases

OUTER = bootstrap.cache_root()  # before a test gets a cache of its own

PATCH = """
id = "greet/greeting"
title = "[greet] Say hello politely"
why = "A user sees a rude greeting."
bases = ">=1.0"
issues = ["toy#1"]
upstream = { status = "not-sent", pr = "", landed_in = "" }
modules = ["jax/_src/polite.py"]
tests = ["tests/greet/greeting_test.py"]
reproductions = ["reproductions/greet/greeting.py"]
changelog = "Bug fixes: `greet` is polite."

[[edit]]
file = "jax/_src/greet.py"
op = "add_import"
code = "from jax._src import polite"

[[edit]]
file = "jax/_src/greet.py"
op = "replace_body"
in = "Greeter.greet"
takes = ["self", "name"]
code = "return polite.greeting(name)"
"""
TEST = """
import unittest

from testing.red import red


class GreetingTest(unittest.TestCase):

  @red('^AssertionError: .*a rude greeting')
  def test_polite(self):
    from jax._src import greet
    greeting = greet.Greeter().greet("you")
    self.assertEqual(greeting, "Hello, you", "a rude greeting")
"""
FAMILIES = """
[greet]
summary = "politeness"
pages = ["docs/greet.md"]
prefix = "polite_"
package = "jax/_src/greeting"
outside = ["jax/_src/polite.py"]
"""
GREET = '''
"""A module of the invented base: it says héllo."""
from __future__ import annotations

import os

__all__ = ["Greeter"]


class Greeter:
  """Greets."""

  def greet(self, name):
    """Greets somebody."""
    # A rude way.
    out = "oi " + name
    return out
'''
REPRODUCTION = '''
"""The report as a user would type it."""
REPORT = "toy#1"


def greets_politely():
  """greet() is polite."""
  from jax._src import greet
  assert greet.Greeter().greet("you") == "Hello, you", "a rude greeting"
  return "polite"
'''


def write(path: pathlib.Path, text: str) -> pathlib.Path:
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text(textwrap.dedent(text).lstrip("\n"), encoding="utf-8")
  return path


def marked_pages(project):
  """The pages with generated parts, these parts out of date."""
  for page, names in (("README.md", ("releases", "families")),
                      ("docs/releases.md", ("releases",)),
                      ("docs/differences.md", ("reversals",)),
                      ("docs/greet.md", ("sources",)),
                      ("CHANGELOG.md", ("changes",))):
    write(project / page, "".join(
        f"<!-- {name}: written by build.py -->\nold\n<!-- end {name} -->\n"
        for name in names))


@pytest.fixture
def base():
  return bases.Base("1.0", "0" * 64, ">=3.10", ("nothing==1",))


@pytest.fixture
def project(tmp_path):
  """A project folder with one patch."""
  root = tmp_path / "project"
  write(root / "patches" / "families.toml", FAMILIES)
  write(root / "patches" / "series", "greet/greeting  # the only one\n")
  write(root / "patches" / "greet" / "greeting.toml", PATCH)
  write(root / "jax" / "_src" / "greeting" / "__init__.py",
        '"""What is said to whom."""\n')
  write(root / "jax" / "_src" / "polite.py",
        'def greeting(name):\n  return f"Hello, {name}"\n')
  write(root / "tests" / "greet" / "greeting_test.py", TEST)
  write(root / "reproductions" / "greet" / "greeting.py", REPRODUCTION)
  return root


@pytest.fixture
def upstream(tmp_path):
  """A pristine source tree of the invented base."""
  tree = tmp_path / "upstream"
  write(tree / "jax" / "version.py", '_version = "1.0"\n')
  write(tree / "jax" / "__init__.py", "")
  write(tree / "jax" / "_src" / "__init__.py", "")
  write(tree / "jax" / "_src" / "greet.py", GREET)
  return tree


@pytest.fixture
def site(project, upstream, base, tmp_path):
  """A stock jax of the invented base, and jax-mend."""
  import live_site
  return live_site.make(project, upstream, base, tmp_path)


@pytest.fixture(autouse=True)
def private_cache(tmp_path, monkeypatch):
  monkeypatch.setenv("MEND_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def kept_cache(monkeypatch):
  """The cache of the run that this test is part of."""
  monkeypatch.setenv("MEND_CACHE", str(OUTER))
