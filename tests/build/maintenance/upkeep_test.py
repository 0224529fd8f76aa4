# SPDX-License-Identifier: Apache-2.0
"""Starting, retiring and adding: what `new`, `retire` write."""

import dataclasses
import subprocess
import sys

from conftest import PATCH, write
from mend.editing import expected_failures, patches, sendable
from mend.ground.errors import MendError
from mend.proof import pytest_run
from mend.releases import bases
from mend.upkeep import candidate_report, lifecycle
import pytest


def bases_of(monkeypatch, *versions):
  found = tuple(bases.Base(v, "0" * 64, ">=3.10", ()) for v in versions)
  monkeypatch.setattr(bases, "all_bases", lambda: found)


def test_a_new_patch_loads_and_its_test_fails(project):
  files = lifecycle.new("greet/loop_carry", "jax#28193", ">=1.0", project)
  assert "jax/_src/greeting/loop_carry.py" in files
  assert "tests/greet/loop_carry_test.py" in files
  patch = patches.load(project)[-1]
  assert (patch.id, patch.issues, patch.bases) == (
      "greet/loop_carry", ("jax#28193",), ">=1.0")
  assert patch.red[0].tests == ("LoopCarryTest.test_regression(*",)
  for file in files:
    if file.endswith(".py"):
      source = (project / file).read_text(encoding="utf-8")
      compile(source, file, "exec")
      assert source.startswith("# SPDX-License-Identifier: Apache-2.0\n")
  code = "import runpy; runpy.run_path('reproductions/greet/loop_carry.py')"
  code += "['loop_carry']()"
  done = subprocess.run([sys.executable, "-c", code], cwd=project,
                        capture_output=True, text=True, check=False)
  assert "write the reproduction" in done.stderr
  assert (project / "patches" / "series").read_text().endswith(
      "the only one\ngreet/loop_carry\n")


@pytest.mark.parametrize("name", [
    "loop", "greet/Loop", "greet/loop-carry", "greet/_loop", "greet/a__b",
    "other/loop", "greet/a/b", ""])
def test_a_bad_name(name, project):
  with pytest.raises(MendError, match="no name for a patch"):
    lifecycle.new(name, "jax#1", ">=1.0", project)


def test_what_exists_is_not_overwritten(project):
  path = project / "patches" / "greet" / "greeting.toml"
  before = path.read_bytes()
  with pytest.raises(MendError, match="greeting.toml.* already exists"):
    lifecycle.new("greet/greeting", "jax#1", ">=1.0", project)
  assert path.read_bytes() == before
  with pytest.raises(MendError, match="no version specifier"):
    lifecycle.new("greet/other", "jax#1", "newest", project)
  assert not (project / "tests" / "greet" / "other_test.py").exists()


def test_retiring_moves_the_patch_and_its_files(project, monkeypatch):
  bases_of(monkeypatch, "2.0")
  write(project / "patches" / "fingerprints" / "greet" / "greeting.json", "{}")
  done = lifecycle.retire("greet/greeting", "2.0", project)
  assert "removed patches/greet/greeting.toml" in done
  assert not list((project / "jax" / "_src").glob("polite.py"))
  assert not list((project / "patches" / "fingerprints" / "greet").iterdir())
  assert patches.load(project) == ()
  (entry,) = bases.read_toml(project / lifecycle.RETIRED)["retired"]
  assert entry["id"] == "greet/greeting" and entry["landed_in"] == "2.0"
  assert entry["issues"] == ["toy#1"]


def test_retiring_keeps_what_other_patches_name(project, monkeypatch):
  bases_of(monkeypatch, "2.0")
  write(project / "patches" / "series", "greet/greeting\ngreet/other\n")
  write(project / "patches" / "greet" / "other.toml",
        PATCH.replace('id = "greet/greeting"', 'id = "greet/other"'))
  lifecycle.retire("greet/greeting", "2.0", project)
  assert [p.id for p in patches.load(project)] == ["greet/other"]
  lifecycle.retire("greet/other", "2.0", project)
  assert len(bases.read_toml(project / lifecycle.RETIRED)["retired"]) == 2
  assert not (project / "tests" / "greet" / "greeting_test.py").exists()


