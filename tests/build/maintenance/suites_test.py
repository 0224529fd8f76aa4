# SPDX-License-Identifier: Apache-2.0
"""Suites that are not ours: upstream's, and other libraries'."""

import dataclasses
import datetime
import os
import pathlib
import sys

from conftest import PATCH, write
from mend.editing import patches
from mend.ground import pages
from mend.ground.errors import MendError
from mend.proof import environments, pools, pytest_run
from mend.proof.pytest_run import Outcome
from mend.releases import bases
from mend.suites import clients, upstream, verdicts
import pytest

RUDE = Outcome("failed", "AssertionError: a rude greeting")


def test_libraries_are_pinned_and_have_tests_somewhere(tmp_path):
  base = bases.all_bases()[-1]
  found = clients.of_base(base)
  assert len(found) == 18 and all(c.version for c in found)
  one, = clients.of_base(base, ["equinox"])
  write(tmp_path / "equinox" / "tests" / "test_some.py", "")
  assert clients.tests_of(one, tmp_path) == tmp_path / "equinox" / "tests"
  with pytest.raises(MendError, match="doesn't know nope"):
    clients.of_base(base, ["nope"])


def test_tests_inside_of_an_installed_library(tmp_path):
  client = clients.Client("optax", "1", "ours", inside=True)
  for root in ("installed", "source"):
    write(tmp_path / root / "ours" / "__init__.py", "from ours import math\n")
    write(tmp_path / root / "ours" / "math.py", "one = 1\n")
    write(tmp_path / root / "ours" / "math_test.py",
          "from ours import math\ndef test_it(): assert math.one == 1\n")
  path = tmp_path / "installed", bases.ROOT / "build" / "probes"
  assert clients.run_tests(
      client, tmp_path / "source" / "ours", 9., pathlib.Path(sys.executable),
      {"PYTHONPATH": os.pathsep.join(map(str, path)),
       "PYTEST_PLUGINS": "ours.math"}) == {  # one that imports the library
          "ours/math_test.py test_it": Outcome("passed")}


def test_tests_that_are_installed(tmp_path):
  scipy, = clients.of_base(bases.all_bases()[-1], ["scipy"])
  assert scipy.installed and scipy.environment and scipy.options
  client = clients.Client("ours", "1", "ours/tests", inside=False,
                          installed=True, environment={"OURS": "1"},
                          options=["-k", "chosen"])
  write(tmp_path / "env" / "bin" / "ours" / "__init__.py", "")
  write(tmp_path / "env" / "bin" / "ours" / "tests" / "test_it.py",
        "import os\ndef test_chosen(): assert os.environ['OURS'] == '1'\n"
        "def test_other(): assert False\n")
  python = tmp_path / "env" / "bin" / "python"
  write(python, f"#!/bin/sh\ncd {python.parent}\n"
        f'exec {sys.executable} "$@"\n')
  python.chmod(0o755)
  folder = clients._installed(client, python)
  assert folder == python.parent / "ours" / "tests"
  probes = bases.ROOT / "build" / "probes"
  assert clients.run_tests(
      client, folder, 9., pathlib.Path(sys.executable),
      {"PYTHONPATH": os.pathsep.join(map(str, (python.parent, probes)))}) == {
          "tests/test_it.py test_chosen": Outcome("passed")}


def test_libraries_without_tests_are_refused(tmp_path):
  one, = clients.of_base(bases.all_bases()[-1], ["equinox"])
  write(tmp_path / "equinox" / "README.md", "")
  with pytest.raises(MendError, match="has no tests in tests/"):
    clients.tests_of(one, tmp_path)


def test_upstream_differences(base, capsys):
  before = {"T.b": Outcome("passed"), "T.d": RUDE, "T.e": Outcome("skipped")}
  after = {"T.a": Outcome("passed"), "T.b": RUDE, "T.c": Outcome("skipped"),
           "T.d": RUDE, "T.e": RUDE, "T.f": RUDE}
  counts = verdicts.compare("x_test.py", base, before, after)
  assert counts == {"passed": 1, "skipped": 1, "fail on pristine too": 1,
                    "changed on purpose": 0, "newly failing": 3}
  out = capsys.readouterr().out
  assert "NEWLY FAILING on 1.0: x_test.py T.b" in out and "T.d" not in out


