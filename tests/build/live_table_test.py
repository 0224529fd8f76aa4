# SPDX-License-Identifier: Apache-2.0
"""jax-mend's tables say each thing once."""

import difflib
import itertools
import json

from conftest import ROOT, write
from mend.editing import patches
from mend.ground.errors import MendError
from mend.releases import bases
from mend.trees import live_pieces, live_table
import pytest

BACKEND = live_table.module_of_live("backend")
KNOWN = ("1.0", "1.1", "1.2", "1.3")
TWIN = bases.Base("1.2", "2" * 64, ">=3.10", (), twin_of="1.3")


@pytest.fixture
def sources(upstream, base, tmp_path):
  """The trees of 1.0, and of 1.1 and 1.3, whose file has a line more each."""
  found, text = {base: upstream}, (upstream / "jax/_src/greet.py").read_text(
      encoding="utf-8")
  for version in ("1.1", "1.3"):
    text = f"# {version}\n{text}"
    folder = tmp_path / version
    for name in ("__init__.py", "_src/__init__.py"):
      write(folder / "jax" / name, "")
    write(folder / "jax/_src/greet.py", text)
    found[bases.Base(version, version[2] * 64, ">=3.11", ())] = folder
  return found


@pytest.fixture
def made(project, sources):
  """Makes the tables of the project as it is now."""
  return lambda: live_table.tables(
      patches.load(project), sources, project, (TWIN,))


def edit(project, old, new):
  path = project / "patches/greet/greeting.toml"
  text = path.read_text(encoding="utf-8")
  assert old in text
  path.write_text(text.replace(old, new), encoding="utf-8")


def changed(before, after):
  """File -> how many of its lines are new or other, and how many are gone."""
  assert set(before) == set(after) == {
      "index.json", "edits.json", "files.json"}
  found = {}
  for name, text in after.items():
    signs = [line[0] for line in difflib.ndiff(
        before[name].splitlines(), text.splitlines())]
    if signs.count("+") or signs.count("-"):
      found[name] = (signs.count("+"), signs.count("-"))
  return found


def test_a_new_module_is_a_line_of_one_file(project, made):
  before = made()
  write(project / "jax/_src/impolite.py", "")
  write(project / "patches/families.toml", (
      project / "patches/families.toml").read_text("utf-8").replace(
          '"jax/_src/polite.py"]',
          '"jax/_src/polite.py", "jax/_src/impolite.py"]'))
  edit(project, '["jax/_src/polite.py"]',
       '["jax/_src/impolite.py", "jax/_src/polite.py"]')
  assert changed(before, made()) == {"index.json": (1, 0)}


def test_another_text_is_a_line_of_one_file(project, made):
  before = made()
  edit(project, "polite.greeting(name)", "polite.greeting(name, 'hello')")
  assert changed(before, made()) == {"edits.json": (1, 1)}


def test_one_more_edit_is_a_line_and_its_places(project, made):
  before = made()
  edit(project, 'op = "replace_body"', 'op = "drop_import"\n'
       'value = "import:os"\n\n[[edit]]\nfile = "jax/_src/greet.py"\n'
       'op = "replace_body"')
  assert changed(before, made()) == {
      "edits.json": (1, 0), "files.json": (3, 3)}  # a line for each release


def test_one_more_release_is_a_line_of_each_file(project, sources):
  tables = lambda bases: live_table.tables(
      patches.load(project), {b: sources[b] for b in bases}, project)
  assert changed(tables([*sources][:-1]), tables(sources)) == {
      "index.json": (2, 1), "files.json": (2, 1)}  # and a comma


def test_what_is_read_is_what_was_made(made):
  table = BACKEND.parsed(made())
  found = {v: BACKEND.of_release(table, v) for v in KNOWN}
  starts = {v: [s[0] for s in one["splices"]["jax/_src/greet.py"]]
            for v, one in found.items()}
  assert starts["1.1"] == [at + len("# 1.1\n") for at in starts["1.0"]]
  assert starts["1.2"] == starts["1.3"] != starts["1.1"]
  assert found["1.2"]["origin"] == "1.3"
  assert f'BASE_SHA256 = "{"2" * 64}"' in found["1.2"]["manifest"]
  assert len({json.dumps(one["files"]) for one in found.values()}) == 3
  assert all(one["modules"] == ["jax/_src/polite.py"]
             for one in found.values())


def test_what_is_read_otherwise_is_refused(made, monkeypatch):
  right = live_pieces.files
  monkeypatch.setattr(live_pieces, "files", lambda *args: right(*args).replace(
      ": \"", ": \"0", 1))
  with pytest.raises(MendError, match="reads the table of jax 1.0 otherwise"):
    made()