def test_an_older_base_keeps_the_patch(project, monkeypatch):
  bases_of(monkeypatch, "1.0", "2.0")
  path = project / "patches" / "greet" / "greeting.toml"
  text = "# Why.\n" + PATCH.replace('">=1.0"', '">=1.0"  # Of which.')
  write(path, text)
  (said,) = lifecycle.retire("greet/greeting", "2.0", project)
  assert "stays for 1.0" in said
  new = path.read_text("utf-8").splitlines()
  changed = set(text.splitlines()) - set(new)
  assert {line.split()[0] for line in changed} == {"bases", "upstream"}
  assert len(new) == len(text.splitlines())
  assert 'bases = ">=1.0,<2.0"  # Of which.' in new
  (patch,) = patches.load(project)
  assert patch.bases == ">=1.0,<2.0"
  assert patch.upstream == sendable.Upstream("merged", "", "2.0")
  lifecycle.retire("greet/greeting", "2.0", project)
  assert patches.load(project)[0].bases == ">=1.0,<2.0"


def test_what_cannot_retire(project, monkeypatch):
  bases_of(monkeypatch, "2.0")
  with pytest.raises(MendError, match="no patch 'unknown'.*\n.*py status"):
    lifecycle.retire("unknown", "2.0", project)
  with pytest.raises(MendError, match="no version"):
    lifecycle.retire("greet/greeting", "soon", project)
  write(project / "patches" / "series", "greet/greeting\ngreet/other\n")
  text = PATCH.replace('id = "greet/greeting"',
                       'id = "greet/other"\ndepends = ["greet/greeting"]')
  write(project / "patches" / "greet" / "other.toml", text)
  with pytest.raises(MendError, match="needed by greet/other"):
    lifecycle.retire("greet/greeting", "2.0", project)
  assert (project / "patches" / "greet" / "greeting.toml").exists()


def test_dependents_are_looked_at_base_by_base(project, monkeypatch):
  bases_of(monkeypatch, "1.0", "2.0")
  write(project / "patches" / "series", "greet/greeting\ngreet/other\n")
  text = PATCH.replace('id = "greet/greeting"',
                       'id = "greet/other"\ndepends = ["greet/greeting"]')
  other = project / "patches" / "greet" / "other.toml"
  write(other, text)
  with pytest.raises(MendError, match=r"needed by greet/other \(jax 2\.0\)"):
    lifecycle.retire("greet/greeting", "2.0", project)
  write(other, text.replace('bases = ">=1.0"', 'bases = "<2.0"'))
  assert patches.load(project)[1].bases == "<2.0"
  (said,) = lifecycle.retire("greet/greeting", "2.0", project)
  assert "stays for 1.0" in said


@pytest.mark.parametrize("outcomes", [
    {"T.test_a": "failed"}, {"T.test_a": "skipped"}, {},
    {"T.test_a": "passed"}])
def test_what_is_said_to_have_landed_is_tried(monkeypatch, capsys, outcomes):
  base = bases.Base("2.0", "0" * 64, ">=3.10", ())
  monkeypatch.setattr(candidate_report.candidates, "release", lambda v: base)
  monkeypatch.setattr(candidate_report.interpreters, "for_base",
                      lambda b: "python")
  monkeypatch.setattr(candidate_report.environments, "pristine_only",
                      lambda *a: "python")
  monkeypatch.setattr(candidate_report, "_run", lambda python, files: {
      "t": {k: pytest_run.Outcome(v) for k, v in outcomes.items()}})
  patch = dataclasses.replace(patches.load()[0], tests=("t",), red=(
      expected_failures.Red(("T.*",), "reason"),))
  if "passed" in outcomes.values():
    candidate_report.require_landed(patch, "2.0")
    assert "1 regression of the patch pass" in capsys.readouterr().out
  else:
    with pytest.raises(MendError, match="hasn't got patch .* fail there"):
      candidate_report.require_landed(patch, "2.0")


def test_a_patch_with_what_it_needs(project):
  texts = {"greet/a": [], "greet/b": ["greet/a"], "greet/c": [],
           "greet/d": ["greet/b"]}
  write(project / "patches" / "series", "\n".join(texts) + "\n")
  for name, needs in texts.items():
    write(project / "patches" / f"{name}.toml", PATCH.replace(
        'id = "greet/greeting"', f'id = "{name}"\ndepends = {needs}'.replace(
            "'", '"')))
  series = patches.load(project)
  ids = [p.id for p in patches.with_needed(series, "greet/d")]
  assert ids == ["greet/a", "greet/b", "greet/d"]
  assert [p.id for p in patches.select(series, ["greet/d"])] == ids
