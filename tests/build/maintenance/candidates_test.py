# SPDX-License-Identifier: Apache-2.0
"""The series against a jax that is no base: states, verdicts, the document."""

import dataclasses
import pathlib
import sys

from conftest import GREET, PATCH, write
from mend.editing import patches, reproductions
from mend.ground.errors import MendError
from mend.proof import pytest_run
from mend.proof.pytest_run import Outcome
from mend.releases import bases
from mend.trees import drift, tree
from mend.proof.reproduce import Outcome as Seen
from mend.upkeep import candidate_defects, candidate_report, candidates
from mend.upkeep.candidate_report import Proof, Row
from mend.upstream.main_branch import Run
import pytest


@pytest.fixture
def candidate(project, upstream, base):
  """A later release; the base before it has been reviewed."""
  series = patches.load(project)
  drift.record(drift.states(series, base, upstream, project), project)
  write(upstream / "jax" / "version.py", '_version = "1.1"\n')
  return candidates.find(str(upstream))


def states(project, candidate):
  found = candidates.states(patches.load(project), candidate, project)
  return [s.state for s in found]


def test_the_version_is_read_from_a_tree(candidate, tmp_path):
  assert (candidate.base.version, candidate.released) == ("1.1", False)
  with pytest.raises(MendError, match="no version in jax/version.py"):
    candidates.find(str(tmp_path))
  with pytest.raises(MendError, match="no version and no folder"):
    candidates.find("newest")
  write(candidate.source / tree.MANIFEST, "")
  with pytest.raises(MendError, match="already mended"):
    candidates.find(str(candidate.source))


def test_a_definition_that_some_base_has_is_exact(project, candidate):
  assert states(project, candidate) == ["exact", "exact"]


def test_drifted_gone_and_already_there(project, candidate):
  path = candidate.source / "jax" / "_src" / "greet.py"
  write(path, GREET.replace("oi ", "oy "))
  assert states(project, candidate) == ["exact", "drifted"]
  write(path, GREET.replace('out = "oi " + name',
                            "return polite.greeting(name)"))
  assert states(project, candidate) == ["exact", "already there"]
  write(path, GREET.replace("def greet(", "def salute("))
  assert states(project, candidate) == ["exact", "gone"]


def test_the_edits_of_the_base_that_fits_better_are_tried(
    project, candidate, monkeypatch):
  around = [bases.Base(v, "0" * 64, ">=3.10", ())
            for v in ("1.0", "2.0", "3.0")]
  monkeypatch.setattr(bases, "all_bases", lambda: tuple(around))
  monkeypatch.setattr(bases, "ROOT", project)
  assert [b.version for b in candidates.neighbours("0.9")] == ["1.0"]
  assert [b.version for b in candidates.neighbours("1.1")] == ["1.0", "2.0"]
  assert [b.version for b in candidates.neighbours("2.0")] == ["2.0"]
  assert [b.version for b in candidates.neighbours("3.1")] == ["3.0"]
  write(project / "patches" / "greet" / "greeting.toml", PATCH.replace(
      'in = "Greeter.greet"', 'in = "Greeter.greet"\nbases = ">=2.0"') + """
[[edit]]
file = "jax/_src/greet.py"
op = "decorate"
in = "Greeter.gone"
code = "@polite.person"
bases = "<2.0"
""")
  ((patch, version),) = candidates.adapted(
      patches.load(project), candidate, project)
  assert version == "2.0"
  assert [e.op for e in patch.edits] == ["add_import", "replace_body"]
  # No edits at all on 2.0 is no better fit than one that has drifted on 1.0.
  path = candidate.source / "jax" / "_src" / "greet.py"
  write(path, GREET.replace("oi ", "oy "))
  write(project / "patches" / "greet" / "greeting.toml", PATCH.replace(
      'in = "Greeter.greet"', 'in = "Greeter.greet"\nbases = "<2.0"').replace(
          'op = "add_import"', 'op = "add_import"\nbases = "<2.0"'))
  ((patch, version),) = candidates.adapted(
      patches.load(project), candidate, project)
  assert version == "1.0" and len(patch.edits) == 2


def test_only_patches_whose_edits_are_found_apply(project, candidate):
  series = patches.load(project)
  found = candidates.states(series, candidate, project)
  assert candidates.applicable(series, candidate.base, found) == list(series)
  write(candidate.source / "jax" / "_src" / "greet.py",
        GREET.replace("def greet(", "def salute("))
  found = candidates.states(series, candidate, project)
  assert not candidates.applicable(series, candidate.base, found)


