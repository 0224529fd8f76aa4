# SPDX-License-Identifier: Apache-2.0
"""jax-mend: an installed jax, mended as it is imported."""

import json
import shutil
import sys
import zipfile

from conftest import write
from live_site import GREETING, POLITE, RUDE
from mend.editing import patches
from mend.trees import live_table
import pytest


def test_jax_is_mended_as_it_is_imported(site):
  assert site.says("-c", GREETING) == RUDE
  before = {p: p.read_bytes() for p in (site.folder / "jax").rglob("*.py")}
  for _ in range(2):  # the second time from the cache
    assert site.says("-c", f"import jax_mend; {GREETING}") == POLITE
  assert before == {p: p.read_bytes()
                    for p in (site.folder / "jax").rglob("*.py")}
  assert not list((site.folder / "jax").rglob("__pycache__"))


def test_it_can_be_turned_off(site):
  program = f"import jax_mend; {GREETING}"
  assert site.says("-c", program, JAX_MEND="0") == RUDE
  assert site.says("-m", "jax_mend", "run", "-c", GREETING,
                   JAX_MEND="0") == RUDE


@pytest.mark.parametrize("value,runs", [
    ("0", RUDE), ("False", RUDE), ("no", RUDE), ("OFF", RUDE), ("", POLITE),
    ("1", POLITE), ("true", POLITE), ("yes", POLITE), ("On", POLITE)])
def test_words_for_on_and_off(site, value, runs):
  """JAX_MEND=false mended."""
  assert site.says("-c", f"import jax_mend; {GREETING}", JAX_MEND=value) == runs


@pytest.mark.parametrize("args", [
    ("-c", "import jax_mend"), ("-m", "jax_mend", "run", "-c", "pass"),
    ("-m", "jax_mend", "doctor"), ("-m", "jax_mend", "enable"),
    ("-c", "import jax_mend_startup; jax_mend_startup.start(); import jax")])
def test_what_is_neither_on_nor_off(site, args):
  error = site.refuses(*args, JAX_MEND="banana")
  assert "JAX_MEND=banana: banana is no family and no patch" in error
  assert "Next: JAX_MEND=0 runs jax as it is" in error
  status = site.run("-m", "jax_mend", "status", JAX_MEND="banana")
  assert status.returncode == 1 and "no family" in status.stdout


def test_after_jax_it_is_too_late(site):
  error = site.refuses("-c", "import jax, jax_mend")
  assert "imported before jax_mend" in error and "jax_mend run" in error
  error = site.refuses("-c", "import builtins; builtins.get_ipython = 1; "
                       "import jax, jax_mend")
  assert "restart the kernel" in error and "first cell" in error


def test_an_unknown_release_is_left_alone(site):
  write(site.folder / "jax" / "version.py", '_version = "1.1"\n')
  error = site.refuses("-c", "import jax_mend")
  assert "jax 1.1" in error and "knows: 1.0" in error
  assert 'pip install "jax==1.0"' in error
  assert "check --candidate=1.1" in error
  assert site.says("-c", GREETING) == RUDE


def test_the_nearest_release_is_one_for_this_python(site):
  """Releases 1.0, 1.1 and 1.3, the last for a Python that is not here."""
  index = site.folder / "jax_mend" / "table" / "index.json"
  facts = json.loads(index.read_text("utf-8"))
  facts["bases"] = dict.fromkeys(("1.0", "1.1", "1.3"), "0" * 64)
  facts["pythons"] = {"1.0": 10, "1.1": 10, "1.3": 99}
  index.write_text(json.dumps(facts), "utf-8")
  for version, near in (("0.9", "1.0"), ("1.1.7", "1.1"), ("1.4", "1.1")):
    write(site.folder / "jax" / "version.py", f'_version = "{version}"\n')
    assert f'pip install "jax=={near}", the near' in site.refuses(
        "-c", "import jax_mend")
  (site.folder / "jax" / "version.py").write_text("")
  error = site.refuses("-c", "import jax_mend")
  assert "of an unknown release" in error and '"jax==1.1"' in error


