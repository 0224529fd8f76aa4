# SPDX-License-Identifier: Apache-2.0
"""`build.py fuzz`: what is counted, kept, and taken up again."""

import json
import sys
import textwrap
import time
import types

from mend.ground.errors import MendError
from mend.suites import fuzzing
import pytest

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="nothing is forked on this system")
# Instead of running programs: the seed says what becomes of each.
PROBE = """
    import json, os, sys
    task = json.load(sys.stdin)
    def write(**record):
      with open(task["events"], "a") as out:
        out.write(json.dumps(record) + "\\n")
    for seed in task["seeds"]:
      write(begins=seed)
      if seed == 3 or seed == 4 and not os.environ.get("MEND_FUZZ_UNCHECKED"):
        os._exit(9)
      if seed == 7 and len(task["seeds"]) > 1:
        os._exit(9)
      kind = {5: "refused", 6: "oracle", 9: "unsound"}.get(seed, "")
      if seed == 5 and os.environ.get("MEND_FUZZ_AS_MENDED"):
        assert not task["shrink"]
        kind = ""
      write(seed=seed, kind=kind, text="words", features=[f"f{seed % 3}"],
            took=1.)
      if kind == "refused":
        write(seed=seed, program="long")
        write(seed=seed, program="short")
"""


@pytest.fixture
def fuzz(tmp_path, monkeypatch):
  """Runs `fuzz` on an invented base; returns the verdict and the table."""
  (tmp_path / "probe.py").write_text(textwrap.dedent(PROBE))
  rows = []
  monkeypatch.setattr(fuzzing, "_PROBE", tmp_path / "probe.py")
  monkeypatch.setattr(fuzzing, "_PRELOAD", ("json",))
  monkeypatch.setattr(fuzzing, "_LINE", .05)
  monkeypatch.setattr(fuzzing, "_CHUNK", 4)
  monkeypatch.setattr(fuzzing.interpreters, "for_base", lambda *_, **__: "")
  monkeypatch.setattr(fuzzing.environments, "build", lambda *_, **__: (
      types.SimpleNamespace(
          mended=fuzzing.pathlib.Path(sys.executable),
          pristine=fuzzing.pathlib.Path(sys.executable),
          wheel=types.SimpleNamespace(name="jax-1.0+mend.1"))))
  monkeypatch.setattr(fuzzing.report, "show", lambda header, found: rows.extend(
      dict(zip(header, r)) for r in found))

  def run(programs, seed=0, jobs=2):
    request = fuzzing.Request(programs, seed, jobs, tmp_path / "kept")
    base = types.SimpleNamespace(version="1.0")
    return fuzzing.fuzz(request, [base]), rows[-1], tmp_path / "kept"
  return run


def test_what_became_of_the_programs_is_counted(fuzz):
  verdict, row, folder = fuzz(10)
  assert not verdict.good and "10 programs, 3 faults" in verdict.words
  assert (row["seeds"], row["programs"], row["features"]) == (
      "0 to 9", "10", "3")
  assert row["refused"] == row["no verdict"] == "1"
  assert row["crashes of jaxlib alone"] == "1"  # with the check off, too
  assert row["crashes, hangs"] == "1"
  assert row["wrong values"] == "0" and row["unsound"] == "1"
  assert row["pristine is right"] == "1"  # the one that is refused
  assert (folder / "1.0-5.py").read_text() == "short"


def test_what_dies_among_others_only_is_no_crash(fuzz):
  verdict, row, _ = fuzz(2, 7)
  assert verdict.good and "1 died among others" in verdict.words
  assert row["crashes, hangs"] == row["crashes of jaxlib alone"] == "0"


def test_a_stopped_run_goes_on(fuzz, monkeypatch, capsys):
  fuzz(4)
  attempts = []
  attempt = fuzzing._attempt
  monkeypatch.setattr(fuzzing, "_attempt", lambda run, server, seeds, **more: (
      attempts.extend(seeds), attempt(run, server, seeds, **more))[1])
  _, row, folder = fuzz(8, jobs=1)
  assert min(attempts) == 4 and row["programs"] == "8"
  assert "1.0: 8 of 8 programs, 2 faults, 1 without a verdict" in (
      capsys.readouterr().err)
  kept, = folder.glob("*.jsonl")
  assert sorted(json.loads(line)["seed"]
                for line in kept.read_text().splitlines()) == [*range(8)]


def test_a_stopped_run_kills_what_runs_and_counts_no_crash(
    fuzz, tmp_path, monkeypatch):
  probe = tmp_path / "probe.py"
  probe.write_text(probe.read_text().replace(
      "write(begins=seed)", "write(begins=seed)\n  import time\n"
      "  time.sleep(60 * (seed == 1))"))

  def stop(line, end=""):
    raise KeyboardInterrupt
  monkeypatch.setattr(fuzzing, "_say", stop)
  began = time.monotonic()
  with pytest.raises(KeyboardInterrupt):
    fuzz(3)
  assert time.monotonic() - began < 30
  kept = [line for f in (tmp_path / "kept").glob("*.jsonl")
          for line in f.read_text().splitlines()]
  assert not [line for line in kept if "crash" in line]


def test_another_program_generator_starts_anew(fuzz, tmp_path):
  fuzz(3)
  with open(tmp_path / "probe.py", "a") as out:
    out.write("# changed\n")
  _, _, folder = fuzz(3)
  assert len(list(folder.glob("*.jsonl"))) == 2


def test_too_many_without_a_verdict_fail(fuzz, monkeypatch):
  assert fuzz(1, 6)[0].good  # one is chance
  monkeypatch.setattr(fuzzing, "_SILENT", -1.)
  verdict, *_ = fuzz(1, 6)
  assert not verdict.good and "failed on 1 of 1 on 1.0" in verdict.words


def test_a_process_that_begins_no_program_is_an_error(fuzz, tmp_path):
  (tmp_path / "probe.py").write_text("raise ValueError('nothing works')")
  with pytest.raises(MendError, match="nothing works"):
    fuzz(2)
