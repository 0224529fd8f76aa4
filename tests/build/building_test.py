# SPDX-License-Identifier: Apache-2.0
"""A build: its words, the file that it keeps, its metadata."""

import email
import sys
import tarfile

from mend.proof import building, reproduce
from mend.releases import bases
from mend.trees import backend
import pytest


def test_the_table_of_a_proof_is_in_a_file(tmp_path, capsys):
  """143 rows buried the line that says what to install."""
  base = bases.get("0.6.2")
  file = building._table_file(tmp_path / "jax-0.6.2+mend.1-py3-any.whl", base)
  assert file == tmp_path / "jax-0.6.2+mend.1-proof.md"
  assert building._table_file(tmp_path / "jax_mend-1.0-py3.whl", base
                              ).name == "jax_mend-1.0-jax-0.6.2-proof.md"
  rows = [["jax#1", "one", "FAIL: x", "PASS"], ["jax#2", "two", "n/a", "n/a"]]
  good = [reproduce.Outcome("PASS", ""), reproduce.Outcome("n/a", "")]
  building._show(rows, good, file, "a wheel", base)
  (line,) = capsys.readouterr().out.split("\n")[1:-1]
  assert line == f"Each regression, before and after: {file}"
  text = file.read_text("utf-8")
  assert text.startswith("# a wheel against jax 0.6.2\n\n| report")
  assert "| jax#1  | one        | FAIL: x  | PASS   |\n" in text
  bad = [good[0], reproduce.Outcome("FAIL", "bad")]
  building._show(rows, bad, file, "a wheel", base)
  out = capsys.readouterr().out
  assert "jax#2" in out and "jax#1" not in out


@pytest.mark.parametrize("running,said", [
    ((3, 10, 13), "jax 0.6.2 is the newest release that Python 3.10.13 can "
     "have, so it is chosen; 0.7.0 needs Python 3.11 to 3.13, 0.12.0.1 needs "
     "Python 3.12 or newer. --base=V builds another"), ((3, 12, 1), "")])
def test_what_is_newer_and_not_chosen(monkeypatch, capsys, running, said):
  monkeypatch.setattr(sys, "version_info", running)
  building.say_what_is_newer(bases.default_base())
  out = capsys.readouterr().out
  assert out.startswith(said) and bool(out) == bool(said)


def test_a_source_distribution_says_whose_it_is(tmp_path, monkeypatch):
  monkeypatch.setattr(backend.repository, "files", lambda _: [])
  made = backend.build_sdist(str(tmp_path))
  with tarfile.open(tmp_path / made) as tar:
    (info,) = [tar.extractfile(m).read() for m in tar.getmembers()
               if m.name.endswith("/PKG-INFO")]
  said = email.message_from_bytes(info)
  assert said["Name"] == "jax" and "+mend." in said["Version"]
  assert said["Author"] and said["License"] == "Apache-2.0"
  assert said["Requires-Python"] == ">=3.10"
  assert len(said.get_all("Project-URL")) == 2 and said.get_payload()
  assert len(said.get_all("Classifier")) > 5
