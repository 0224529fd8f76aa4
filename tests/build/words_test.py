# SPDX-License-Identifier: Apache-2.0
"""Words that choose patches, in jax-mend and in the tool."""

import json
import shutil

from conftest import PATCH, write
from live_site import GREETING, POLITE, RUDE, install
from mend.editing import families, patches
from mend.editing.live_modules import module_of_live
from mend.ground.errors import MendError
from mend.releases import bases
from mend.trees import live_table
import pytest

WORDS = module_of_live("jax_mend/words")
KNOWN = ("a/base", "a/top", "b/own", "b/on_a", "c/old")
NEEDS = {"a/top": ["a/base"], "b/on_a": ["a/top", "c/old"]}


@pytest.mark.parametrize("text, patches_, added, dropped", [
    ("a", "a/base a/top", "", ""),
    ("a/top", "a/base a/top", "a/base", ""),
    ("b", "a/base a/top b/own b/on_a", "a/base a/top", ""),
    ("b,-a/top", "b/own", "", "b/on_a"),
    ("-a/top", "a/base b/own", "", "b/on_a"),
    ("-a", "b/own", "", "b/on_a"),
    ("-c", "a/base a/top b/own b/on_a", "", ""),  # not for this release
    ("a, c", "a/base a/top", "", "")])
def test_what_words_choose(text, patches_, added, dropped):
  found = WORDS.choose(WORDS.split(text), KNOWN, NEEDS, KNOWN[:4])
  assert found == WORDS.Choice(
      tuple(patches_.split()), tuple(added.split()), tuple(dropped.split()))


@pytest.mark.parametrize("text, said", [
    ("aa/top", "aa/top is no family and no patch; did you mean a/top?"),
    ("on_a", "on_a is no family and no patch; did you mean b/on_a?"),
    ("-zzz", "zzz is no family and no patch"),
    ("b/on_a,-a/base", "b/on_a needs a/base, which is left out"),
    ("a,-a", "no patch for this release is left"),
    ("c", "no patch for this release is left")])
def test_what_chooses_nothing(text, said):
  with pytest.raises(WORDS.BadWords) as e:
    WORDS.choose(WORDS.split(text), KNOWN, NEEDS, KNOWN[:4])
  assert str(e.value) == said


@pytest.mark.parametrize("text", ["was", "was/own", "-was", "b,-was/on_a"])
def test_a_name_that_a_family_had_before_names_it(text):
  chosen = lambda words, **settings: WORDS.choose(
      WORDS.split(words), KNOWN, NEEDS, KNOWN[:4], **settings)
  assert chosen(text, former={"was": "b"}) == chosen(text.replace("was", "b"))
  with pytest.raises(WORDS.BadWords, match="was.* is no family and no patch"):
    chosen(text)


def test_no_family_has_a_name_that_another_had_before():
  known = families.load()
  assert families.former().keys().isdisjoint(known)
  assert {*families.former().values()} <= {*known}


def test_the_wheels_patches_are_chosen_by_the_same_words():
  series = patches.load()
  base = bases.all_bases()[-1]
  ids = lambda *words: [p.id for p in patches.select(series, words, base)]
  mine = [p.id for p in patches.for_base(series, base)]
  assert ids("-array_api/nan_extrema") == [
      p for p in mine if p != "array_api/nan_extrema"]
  assert [p for p in ids("varying", "meshes")
          if families.of(p) in ("varying", "meshes")] == [
              p for p in mine if families.of(p) in ("varying", "meshes")]
  assert ids("fork", "-compute_on") == ids("sanitizer", "-compute_on_ahead")
  with pytest.raises(MendError, match="did you mean varying"):
    ids("varing")