def test_a_damaged_download_is_fetched_again(tmp_path, monkeypatch):
  monkeypatch.setenv("MEND_CACHE", str(tmp_path))
  monkeypatch.setattr(candidates, "requirements", lambda t: (">=3.10", ()))
  monkeypatch.setattr(candidates.source, "pristine", lambda b: tmp_path)
  fetched = []

  def download(version, folder):
    fetched.append(version)
    write(folder / f"jax-{version}.tar.gz", "what upstream has")

  monkeypatch.setattr(candidates, "_download", download)
  first = candidates.release("9.9")
  assert candidates.release("9.9") == first and len(fetched) == 1
  write(tmp_path / "sdists" / "jax-9.9.tar.gz", "half of it")
  assert candidates.release("9.9") == first and len(fetched) == 2


def test_what_a_release_asks_for(tmp_path):
  write(tmp_path / "PKG-INFO", """
      Metadata-Version: 2.1
      Name: jax
      Requires-Python: >=3.11
      Requires-Dist: jaxlib<=1.1,>=1.0
      Requires-Dist: numpy>=2
      Requires-Dist: jaxlib==1.0; extra == "ci"

      Words.
      """)
  python, wanted = candidates.requirements(tmp_path)
  assert (python, [str(r) for r in wanted]) == (
      ">=3.11", ["jaxlib<=1.1,>=1.0", "numpy>=2"])
  write(tmp_path / "PKG-INFO", "Name: jax\nRequires-Python: >=3.10\n")
  write(tmp_path / "jax.egg-info" / "requires.txt",
        "jaxlib==1.0\nnumpy\n\n[ci]\njaxlib==0.9\n")
  python, wanted = candidates.requirements(tmp_path)
  assert (python, [str(r) for r in wanted]) == (
      ">=3.10", ["jaxlib==1.0", "numpy"])


@pytest.mark.parametrize("row,verdict", [
    (Row("p", {"exact": 2}, (3, 3), Proof(5)), "works"),
    (Row("p", {"exact": 1, "drifted": 2}, (3, 3), Proof(5)),
     "works; review 2 drifted"),
    (Row("p", {"exact": 1, "drifted": 2}, (1, 3), Proof(5)),
     "works; 2 of 3 regressions gone upstream; review 2 drifted"),
    (Row("p", {"exact": 2}, (0, 3), Proof(5)), "upstream has it: retire"),
    (Row("p", {"exact": 2}, (0, 3), Proof(5), guards=(1, 4)),
     "upstream has it: retire, after a look at 1 guard"),
    (Row("p", {"gone": 1}, (0, 3)), "upstream has it: retire"),
    (Row("p", {"gone": 1}, (3, 3)), "port 1 edit"),
    (Row("p", {"gone": 2}), "port 2 edits"),
    (Row("p", {"already there": 1}), "partly there: look"),
    (Row("p", {"exact": 2}), "run its tests"),
    (Row("p", {"exact": 2}, (1, 3)), "port what it needs"),
    (Row("p", {"exact": 2}, (1, 3), Proof(4, left=1)),
     "look at tests: 1 not mended"),
    (Row("p", {"exact": 2}, (3, 3), Proof(4, broken=2, differ=1, units=3)),
     "look at tests: 2 broken by it, 3 of its modules, "
     "1 that pristine fails too"),
    (Row("p", {}, (0, 0), Proof(3)), "works"),  # unit tests only
    (Row("p", {}, (0, 0), Proof()), "no test of its own: as what needs it")])
def test_the_verdict(row, verdict):
  assert row.verdict == verdict
  assert row.cells()[-1] == verdict


def greeting(**outcomes):
  """Outcomes of the regression test file, by the tests' last names."""
  return {"tests/greet/greeting_test.py": {
      f"GreetingTest.test_{name}": Outcome(status)
      for name, status in outcomes.items()}}


def test_regressions_and_guards_are_counted_apart(project):
  (patch,) = patches.load(project)
  for outcomes, red, guards in (
      (greeting(polite="failed", other="failed"), (1, 1), (1, 1)),
      (greeting(polite="passed", other="passed"), (0, 1), (0, 1)),
      (greeting(polite="skipped", other="skipped"), (0, 0), (0, 0)),
      ({"tests/greet/greeting_test.py": {
          pytest_run.COLLECTING: Outcome("failed")}}, (1, 1), (0, 0))):
    assert candidate_report.judge_red(patch, outcomes) == red
    assert candidate_report.judge_guards(patch, outcomes) == guards