@pytest.mark.parametrize("change", ("edited", "gone", "added"))
def test_a_file_that_differs_is_named_and_nothing_applied(site, change):
  if change == "edited":
    with open(site.greet, "a", encoding="utf-8") as file:
      file.write("# a distribution's patch")
  elif change == "gone":
    site.greet.unlink()
  else:
    write(site.folder / "jax" / "_src" / "polite.py", "")
  error = site.refuses("-c", "import jax_mend")
  name = "polite.py" if change == "added" else "greet.py"
  assert "jax 1.0" in error and f"jax/_src/{name} differs" in error
  assert "--force-reinstall" in error
  served = site.says("-c", "import sys\ntry:\n  import jax_mend\nexcept "
                     "ImportError:\n  print([f for f in sys.meta_path if "
                     "'mend' in type(f).__module__])")
  assert served == "[]"


def test_a_file_that_changes_while_a_program_runs(site):
  done = site.run("-c", "import jax_mend, pathlib; pathlib.Path("
                  f"{str(site.greet)!r}).write_text(''); {GREETING}")
  assert done.returncode and "changed while this program" in done.stderr


def test_without_jax(site):
  shutil.rmtree(site.folder / "jax")
  assert "There is no jax" in site.refuses("-c", "import jax_mend")


@pytest.mark.parametrize("name", ("jax.py", "jax/__init__.py"))
@pytest.mark.parametrize("hides", (True, False))
def test_what_is_called_jax_and_is_not_jax(site, name, hides):
  """It said that there is no jax, and to install one."""
  fake = write(site.work / name, "")
  if not hides:
    shutil.rmtree(site.folder / "jax")
  for args in (("-m", "jax_mend", "doctor"), ("-c", "import jax_mend"),
               ("-m", "jax_mend", "run", write(site.work / "x.py", ""))):
    error = site.refuses(*args)
    assert f"`import jax` gives {fake}, which is not JAX" in error
    assert (f"hides the one in {site.folder / 'jax'}" in error) == hides
    assert f"Next: rename {fake}, or take" in error
    assert ("pip install" in error) == (not hides)


def test_a_folder_called_jax_hides_nothing(site):
  (site.work / "jax").mkdir()
  assert site.says("-c", f"import jax_mend; {GREETING}") == POLITE
  shutil.rmtree(site.folder / "jax")
  error = site.refuses("-c", "import jax_mend")
  assert f"only a folder of that name: {site.work / 'jax'}" in error


def test_a_wheel_that_is_mended_is_left_alone(site):
  write(site.folder / "jax" / "_src" / "mend_manifest.py", "")
  assert site.says("-c", f"import jax_mend; {GREETING}") == RUDE
  assert "mended when its wheel" in site.says("-m", "jax_mend", "status")


@pytest.mark.parametrize("kept", (True, False))
def test_what_is_shown_is_what_runs(site, kept):
  if not kept:
    site.cache.write_text("no folder")
  out = site.says("-c", (
      "import jax_mend, inspect, linecache, os, traceback\n"
      "from jax._src import greet, polite, source_info_util\n"
      "print(inspect.getsource(greet.Greeter.greet))\n"
      "print(inspect.getsource(polite).splitlines()[0])\n"
      "print(linecache.getline(greet.__file__, 1, vars(greet)))\n"
      "assert greet.__file__ == greet.Greeter.greet.__code__.co_filename\n"
      "try: greet.Greeter().greet()\nexcept TypeError: pass\n"
      "try: polite.greeting(*'ab')\nexcept TypeError: pass\n"
      "try: greet.Greeter().greet(type('N', (), dict(__format__=None))())\n"
      "except TypeError: traceback.print_exc(file=__import__('sys').stdout)\n"
      "print(greet.__file__.startswith(source_info_util._hidden[0]))\n"
      "print(os.path.exists(greet.__file__), greet.__file__)\n"))
  assert "return polite.greeting(name)" in out and "def greeting" in out
  assert "oi" not in out and "héllo" in out
  assert 'return f"Hello, {name}"' in out.split("Traceback")[1]
  assert "True" in out.splitlines()[-2]
  exists, name = out.splitlines()[-1].split(" ", 1)
  assert exists == str(kept)
  assert "1.0+mend." in name and "mended" in name and str(site.cache) in name


def test_a_cache_folder_that_is_no_text_here(site):
  """jaxlib's add_exclude_path(str) raised TypeError inside `import jax`."""
  program = ("import jax_mend\nfrom jax._src import greet, source_info_util\n"
             "[path.encode() for path in source_info_util._hidden]\n"
             "print(greet.Greeter().greet('you'))\n"
             "greet.Greeter().greet()")
  plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0",
           "JAX_MEND_CACHE": str(site.cache.with_name("é"))}
  assert site.says("-c", "import sys; print(sys.getfilesystemencoding())",
                   **plain) == "ascii"
  for _ in range(2):
    done = site.run("-c", program, **plain)
    assert done.stdout.strip() == POLITE, done.stderr
    assert "TypeError: " in done.stderr.splitlines()[-1]
    assert "greet() missing 1" in done.stderr.splitlines()[-1]
  assert list(site.cache.with_name("é").glob("*/mended/jax/_src/greet.py"))


