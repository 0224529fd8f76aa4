# SPDX-License-Identifier: Apache-2.0
"""A folder with a jax and jax-mend, and Pythons that see it."""

import os
import pathlib
import shutil
import subprocess
import sys

from conftest import ROOT, write
from mend.editing import patches
from mend.trees import live_table

GREETING = "from jax._src import greet; print(greet.Greeter().greet('you'))"
POLITE, RUDE = "Hello, you", "oi you"
HIDING = """
_hidden = []


def register_exclusion(path):
  _hidden.append(path)
"""
SHORTENING = """
_paths = []


def register_exclusion(path):
  _paths.append(path)
"""


class Site:
  """A folder with a jax and jax-mend, and Pythons that see it."""

  def __init__(self, folder: pathlib.Path):
    self.folder = folder
    self.greet = folder / "jax" / "_src" / "greet.py"
    self.cache = folder.parent / "live-cache"
    self.work = folder.parent / "work"
    self.work.mkdir(parents=True)

  def run(self, *args, python=sys.executable, **env):
    settings = {k: v for k, v in os.environ.items() if k != "JAX_MEND"}
    # What is left in the folder is jax-mend's own doing, not Python's.
    settings.update({"PYTHONPATH": str(self.folder),
                     "PYTHONDONTWRITEBYTECODE": "1",
                     "JAX_MEND_CACHE": str(self.cache), **env})
    return subprocess.run(
        [python, *map(str, args)], cwd=self.work, env=settings, text=True,
        capture_output=True, check=False, timeout=120)

  def says(self, *args, **env):
    done = self.run(*args, **env)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()

  def refuses(self, *args, **env):
    done = self.run(*args, **env)
    assert done.returncode, done.stdout
    error = done.stderr
    assert "Nothing was applied." in error and "\nNext: " in error, error
    return error


def make(project, upstream, base, tmp_path):
  """A site of an invented jax, mended by an invented patch."""
  write(upstream / "jax" / "_src" / "source_info_util.py", HIDING)
  write(upstream / "jax" / "_src" / "traceback_util.py", SHORTENING)
  table = live_table.make(patches.load(project), {base: upstream}, project)
  folder = tmp_path / "site"
  shutil.copytree(upstream / "jax", folder / "jax")
  install(folder, table)
  return Site(folder)


def install(folder, table):
  for name in ("jax_mend", "jax_mend_startup.py"):
    source = ROOT / "live" / name
    copy = shutil.copytree if source.is_dir() else shutil.copy
    copy(source, folder / name)
  for name, text in table.items():
    write(folder / "jax_mend" / "table" / name, text)