def test_what_fails_on_mended_is_held_against_pristine(project, capsys):
  (patch,) = patches.load(project)
  before = greeting(polite="failed", other="passed", more="failed")
  fine = greeting(polite="passed", other="passed", more="passed")
  assert candidate_report.judge(patch, before, fine) == Proof(3)
  after = greeting(polite="failed", other="failed", more="failed")
  assert candidate_report.judge(patch, before, after) == Proof(
      0, left=1, broken=1, differ=1)
  file = "tests/greet/greeting_test.py"
  assert f"FAILS, broken: {file} GreetingTest.test_other" in (
      capsys.readouterr().out)
  patch = dataclasses.replace(patch, tests=(),
                              unit_tests=("tests/greet/greeting_test.py",))
  assert candidate_report.judge(patch, {}, after) == Proof(0, units=3)


def test_what_is_fixed_there(project, candidate, monkeypatch, capsys):
  (item,) = reproductions.collect(patches.load(project), project)
  items = [dataclasses.replace(item, patch=p) for p in "aabcc"]
  outcomes = [Seen(s, "") for s in ("PASS", "PASS", "FAIL", "PASS", "n/a")]
  found = candidate_defects.counted([*items, item], [*outcomes, outcomes[-1]])
  assert found == {"a": (0, 2), "b": (1, 1), "c": (0, 1)}
  stored = []
  monkeypatch.setattr(candidate_defects.main_branch, "store",
                      stored.append)
  run = Run("c", "2026-08-08", "2026-11-28", {**found, "d": (1, 2)})
  candidate_defects.announce(candidate, run, False)
  said = capsys.readouterr().out
  assert not stored and "b:" not in said
  assert "FIXED THERE: a: 2 of 2 programs pass unpatched; retire it" in said
  assert "FIXED THERE: d: 1 of 2 programs pass unpatched\n" in said
  assert "2 of 6 programs show their defect on jax 1.1." in said
  candidate_defects.announce(candidate, run, True)
  assert stored == [run]


def test_the_programs_run_on_the_tree(project, candidate, base, monkeypatch):
  monkeypatch.setattr(
      candidate_defects.reproductions, "collect",
      lambda series, collect=reproductions.collect: collect(series, project))
  monkeypatch.setattr(candidate_defects, "_python", lambda c: (
      pathlib.Path(sys.executable), {"PYTHONPATH": str(c.source)}))
  series = patches.load(project)
  run = candidate_defects.run(candidate, series)
  assert run.patches == {"greet/greeting": (1, 1)} and run.commit == ""
  write(candidate.source / "jax" / "_src" / "greet.py",
        GREET.replace("oi ", "Hello, "))
  assert candidate_defects.run(candidate, series).counts == (0, 1)


def test_the_exit_status_and_the_document(project, candidate, base,
                                          monkeypatch, capsys):
  document = write(project / candidate_report.DOCUMENT, """
      # Words
      <!-- candidates: written by build.py -->
      ## jax 1.10

      kept

      ## jax 1.1

      old
      <!-- end candidates -->
      """)
  series = patches.load(project)
  monkeypatch.setattr(candidate_report.bases, "ROOT", project)
  monkeypatch.setattr(candidate_report.patches, "load", lambda: series)
  monkeypatch.setattr(
      candidate_report.candidates, "states",
      lambda s, c, _=None, states=candidates.states: states(s, c, project))
  monkeypatch.setattr(candidate_report.bases, "all_bases", lambda: (base,))
  assert candidate_report.check([str(candidate.source)], True, True).good
  text = document.read_text(encoding="utf-8")
  assert text.count("## jax 1.1\n") == 1 and "old" not in text
  assert text.index("## jax 1.1\n") < text.index("## jax 1.10\n\nkept")
  assert "not run. Edits: 2 exact." in text and "| greet" not in text
  write(candidate.source / "jax" / "_src" / "greet.py",
        GREET.replace("def greet(", "def salute("))
  assert not candidate_report.check([str(candidate.source)], True, False).good
  assert "GONE: patch greet/greeting" in capsys.readouterr().out