def test_upstream_tests_that_are_changed_on_purpose(base, project, capsys):
  text = PATCH + """
[[supersedes]]
tests = ["x_test.py T.b*"]
why = "it asks for rudeness"
reason = "^AssertionError: a rude greeting"
bases = "<2"
"""
  write(project / "patches" / "greet" / "greeting.toml", text)
  series = patches.load(project)
  outcomes = {"T.b1": Outcome("passed")}, {"T.b1": RUDE}
  counts = verdicts.compare("x_test.py", base, *outcomes, series)
  assert counts["changed on purpose"] == 1 and not counts["newly failing"]
  assert "it asks for rudeness" in capsys.readouterr().out
  otherwise = outcomes[0], {"T.b1": Outcome("failed", "KeyError: 'a rude'")}
  assert verdicts.compare("x_test.py", base, *otherwise,
                          series)["newly failing"]
  assert verdicts.compare("y_test.py", base, *outcomes, series)["newly failing"]
  newer = dataclasses.replace(base, version="2.0")
  assert verdicts.compare("x_test.py", newer, *outcomes,
                          series)["newly failing"]


def test_upstream_needs_a_checkout(tmp_path):
  with pytest.raises(MendError, match="no tests/ folder"):
    upstream.find_files(tmp_path, [])
  write(tmp_path / "tests" / "a_test.py", "")
  write(tmp_path / "tests" / "helper.py", "")
  assert upstream.find_files(tmp_path, []) == []
  assert len(upstream.find_files(tmp_path, ["tests/a_test.py"])) == 1
  with pytest.raises(MendError, match=r"no .*b_test\.py"):
    upstream.find_files(tmp_path, ["b_test"])


def test_files_that_an_upstream_checkout_lacks_are_named(tmp_path, capsys):
  write(tmp_path / "tests" / "a_test.py", "")
  assert upstream.present(tmp_path, ["a_test.py", "b_test.py"]) == ["a_test.py"]
  assert "not in this checkout: b_test.py" in capsys.readouterr().out


def test_upstreams_tests_run_on_the_jax_that_is_looked_at(tmp_path):
  # A conftest.py above the tests puts its folder, and the jax there, first.
  root, here = tmp_path / "checkout", tmp_path / "here"
  for folder in (root, here):
    write(folder / "jax" / "__init__.py", "")
  write(root / "conftest.py", "")
  path = write(root / "tests" / "a_test.py", """\
    import jax


    def test_where():
      assert "here" in jax.__file__
    """)
  run = lambda jax, *found: upstream._run(
      pathlib.Path(sys.executable), path, 60., {
          "MEND_JAX": str(jax), "PYTEST_PLUGINS": "", "PYTHONPATH": os.pathsep
          .join(map(str, (pytest_run._PROBES, *found)))})
  assert run(here, here) == {"test_where": Outcome("passed")}
  (failed,) = run(here).values()
  assert failed.status == "failed"
  assert "jax was imported from" in failed.text


def test_upstreams_file_of_which_nothing_passes_is_a_failure(
    base, monkeypatch, tmp_path):
  counts = dict.fromkeys(verdicts.KINDS, 0)
  request = upstream.Request(tmp_path, [], 1., None, False, False)
  for kind, good in (("passed", True), ("fail on pristine too", False)):
    monkeypatch.setattr(upstream, "_run_base", lambda *_, kind=kind: [
        ("all patches", "a_test.py", {**counts, kind: 1})])
    verdict = upstream.compare_wheels(request, [base])
    assert verdict.good is good
  monkeypatch.setattr(upstream, "_run_base", lambda *_: [
      ("all patches", "a_test.py", {**counts, "passed": 1}),
      ("all patches", "b_test.py", {**counts, "fail on pristine too": 1})])
  verdict = upstream.compare_wheels(request, [base])
  assert verdict.good and "No test passed of b_test.py" in str(verdict)