def test_runs_of_releases():
  for size in range(len(KNOWN) + 1):
    for held in itertools.combinations(KNOWN, size):
      runs = live_pieces.runs(held, KNOWN)
      assert tuple(BACKEND.held(runs, list(KNOWN))) == held
  assert live_pieces.runs(KNOWN, KNOWN) == "1.0-"
  assert live_pieces.runs(("1.0", "1.1", "1.3"), KNOWN) == "1.0-1.1,1.3-"
  assert live_pieces.runs(("1.1",), KNOWN) == "1.1"


def test_a_text_is_there_once_wherever_it_goes():
  """A file that moved, and two edits that changed places."""
  splices = lambda *texts: [[n, n, text, "p"] for n, text in enumerate(texts)]
  found = {"1.0": {"old": ("0", splices("a", "b", "c"))},
           "1.1": {"new": ("1", splices("a", "c", "b")),
                   "old": ("2", splices("d"))}}
  text = live_pieces.edits(found, ["1.0", "1.1"], ["p"])
  assert json.loads(text) == {"p": [
      [{"old": "1.1-"}, "d"], [{"new": "1.1-", "old": "1.0"}, "a"],
      [{"new": "1.1-"}, "c"], [{"new": "1.1-", "old": "1.0"}, "b"],
      [{"old": "1.0"}, "c"]]}


def test_texts_at_one_place_keep_the_patches_order():
  splices = [[1, 1, "x", "second"], [5, 5, "y", "first"],
             [5, 5, "z", "second"], [5, 9, "", "first"]]
  found = {"1.0": {"file": ("0", splices)}}
  files = live_pieces.files(found, ["1.0"], ["first", "second"])
  assert json.loads(files) == {"file": {"1.0-": "0 5 5-9 1 5"}}
  edits = live_pieces.edits(found, ["1.0"], ["first", "second"])
  index = {"releases": {"1.0": {"twin_of": "", "sha256": ""}}, "suffix": "",
           "patches": {}, "modules": {}, "manifest": {"text": ""}}
  read = BACKEND.of_release({"index": index, "edits": json.loads(edits),
                             "files": json.loads(files)}, "1.0")
  assert read["splices"] == {"file": splices}


@pytest.fixture
def committed(project, made, sources, monkeypatch):
  """A live/table that is what the patches make."""
  folder = project / "live/table"
  monkeypatch.setattr(live_table, "TABLES", folder)
  monkeypatch.setattr(live_table.bases, "ROOT", project)
  monkeypatch.setattr(live_table.bases, "releases", lambda: (*sources, TWIN))
  monkeypatch.setattr(live_table, "of_releases", lambda chosen: (
      {b: sources[b] for b in chosen}, ()))
  for name, text in made().items():
    write(folder / name, text)
  return folder


def test_stale_tables(project, committed, sources):
  stale = lambda chosen: live_table.stale(patches.load(project), chosen)
  first, *others = sources
  assert stale(list(sources)) == stale([first]) == (3, [])
  path = committed / "files.json"
  good = path.read_text(encoding="utf-8")
  digest = BACKEND.of_release(BACKEND.parsed({
      p.name: p.read_text("utf-8") for p in committed.iterdir()}),
                              "1.0")["files"]["jax/_src/greet.py"]
  path.write_text(good.replace(digest, "0" * 64), encoding="utf-8")
  assert stale([first]) == stale(list(sources)) == (3, ["files.json"])
  assert stale(others) == (3, [])
  path.write_text(good.replace(digest, digest + " 1"), encoding="utf-8")
  assert stale(others)[1] == ["edits.json", "files.json"]
  path.write_text(good, encoding="utf-8")
  write(committed / "1.0.json", "{}")
  assert stale(others) == (4, ["1.0.json"])


def test_a_stale_text_is_named_whichever_release_is_asked(project, committed,
                                                          sources):
  edit(project, "polite.greeting(name)", "polite.greeting(name, 'hello')")
  for chosen in ([*sources][:1], list(sources)):
    assert live_table.stale(patches.load(project), chosen) == (
        3, ["edits.json"])


def test_the_projects_tables_are_small():
  """They had 13,271 lines, and a new module changed 18 files."""
  files = {p.name: p.read_text("utf-8").splitlines()
           for p in (ROOT / "live/table").iterdir()}
  assert set(files) == {"index.json", "edits.json", "files.json"}
  assert 1000 < sum(map(len, files.values())) <= 2500
  assert max(len(line) for rows in files.values() for line in rows) < 2000


def test_the_projects_texts_are_there_once():
  """But for those that stand twice in a file, and in another order."""
  edits = json.loads((ROOT / "live/table/edits.json").read_text("utf-8"))
  texts = [(patch, text) for patch, pieces in edits.items()
           for _, text in pieces]
  assert len(texts) > 500
  assert len(texts) - len(set(texts)) < len(texts) / 10
