# SPDX-License-Identifier: Apache-2.0
"""README's minutes are those of the last noted run."""

from conftest import write
from mend.ground.errors import MendError
from mend.proof import minutes
import pytest


def test_readme_says_what_the_last_run_took():
  assert 1 / 1.5 <= minutes.said() / minutes.noted() <= 1.5


def test_a_run_writes_its_minutes(tmp_path, monkeypatch):
  readme = write(tmp_path / "README.md", "Run it (15 minutes on two cores; x):")
  (tmp_path / minutes.FILE).parent.mkdir()
  monkeypatch.setattr(minutes, "processor_seconds", lambda: 610.4)
  minutes.note(tmp_path)
  assert readme.read_text("utf-8") == "Run it (5 minutes on two cores; x):"
  assert minutes.said(tmp_path) == 5
  assert abs(minutes.noted(tmp_path) - 610 / 120) < .01
  readme.write_text("nothing", encoding="utf-8")
  with pytest.raises(MendError, match="says no minutes"):
    minutes.said(tmp_path)


def test_the_time_of_children_counts():
  assert minutes.processor_seconds() > 0
