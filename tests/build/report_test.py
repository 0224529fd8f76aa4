# SPDX-License-Identifier: Apache-2.0
"""Output for the user: progress and tables."""

import re
import sys

from mend.ground import report
import pytest


def test_progress_is_lines_where_nobody_looks(capsys):
  with report.Progress(2) as progress:
    progress.begin("a")
    progress.end("a", "a: fine")
    progress.end("b", "b: not fine", good=False)
  assert capsys.readouterr().out == "[1/2] a: fine\n[2/2] b: not fine\n"


def test_progress_on_a_terminal_keeps_what_went_wrong(monkeypatch, capsys):
  monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
  with report.Progress(2) as progress:
    progress.begin("a")
    progress.end("a", "a: fine")
    progress.begin("b")
    progress.end("b", "b: [not] fine", good=False)
  said = capsys.readouterr().out
  assert "b: [not] fine" in said and "a: fine" not in said and "2/2" in said


@pytest.mark.parametrize("width", (80, 120))
def test_progress_keeps_count_and_clock_in_the_line(
    monkeypatch, capsys, width):
  """File names pushed them out: of 715 files, 3 was the last count seen."""
  monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
  monkeypatch.setenv("COLUMNS", str(width))
  monkeypatch.setenv("TTY_COMPATIBLE", "1")
  with report.Progress(715) as progress:
    for name in "abc":
      progress.begin(f"tests/varying/{name * 60}_test.py on mended 0.12.0.1")
    progress.end("x", "x: fine")
    progress._bar.refresh()
  lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capsys.readouterr().out)
  last = [line for line in re.split(r"[\r\n]+", lines) if line.strip()][-1]
  assert re.match(r" *1/715 0:00:\d\d ", last) and "aaa" in last
  assert "bbb" not in last and len(last.rstrip()) <= width, last


def test_a_table_on_a_terminal_fits_and_keeps_every_letter(
    monkeypatch, capsys):
  monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
  monkeypatch.setenv("COLUMNS", "40")
  name, word = "varying/two_processes", "pytorch/xla#8794"
  report.show(("patch", "report"), [(name, f"{word} {word}")])
  lines = capsys.readouterr().out.splitlines()
  # But for the header, which is bold.
  assert {len(line) for line in lines if "\x1b" not in line} == {40}
  assert any(name in line for line in lines)
  right = "".join(line.split("│")[2].strip() for line in lines if "│" in line)
  assert right == word * 2


def test_tables_are_aligned_and_escape_pipes():
  lines = report.table(("a", "b"), [("1", "x|y"), ("long", "z")]).splitlines()
  assert len({len(line) for line in lines}) == 1 and "x\\|y" in lines[2]
