"""jax-mend: an installed jax, mended as it is imported."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import zipfile

from conftest import ROOT, write
from mend.editing import patches
from mend.trees import live_table
import pytest

GREETING = "from jax._src import greet; print(greet.Greeter().greet('you'))"
POLITE, RUDE = "Hello, you", "oi you"
HIDING = """
_hidden = []


def register_exclusion(path):
  _hidden.append(path)
"""
SHORTENING = """
_paths = []


def register_exclusion(path):
  _paths.append(path)
"""


class Site:
  """A folder with a jax and jax-mend, and Pythons that see it."""

  def __init__(self, folder: pathlib.Path):
    self.folder = folder
    self.greet = folder / "jax" / "_src" / "greet.py"
    self.cache = folder.parent / "live-cache"
    self.work = folder.parent / "work"
    self.work.mkdir(parents=True)

  def run(self, *args, python=sys.executable, **env):
    settings = {k: v for k, v in os.environ.items() if k != "JAX_MEND"}
    # What is left in the folder is jax-mend's own doing, not Python's.
    settings.update({"PYTHONPATH": str(self.folder),
                     "PYTHONDONTWRITEBYTECODE": "1",
                     "JAX_MEND_CACHE": str(self.cache), **env})
    return subprocess.run(
        [python, *map(str, args)], cwd=self.work, env=settings, text=True,
        capture_output=True, check=False, timeout=120)

  def says(self, *args, **env):
    done = self.run(*args, **env)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()

  def refuses(self, *args, **env):
    done = self.run(*args, **env)
    assert done.returncode, done.stdout
    error = done.stderr
    assert "Nothing was applied." in error and "\nNext: " in error, error
    return error


@pytest.fixture
def site(project, upstream, base, tmp_path):
  write(upstream / "jax" / "_src" / "source_info_util.py", HIDING)
  write(upstream / "jax" / "_src" / "traceback_util.py", SHORTENING)
  table = live_table.make(patches.load(project), {base: upstream}, project)
  folder = tmp_path / "site"
  shutil.copytree(upstream / "jax", folder / "jax")
  install(folder, table)
  return Site(folder)


def install(folder, table):
  for name in ("jax_mend", "jax_mend_startup.py"):
    source = ROOT / "live" / name
    copy = shutil.copytree if source.is_dir() else shutil.copy
    copy(source, folder / name)
  for name, text in table.items():
    write(folder / "jax_mend" / "table" / name, text)


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
  assert "pip install jax==1.0" in error
  assert site.says("-c", GREETING) == RUDE


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


def test_run_is_python_with_a_mended_jax(site):
  script = write(site.work / "script.py", f"import sys\n{GREETING}\n"
                 "print(sys.argv[1:], __name__)\n")
  write(site.work / "package.py", script.read_text("utf-8"))
  wanted = POLITE + "\n['a', '--b'] __main__"
  run = ("-m", "jax_mend", "run")
  assert site.says(*run, script, "a", "--b") == wanted
  assert site.says(*run, "-m", "package", "a", "--b") == wanted
  assert site.run(*run, "-c", "raise SystemExit(7)").returncode == 7
  assert "nothing to run" in site.refuses(*run)
  error = site.refuses("-E", "-c", "import sys; sys.path.insert(0, "
                       f"{str(site.folder)!r}); sys.argv = ['jax_mend', 'run', "
                       "'x.py']; import runpy; runpy._run_module_as_main("
                       "'jax_mend', alter_argv=False)")
  assert "-E or -I" in error


def test_run_leaves_the_sitecustomize_of_others_alone(site):
  write(site.work / "theirs" / "sitecustomize.py", "print('theirs')\n")
  done = site.run("-m", "jax_mend", "run", "-c", GREETING)
  assert done.stdout.strip() == POLITE
  settings = dict(PYTHONPATH=os.pathsep.join(
      [str(site.folder), str(site.work / "theirs")]))
  done = subprocess.run(
      [sys.executable, "-m", "jax_mend", "run", "-c", GREETING],
      env={**os.environ, **settings, "JAX_MEND_CACHE": str(site.cache)},
      capture_output=True, text=True, check=True)
  assert done.stdout.split("\n") == ["theirs", "theirs", POLITE, ""]


WORKERS = """
import multiprocessing, subprocess, sys
{first}
def greet(name):
  from jax._src import greet
  return greet.Greeter().greet(name)