@pytest.fixture
def parts(site, project, upstream, base):
  """The site with a second patch, which needs the first."""
  more = '\n  def part(self, name):\n    return "off, " + name\n'
  for folder in (upstream, site.folder):
    with open(folder / "jax/_src/greet.py", "a", encoding="utf-8") as handle:
      handle.write(more)
  text = PATCH.replace('"greet/greeting"', '"part/parting"').replace(
      "return polite.greeting(name)", "return 'Bye, ' + name").replace(
          "Greeter.greet", "Greeter.part").replace(
              'modules = ["jax/_src/polite.py"]', "modules = []").replace(
                  "tests/greet/", "tests/part/").replace(
                      'reproductions = ["reproductions/greet/greeting.py"]',
                      'depends = ["greet/greeting"]')
  write(project / "patches/part/parting.toml", text.replace(
      'op = "add_import"\ncode = "from jax._src import polite"',
      'op = "drop_import"\nvalue = "import:os"'))
  write(project / "tests/part/greeting_test.py", "")
  write(project / "patches/families.toml", (
      project / "patches/families.toml").read_text("utf-8") +
        '\n[part]\nsummary = "leave"\npages = []\nprefix = "part_"\n')
  write(project / "patches/series", "greet/greeting\npart/parting\n")
  shutil.rmtree(site.folder / "jax_mend")
  install(site.folder, live_table.make(
      patches.load(project), {base: upstream}, project))
  return site


PROGRAM = GREETING + "; print(greet.Greeter().part('you'))"
ALL, FIRST = f"{POLITE}\nBye, you", f"{POLITE}\noff, you"


@pytest.mark.parametrize("words, wanted", [
    ("1", ALL), ("greet", FIRST), ("part", ALL), ("-part/parting", FIRST),
    ("0", f"{RUDE}\noff, you")])
def test_a_part_is_mended(parts, words, wanted):
  program = f"import jax_mend; {PROGRAM}"
  for _ in range(2):  # then from the cache
    assert parts.says("-c", program, JAX_MEND=words) == wanted
  assert parts.says("-m", "jax_mend", "run", "-c", PROGRAM,
                    JAX_MEND=words) == wanted
  if words not in "01":
    done = parts.run("-m", "jax_mend", "run", f"--patches={words}", "-c",
                     PROGRAM)
    assert done.stdout.strip() == wanted
    assert done.stderr.startswith(f"jax-mend: JAX_MEND={words}: ")


def test_the_cache_is_keyed_by_the_part(parts):
  program = f"import jax_mend; {PROGRAM}"
  for words in ("1", "greet", "-part"):
    parts.says("-c", program, JAX_MEND=words)
  folders = sorted(p.name for p in parts.cache.iterdir())
  assert len(folders) == 2 and folders[1].startswith(f"{folders[0]}-p")


def test_status_says_what_is_applied_and_what_is_not(parts):
  status = ("-m", "jax_mend", "status")
  said = parts.says(*status, JAX_MEND="greet")
  assert "1 patches (1 of greet); --verbose" in said
  assert "Chosen by JAX_MEND=greet." in said
  assert "Not applied: 1 patches (1 of part)." in said
  said = parts.says(*status, "--verbose", JAX_MEND="part")
  assert "Added, since these need them: greet/greeting." in said
  assert "Not applied" not in said
  facts = json.loads(parts.says(*status, "--json", JAX_MEND="-part"))
  assert facts["left_out"] == ["part/parting"] and facts["added"] == []
  assert "Chosen" not in parts.says(*status)
  bad = parts.run(*status, JAX_MEND="party")
  assert bad.returncode == 1 and "did you mean part" in bad.stdout


def test_enable_stores_the_words(parts, monkeypatch):
  """Without an environment: the startup file lies beside the package."""
  text = ("import sys; from jax_mend import startup_file as s; "
          f"s._folder = lambda: {str(parts.folder)!r}; sys.exit(s.")
  said = parts.says("-c", f"{text}enable('greet'))")
  assert "mends jax as it is imported, greet of it." in said
  start = (parts.folder / "jax_mend_startup.start").read_text("utf-8")
  assert "# JAX_MEND=greet\n" in start
  begin = "import jax_mend_startup as s; s.enabled(); "
  done = parts.run("-c", begin + PROGRAM)
  assert done.stdout.strip() == FIRST
  assert "1 of 2 patches (python" in done.stderr
  assert parts.says("-c", begin + PROGRAM, JAX_MEND="1") == ALL
  assert "part" not in parts.says("-c", f"{text}disable())")
  assert parts.says("-c", begin + PROGRAM) == ALL
  assert "no family" in parts.refuses("-m", "jax_mend", "enable",
                                      "--patches=party")
