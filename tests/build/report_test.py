"""Output for the user: progress and tables."""

import sys

from mend.ground import report


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