if __name__ == "__main__":
  for method in multiprocessing.get_all_start_methods():
    with multiprocessing.get_context(method).Pool(1) as pool:
      print(method, pool.apply(greet, ("you",)))
  print("child", subprocess.run([sys.executable, "-c", {program!r}],
        stdout=subprocess.PIPE, text=True).stdout.strip())
"""


@pytest.mark.parametrize("how", ("run", "import", "import later"))
def test_processes_that_it_starts(site, how):
  first = {"run": "", "import": "import jax_mend",
           "import later": "if __name__ == '__main__': import jax_mend"}[how]
  script = write(site.work / "workers.py", WORKERS.format(
      first=first, program=GREETING))
  start = ("-m", "jax_mend", "run") if how == "run" else ()
  found = dict(line.split(" ", 1) for line in site.says(
      *start, script).splitlines())
  assert {"spawn", "fork", "forkserver", "child"} <= found.keys()
  # Another program, which has not been asked to.
  assert found.pop("child") == (POLITE if how == "run" else RUDE)
  assert set(found.values()) == {POLITE}


def test_pytest(site):
  write(site.work / "greeting_test.py", f"""
      import subprocess, sys
      from jax._src import greet

      def test_here():
        assert greet.Greeter().greet("you") == {POLITE!r}

      def test_in_a_process():
        done = subprocess.run([sys.executable, "-c", {GREETING!r}],
                              capture_output=True, text=True)
        assert done.stdout.strip() == {POLITE!r}
      """)
  run = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "greeting_test.py")
  assert "2 failed" in site.run(*run).stdout
  assert "2 passed" in site.says(*run, "-p", "jax_mend")


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


def test_status(site):
  out = site.says("-m", "jax_mend", "status")
  assert "jax 1.0 in" in out and "[greet] Say hello politely (toy#1)" in out
  assert "Active where" in out and "1 patches." in out
  facts = json.loads(site.says("-m", "jax_mend", "status", "--json"))
  assert facts["state"] == "mended" and facts["files"] == 1
  assert "will have the byte code" in out
  nowhere = site.says("-m", "jax_mend", "status", JAX_MEND_CACHE=os.devnull)
  assert "can't be written: each import" in nowhere
  off = site.run("-m", "jax_mend", "status", JAX_MEND="0")
  assert off.returncode == 1 and "Off: JAX_MEND=0" in off.stdout
  site.greet.write_text("")
  bad = site.run("-m", "jax_mend", "status")
  assert bad.returncode == 1 and "greet.py differs" in bad.stdout
  assert "\nNext: " in bad.stdout


def test_doctor(site):
  good = site.says("-m", "jax_mend", "doctor")
  assert "green  toy#1: greet() is polite." in good and "0 of 1" in good
  bad = site.run("-m", "jax_mend", "doctor", "polite", JAX_MEND="0")
  assert bad.returncode == 1 and "RED" in bad.stdout and "1 of 1" in bad.stdout
  assert "rude" in bad.stdout
  none = site.run("-m", "jax_mend", "doctor", "unheard")
  assert none.returncode == 1 and "0 of 0" in none.stdout


def test_enable_and_disable(site):
  """In an environment of its own: nothing starts by itself before."""
  env = site.folder.parent / "env"
  subprocess.run([sys.executable, "-m", "venv", "--without-pip", env],
                 check=True)
  python = env / "bin" / "python"
  (packages,) = env.glob("lib/python*/site-packages")
  shutil.copytree(site.folder, packages, dirs_exist_ok=True)
  before = set(packages.iterdir())
  shutil.rmtree(site.folder)  # what PYTHONPATH names is no site folder

  def says(*args, **more):
    return site.run(*args, python=python, **more)

  assert says("-c", GREETING).stdout.strip() == RUDE
  assert says("-m", "jax_mend", "enable").returncode == 0
  assert {p.name for p in set(packages.iterdir()) - before} == {
      "jax_mend_startup.pth", "jax_mend_startup.start"}
  done = says("-c", GREETING)
  assert done.stdout.strip() == POLITE
  assert "jax 1.0 is mended" in done.stderr and "1 patches" in done.stderr
  assert says("-c", "pass").stderr == ""
  assert "enabled" in says("-m", "jax_mend", "status").stdout
  assert says("-c", GREETING, JAX_MEND="0").stdout.strip() == RUDE
  write(packages / "jax" / "version.py", '_version = "1.1"\n')
  failed = says("-c", "import importlib.util as u; u.find_spec('jax'); "
                "print('found'); import jax")
  assert failed.stdout.strip() == "found" and "knows: 1.0" in failed.stderr
  assert says("-m", "jax_mend", "disable").returncode == 0
  assert set(packages.iterdir()) == before
  says("-m", "jax_mend", "disable")
  (packages / "jax_mend_startup.pth").write_text(
      "import sys; exec('try:\\n  import nothing_here\\nexcept "
      "ModuleNotFoundError:\\n  pass')\n")
  assert says("-c", "pass").stderr == ""


def test_the_program_of_its_page(site):
  page = (ROOT / "docs" / "live.md").read_text(encoding="utf-8")
  (program,) = re.findall(r"^```python\n(.*?)^```$", page,
                          re.DOTALL | re.MULTILINE)
  assert site.says("-c", program + GREETING) == POLITE
  assert "jax_mend" in page.partition("## What to expect")[0]


def test_where_no_startup_file_is_read_it_is_refused(site):
  assert "no startup file" in site.refuses("-m", "jax_mend", "enable")


def test_the_builds_need_the_same_tools():
  lists = [(ROOT / f / "pyproject.toml").read_text("utf-8").split("]")[1]
           for f in (".", "live")]
  assert lists[0].split("[")[1] == lists[1].split("[")[1]


def build(folder, kind, target, **env):
  """What pip does with a source folder of jax-mend."""
  target.mkdir(exist_ok=True)
  return subprocess.run(
      [sys.executable, "-c", f"import backend; backend.build_{kind}("
       f"{str(target)!r})"], cwd=folder, env={**os.environ, **env}, text=True,
      capture_output=True, check=False, timeout=120)


def test_a_source_distribution_needs_neither_project_nor_network(
    site, tmp_path):
  folder = shutil.copytree(ROOT / "live", tmp_path / "alone" / "live")
  done = build(folder, "wheel", tmp_path / "none")
  assert done.returncode and "has no table, and the project" in done.stderr
  assert "Traceback" not in done.stderr
  shutil.copytree(site.folder / "jax_mend" / "table",
                  folder / "jax_mend" / "table")
  off = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple"}
  done = build(folder, "sdist", tmp_path / "sdist", **off)
  (packed,) = (tmp_path / "sdist").iterdir()
  shutil.unpack_archive(packed, tmp_path / "unpacked")
  (unpacked,) = (tmp_path / "unpacked").iterdir()
  done = build(unpacked, "wheel", tmp_path / "wheel", **off)
  assert done.returncode == 0, done.stderr
  (wheel,) = (tmp_path / "wheel").iterdir()
  fresh = Site(tmp_path / "fresh" / "site")
  shutil.copytree(site.folder / "jax", fresh.folder / "jax")
  shutil.unpack_archive(wheel, fresh.folder, "zip")
  assert fresh.says("-m", "jax_mend", "run", "-c", GREETING) == POLITE


def test_a_build_that_fails_says_why_and_what_next(tmp_path):
  done = build(ROOT / "live", "wheel", tmp_path / "wheel",
               MEND_CACHE=str(tmp_path / "cache"), PIP_RETRIES="0",
               PIP_CONFIG_FILE=os.devnull,
               PIP_INDEX_URL="http://127.0.0.1:9/simple")
  assert done.returncode and "Traceback" not in done.stderr
  assert "FAILED: jax-mend: Downloading jax" in done.stderr
  assert "\nNext: check the network" in done.stderr


def test_the_table_has_our_own_text_only(project, upstream, base):
  table = live_table.make(patches.load(project), {base: upstream}, project)
  assert '"oi' not in "".join(table.values())
  (splices,) = json.loads(table["1.0.splices.json"]).values()
  assert [s[2:] for s in splices] == [
      ["\nfrom jax._src import polite", "greet/greeting"],
      ["\n    return polite.greeting(name)", "greet/greeting"]]
  data = (upstream / "jax/_src/greet.py").read_bytes()
  assert data[:splices[1][0]].endswith(b'somebody."""')
