# SPDX-License-Identifier: Apache-2.0
"""CI's last line: what ran, what failed, and what could not be run."""

import os
import re
import shutil
import subprocess
import sys

from conftest import ROOT, write
from mend import cli
from mend.releases import bases
import pytest
from ruamel.yaml import YAML

GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
FORMS = sorted((GITHUB / "ISSUE_TEMPLATE").glob("[!c]*.yml"))


@pytest.mark.parametrize("tool,bazel,code,last", [
    ("echo '7 passed, 0 failed, 1 skipped'; echo OK: fine", "exit 0", 0,
     "8 passed, 0 failed, 1 skipped"),
    ("echo '7 passed, 0 failed, 1 skipped'", "echo not run; exit 77", 0,
     "7 passed, 0 failed, 2 skipped"),
    ("echo '7 passed, 0 failed, 1 skipped'", "exit 1", 1,
     "7 passed, 1 failed, 1 skipped"),
    ("echo '5 passed, 2 failed, 0 skipped'; exit 1", "exit 77", 1,
     "5 passed, 2 failed, 1 skipped"),
    ("echo FAILED: no Python >&2; exit 2", "exit 0", 2,
     "1 passed, 1 failed, 0 skipped")])
def test_the_last_line(tmp_path, tool, bazel, code, last):
  (tmp_path / ".ci").mkdir()
  shutil.copy2(ROOT / ".ci" / "run", tmp_path / ".ci" / "run")
  for name, body in ((".ci/bazel", bazel), ("bin/python3", tool)):
    write(tmp_path / name, f"#!/bin/sh\n{body}\n").chmod(0o755)
  done = subprocess.run(
      [tmp_path / ".ci" / "run"], capture_output=True, text=True, check=False,
      env={**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"})
  assert done.stdout.splitlines()[-1] == last
  assert done.returncode == code


def check_schema(*files, kind="workflows"):
  return subprocess.run(
      [sys.executable, "-m", "check_jsonschema", "--builtin-schema",
       f"vendor.github-{kind}", *files], capture_output=True, text=True,
      check=False)


def commands(name):
  """The commands of each job of a workflow."""
  data = YAML(typ="safe").load(ROOT / ".github" / "workflows" / name)
  return {job: [step["run"] for step in found["steps"] if "run" in step]
          for job, found in data["jobs"].items()}, data["jobs"]


def test_the_workflows_are_what_their_schema_wants(tmp_path):
  assert len(WORKFLOWS) == 4
  done = check_schema(*WORKFLOWS)
  assert done.returncode == 0, done.stdout
  text = WORKFLOWS[0].read_text("utf-8")
  bad = write(tmp_path / "bad.yml", text.replace("runs-on:", "run-on:", 1))
  assert check_schema(bad).returncode == 1


def test_the_forms_are_what_their_schema_wants(tmp_path):
  assert len(FORMS) == 3
  done = check_schema(*FORMS, kind="issue-forms")
  assert done.returncode == 0, done.stdout
  text = FORMS[0].read_text("utf-8")
  bad = write(tmp_path / "bad.yml", text.replace("body:", "bodies:", 1))
  assert check_schema(bad, kind="issue-forms").returncode == 1
  config = GITHUB / "ISSUE_TEMPLATE" / "config.yml"
  done = check_schema(config, kind="issue-config")
  assert done.returncode == 0, done.stdout


def test_actions_are_pinned_by_hash():
  found = [line.partition("uses: ")[2] for file in WORKFLOWS
           for line in file.read_text("utf-8").splitlines() if "uses:" in line]
  for action in found:
    assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}  # v[\d.]+", action)
  assert len(found) >= 10
  of_one = {action.partition("@")[0] for action in found}
  assert len(of_one) == len(set(found)), "one version of each"


def test_the_workflows_call_what_ci_calls():
  run = (ROOT / ".ci" / "run").read_text("utf-8")
  assert "python3 build/build.py test --base=all" in run
  called, jobs = commands("tests.yml")
  assert called["line"] == [
      "python3 build/build.py test --base=${{ matrix.line }} "
      "--share=${{ matrix.share }} --since=${{ "
      "github.event.pull_request.base.sha || github.event.before }}"]
  lines = list(dict.fromkeys(b.line for b in bases.releases()))
  matrix = jobs["line"]["strategy"]["matrix"]
  assert [*matrix["line"], lines[-1]] == lines
  assert matrix["share"] == ["1/1"] and matrix["include"] == [
      {"line": lines[-1], "share": share} for share in ("1/2", "2/2")]
  assert ".ci/bazel" in run and called["bazel"][0].startswith(".ci/bazel")
  for line in called["lint"]:
    cli._parser().parse_args(line.split()[2:])


def test_all_tests_run_at_night_and_all_mutants_once_a_week():
  called, jobs = commands("nightly.yml")
  matrix = jobs["whole"]["strategy"]["matrix"]
  lines = list(dict.fromkeys(b.line for b in bases.releases()))
  assert (matrix["line"], matrix["share"]) == (lines, [1, 2, 3, 4])
  (line,) = called["whole"]
  assert line.endswith("--base=${{ matrix.line }} --whole "
                       "--share=${{ matrix.share }}/4")
  (line,) = commands("weekly.yml")[0]["mutation"]
  args = cli._parser().parse_args(line.split()[2:])
  assert args.mutation and len(bases.chosen(args.base)) == 4


def test_a_tag_has_the_wheels_of_every_release():
  called, jobs = commands("wheels.yml")
  matrix = jobs["jax"]["strategy"]["matrix"]
  twins = {i["line"]: i["twins"] for i in matrix["include"]}
  made = [base.version for line in matrix["line"]
          for base in bases.chosen(line + twins.get(line, ""))]
  assert sorted(made) == sorted(b.version for b in bases.releases())
  (line,) = called["jax"]
  assert line.endswith("--base=${{ matrix.line }}${{ matrix.twins }}")
  (line,) = called.pop("release")
  assert line == '.ci/release "$GITHUB_REF_NAME" dist'
  assert jobs["release"]["if"] == "github.ref_type == 'tag'"
  assert set(jobs["release"]["needs"]) == set(called)
  for found in called.values():
    cli._parser().parse_args(found[0].partition("${{")[0].split()[2:])


@pytest.fixture
def tagged(tmp_path):
  """A checkout of v2 with the wheels of its one release; `gh` writes `said`."""
  (tmp_path / ".ci").mkdir()
  shutil.copy2(ROOT / ".ci" / "release", tmp_path / ".ci" / "release")
  write(tmp_path / "bin" / "gh", '#!/bin/sh\necho "$@" >../said\n').chmod(0o755)
  for name, text in {
      "build/bases.toml": 'release = 2  # ours\n[[base]]\nversion = "1.0"\n',
      "CHANGELOG.md": ("# Log\n\n## mend.2 (May 1, 2027)\n\n* new\n\n"
                       "## mend.1 (March 5, 2027)\n\n* old\n"),
      "live/table/1.0.json": "{}", "dist/jax-1.0+mend.2-proof.md": "good",
      "dist/jax-1.0+mend.2-py3-none-any.whl": "one",
      "dist/jax_mend-2.0-py3-none-any.whl": "two"}.items():
    write(tmp_path / name, text)
  return tmp_path


def make_release(folder, tag="v2"):
  return subprocess.run(
      [folder / ".ci" / "release", tag, "dist"], capture_output=True,
      text=True, check=False,
      env={**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"})


def test_a_draft_has_wheels_table_and_checksums(tagged):
  done = make_release(tagged)
  assert done.returncode == 0, done.stderr
  assert done.stdout == "Release: a draft of v2 with 1 wheels of jax.\n"
  said = (tagged / "said").read_text("utf-8").split()
  assert said[:5] == ["release", "create", "v2", "--draft", "--verify-tag"]
  sums = (tagged / "dist" / "SHA256SUMS").read_text("utf-8").splitlines()
  files = [line.split()[1] for line in sums]
  assert files == ["jax-1.0+mend.2-py3-none-any.whl",
                   "jax_mend-2.0-py3-none-any.whl", "jax-1.0+mend.2-proof.md",
                   "jax-mend-2.0-table.tar.gz"]
  assert said[-5:] == [*files, "SHA256SUMS"]
  subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"],
                 cwd=tagged / "dist", check=True)
  notes = (tagged / "dist" / "notes").read_text("utf-8")
  assert "* new" in notes and "* old" not in notes
  assert make_release(tagged).returncode == 0
  assert (tagged / "dist" / "SHA256SUMS").read_text("utf-8").split() == (
      "\n".join(sums).split())  # the same bytes when it is made again


@pytest.mark.parametrize("tag,file,text,words", [
    ("v1", "", "", "the tag is v1"), ("v2.1", "", "", "the tag is v2.1"),
    ("v2", "CHANGELOG.md", "## mend.2 (unreleased)\n", "has no date"),
    ("v2", "build/bases.toml", "release = 2\n[[base]]\n[[base]]\n",
     "1 wheels of jax, wanted 2"),
    ("v2", "dist/jax_mend-2.0-py3-none-any.whl", None, "no wheel of jax-mend")])
def test_what_is_no_release_is_refused(tagged, tag, file, text, words):
  if text is None:
    (tagged / file).unlink()
  elif file:
    write(tagged / file, text)
  done = make_release(tagged, tag)
  assert done.returncode == 1 and words in done.stderr
  assert "Next: " in done.stderr and not (tagged / "said").exists()