def test_what_tracebacks_leave_out_by_folder_is_left_out(site):
  out = site.says("-c", (
      "import jax_mend, os\nfrom jax._src import greet, traceback_util, "
      "source_info_util\n"
      "installed = os.path.dirname(traceback_util.__file__)\n"
      "traceback_util.register_exclusion(installed)\n"
      "traceback_util.register_exclusion(os.path.dirname(greet.__file__))\n"
      "traceback_util.register_exclusion('/elsewhere')\n"
      "served = os.path.dirname(greet.__file__)\n"
      "assert served != installed\n"
      "print(traceback_util._paths == [installed, served, served, installed,"
      " '/elsewhere'])"))
  assert out == "True"


def test_a_folder_without_upstreams_byte_code_is_not_needed(site):
  """A .pyc of upstream's, even one that is not checked, is never used."""
  site.says("-c", "import py_compile as p; p.compile("
            f"{str(site.greet)!r}, invalidation_mode="
            "p.PycInvalidationMode.UNCHECKED_HASH)")
  assert list(site.greet.parent.glob("__pycache__/greet*.pyc"))
  assert site.says("-c", f"import jax_mend; {GREETING}") == POLITE


def test_byte_code_is_kept_by_table_and_interpreter(site):
  program = f"import jax_mend; {GREETING}"
  site.says("-c", program)
  tag = sys.implementation.cache_tag
  (code,) = site.cache.glob(f"1.0+mend.*/{tag}/jax/_src/greet.pyc")
  good = code.read_bytes()
  for broken in (b"", good[:60], b"xxxx" + good[4:], good[:4] + b"N"):
    code.write_bytes(broken)
    assert site.says("-c", program) == POLITE
    assert code.read_bytes() == good
  assert site.says("-O", "-c", program) == POLITE
  assert list(site.cache.glob(f"1.0+mend.*/{tag}.opt-1/jax/_src/greet.pyc"))
  moved = site.cache.with_name("moved")
  site.cache.rename(moved)
  name = site.says("-c", f"{program}; print(greet.__file__)",
                   JAX_MEND_CACHE=str(moved))
  assert str(moved) in name
  assert not list(site.cache.parent.rglob("*.pyc.*"))


def test_archives_and_frozen_programs_are_sent_to_the_wheel(site):
  archive = site.folder.parent / "all.zip"
  with zipfile.ZipFile(archive, "w") as zipped:
    for path in site.folder.rglob("*.py"):
      zipped.write(path, path.relative_to(site.folder))
  error = site.refuses("-c", f"import sys; sys.path = [{str(archive)!r}, "
                       "*sys.path]; import jax_mend")
  assert "archive" in error and "--wheels=jax" in error
  error = site.refuses("-c", "import sys; sys.frozen = True; import jax_mend")
  assert "frozen" in error and "--wheels=jax" in error
  only_jax = site.folder.parent / "jax.zip"
  with zipfile.ZipFile(only_jax, "w") as zipped:
    for path in (site.folder / "jax").rglob("*.py"):
      zipped.write(path, path.relative_to(site.folder))
  shutil.rmtree(site.folder / "jax")
  error = site.refuses("-c", f"import sys; sys.path += [{str(only_jax)!r}]; "
                       "import jax_mend")
  assert "archive" in error and "--wheels=jax" in error


def test_the_table_has_our_own_text_only(project, upstream, base):
  table = live_table.make(patches.load(project), {base: upstream}, project)
  assert '"oi' not in "".join(table.values())
  (splices,) = json.loads(table["1.0.splices.json"]).values()
  pieces = json.loads(table["pieces.json"])
  assert [pieces[n] for _, _, n in splices] == [
      ["\nfrom jax._src import polite", "greet/greeting"],
      ["\n    return polite.greeting(name)", "greet/greeting"]]
  data = (upstream / "jax/_src/greet.py").read_bytes()
  assert data[:splices[1][0]].endswith(b'somebody."""')
