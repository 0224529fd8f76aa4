# SPDX-License-Identifier: Apache-2.0
"""The Pythons of this machine, and the bases that they run."""

import dataclasses
import os
import pathlib
import sys

from conftest import write
from mend import cli
from mend.editing import patches
from mend.ground.errors import MendError
from mend.house import checking
from mend.proof import jobs, judging, testing
from mend.releases import bases, interpreters
import pytest


def shim(folder, text):
  path = write(folder / "python3", text)
  path.chmod(0o755)
  return str(path)


def test_a_shim_that_fails_is_no_interpreter(tmp_path, base, monkeypatch):
  bad = shim(tmp_path / "bad", "#!/bin/sh\necho 3.12.0\nexit 127\n")
  odd = shim(tmp_path / "odd", "#!/bin/sh\necho 3.99.1\n")
  monkeypatch.setattr(interpreters, "_candidates",
                      lambda: iter(["", bad, "/nowhere/python3", odd]))
  interpreters.found.cache_clear()
  try:
    assert interpreters.found() == (("3.99.1", odd),)
    assert interpreters.for_base(base) == odd
    words = r"needs Python >=3\.10, and --python_version=3\.12.*3\.99\.1"
    with pytest.raises(MendError, match=words) as error:
      interpreters.for_base(base, "3.12")
    assert "MEND_PYTHONS" in str(error.value)
  finally:
    interpreters.found.cache_clear()


def test_lowest_and_wanted_interpreters(base, monkeypatch):
  monkeypatch.setattr(interpreters, "found", lambda: (
      ("3.12.1", "twelve"), ("3.10.2", "ten"), ("3.9.1", "nine"),
      ("3.1.1", "one")))
  assert interpreters.for_base(base) == "twelve"
  assert interpreters.for_base(base, lowest=True) == "ten"
  assert interpreters.for_base(base, "3.10") == "ten"
  with pytest.raises(MendError):
    interpreters.for_base(base, "3.1")


def test_the_bases_that_this_machine_can_run(base, monkeypatch):
  later = dataclasses.replace(base, version="2.0", python=">=3.12")
  monkeypatch.setattr(interpreters, "found", lambda: (
      ("3.11.7", "eleven"), ("3.10.2", "ten")))
  assert interpreters.split([base, later]) == ([base], [later])
  assert interpreters.split([base, later], "3.9") == ([], [base, later])
  assert interpreters.newer(base) == ("3.11.7", "eleven")
  assert interpreters.newer(later) is None
  monkeypatch.setattr(interpreters, "found", lambda: (
      ("3.10.9", "nine"), ("3.10.2", "ten")))
  assert interpreters.newer(base) is None


def test_a_base_without_a_python_is_refused(base, monkeypatch, capsys):
  later = dataclasses.replace(base, version="2.0", python=">=3.99")
  monkeypatch.setattr(bases, "all_bases", lambda: (base, later))
  monkeypatch.setattr(bases, "releases", lambda: (base, later))
  ran = []
  monkeypatch.setattr(jobs, "for_base", lambda series, b, *a: ran.append(b)
                      or [])
  monkeypatch.setattr(patches, "load", lambda: ())
  monkeypatch.setattr(testing, "_tool_tests", lambda names, is_plain: [])
  monkeypatch.setattr(checking, "project_checks",
                      lambda b, linted: judging.Tally(3))
  assert cli.main(["test"]) == 0
  assert ran == [base] and "2.0" not in capsys.readouterr().out
  for strict in ("--base=all", "--base=2.0"):
    assert cli.main(["test", strict]) == 2
    assert "jax 2.0 needs Python >=3.99" in capsys.readouterr().err
  assert ran == [base]


@pytest.mark.parametrize("disguise,is_one", [
    ("pass", True), ("sys.implementation.name = 'pypy'", False),
    ("sysconfig.get_config_var = lambda name: 1", False)])
def test_other_pythons_are_not_taken_for_cpython(tmp_path, disguise, is_one):
  code = f"import sys, sysconfig; {disguise}; exec(sys.argv[-1])"
  path = shim(tmp_path, f'#!/bin/sh\nexec {sys.executable} -c "{code}" "$@"\n')
  assert bool(interpreters.version_of(path)) == is_one


def test_pythons_are_those_that_findpython_lists(monkeypatch, tmp_path):
  version = tmp_path / "versions" / "9.8.7" / "bin"
  python = shim(version, "#!/bin/sh\necho 9.8.7\n")
  shims = shim(tmp_path / "shims", "#!/bin/sh\necho 9.9.9\n")
  monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
  monkeypatch.setenv("PATH", str(pathlib.Path(shims).parent),
                     prepend=os.pathsep)
  interpreters.found.cache_clear()
  try:
    found = dict(interpreters.found())
    assert found["9.8.7"] == python and "9.9.9" not in found
  finally:
    interpreters.found.cache_clear()