def test_each_patch_takes_another_share(tmp_path, monkeypatch, base, project):
  (patch,) = patches.load(project)
  series = [dataclasses.replace(patch, id=name, upstream_tests=("a_test.py",))
            for name in ("one", "two")]
  monkeypatch.setattr(patches, "load", lambda: series)
  monkeypatch.setattr(upstream.environments, "build", lambda *a, **k: None)
  write(tmp_path / "tests" / "a_test.py", "")
  request = upstream.Request(tmp_path, [], 1., None, True, False, 2)
  assert [(j.label, j.number) for j in upstream._jobs(request, base)] == [
      ("one", 0), ("two", 1)]
  text = upstream._section(base, request, [])
  assert "each patch alone\n\nOne test in 2 of each file" in text


def test_upstreams_files_of_some_releases_only(base, project):
  (patch,) = patches.load(project)
  patch = dataclasses.replace(patch, upstream_tests=(
      "a_test.py", "old_test.py <1", "new_test.py >=1"))
  assert upstream.areas_of(patch, base) == ["a_test.py", "new_test.py"]


def test_pristine_runs_once_for_what_fails_with_any_patch(
    tmp_path, monkeypatch, base, project, capsys):
  (patch,) = patches.load(project)
  series = [dataclasses.replace(patch, id=name, upstream_tests=("a_test.py",))
            for name in ("one", "two")]
  monkeypatch.setattr(patches, "load", lambda: series)
  made = environments.Environments(*(pathlib.Path(f"{side}/bin/python")
                       for side in ("pristine", "mended")), tmp_path)
  monkeypatch.setattr(upstream.environments, "build", lambda *a, **k: made)
  runs = []

  def run_file(python, path, *, limit, env, only=None, options=()):
    assert env["MEND_JAX"] == str(python.parents[1])
    runs.append((python.parts[0], env.get("MEND_SHARE"), only))
    if only:
      return {"T.old": RUDE, "T.new": Outcome("passed")}
    first = env["MEND_SHARE"] == "0/2"
    return {"T.old" if first else "T.new": RUDE, "T.good": Outcome("passed")}

  monkeypatch.setattr(upstream.pytest_run, "run_file", run_file)
  monkeypatch.setattr(pools, "workers", lambda: 1)
  write(tmp_path / "tests" / "a_test.py", "")
  request = upstream.Request(tmp_path, [], 1., None, True, False, 2)
  rows = upstream._run_base(request, base)
  assert runs == [("mended", "0/2", None), ("mended", "1/2", None),
                  ("pristine", None, ["T.new", "T.old"])]
  counts = {label: counts for label, _, counts in rows}
  assert counts["one"]["fail on pristine too"] == 1
  assert counts["two"]["newly failing"] == 1
  assert "NEWLY FAILING on 1.0 with two: a_test.py T.new" in (
      capsys.readouterr().out)


def test_files_that_were_not_run_again_keep_their_rows(
    tmp_path, monkeypatch, base):
  monkeypatch.setattr(upstream.bases, "ROOT", tmp_path)
  page = write(tmp_path / upstream.DOCUMENT, """\
    <!-- upstream-tests: written by build.py -->
    <!-- end upstream-tests -->
    """)
  counts = dict.fromkeys(verdicts.KINDS, 2)

  def rows(only, *files, share=1):
    """The runs of files that the page's totals count, and each sum."""
    request = upstream.Request(tmp_path, only, 1., None, False, True, share)
    monkeypatch.setattr(upstream, "_run_base", lambda r, b: [
        ("all patches", f, counts) for f in files])
    upstream.compare_wheels(request, [base])
    text = pages.section(page.read_text(), "## jax 1.0, together")
    (row,) = verdicts.rows_of(text)
    assert set(row[2:]) == {str(2 * int(row[1]))}
    assert row[0] == datetime.date.today().isoformat()
    file = tmp_path / "dist" / "upstream" / "1.0-together.md"
    return [row[1] for row in verdicts.rows_of(file.read_text())], int(row[1])

  with pytest.raises(MendError, match="no rows of one that this part"):
    rows(["x"], "a_test.py")
  assert rows([], "b_test.py", "c_test.py") == (["b_test.py", "c_test.py"], 2)
  assert rows(["x"], "a_test.py", "c_test.py") == (
      ["a_test.py", "b_test.py", "c_test.py"], 3)
  with pytest.raises(MendError, match="no rows of one that this part"):
    rows(["x"], "d_test.py", share=2)
  assert rows([], "a_test.py") == (["a_test.py"], 1)
