# SPDX-License-Identifier: Apache-2.0
"""jax-mend's commands, its processes, and how it is built."""

import email
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile

from conftest import ROOT, write
from live_site import GREETING, POLITE, RUDE, Site
import pytest


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


def test_status(site):
  out = site.says("-m", "jax_mend", "status")
  assert "jax 1.0 in" in out and "[greet] Say" not in out
  assert "Active where" in out and len(out.splitlines()) == 6
  assert out.endswith("1 patches (1 of greet); --verbose names each.")
  whole = site.says("-m", "jax_mend", "status", "--verbose")
  assert "\n  [greet] Say hello politely (toy#1)\n" in whole
  assert whole.endswith("\n1 patches (1 of greet).")
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


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="not Linux")
@pytest.mark.parametrize("args", (["status"], ["--help"], ["status", "--json"]))
def test_output_that_cannot_be_written(site, args):
  with open("/dev/full", "w", encoding="utf-8") as full:
    done = subprocess.run(
        [sys.executable, "-m", "jax_mend", *args], stdout=full, text=True,
        env={**os.environ, "PYTHONPATH": str(site.folder)}, check=False,
        stderr=subprocess.PIPE)
  assert "Traceback" not in done.stderr and "Exception" not in done.stderr
  if args[0] == "status":  # argparse itself is silent on some Pythons
    assert done.returncode == 2
    assert "No space left" in done.stderr and "\nNext: " in done.stderr


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


def test_the_file_that_an_uninstall_leaves_says_so(site):
  """jax was silently stock after `enable` and `pip uninstall`."""
  env = site.folder.parent / "an énv's"
  subprocess.run([sys.executable, "-m", "venv", "--without-pip", env],
                 check=True)
  (packages,) = env.glob("lib/python*/site-packages")
  shutil.copytree(site.folder, packages, dirs_exist_ok=True)
  shutil.rmtree(site.folder)

  def run(*args, **more):
    done = site.run(*args, python=env / "bin" / "python", **more)
    assert done.returncode == 0, done.stderr
    return done

  run("-m", "jax_mend", "enable")
  shutil.rmtree(packages / "jax_mend")
  (packages / "jax_mend_startup.py").unlink()
  done = run("-c", f"{GREETING}; import jax")
  (line,) = done.stderr.splitlines()
  assert done.stdout.strip() == RUDE
  assert line.startswith("jax-mend: it was uninstalled, so jax is not mended")
  assert line.endswith(f": {packages / 'jax_mend_startup.pth'}")
  assert run("-c", "import json").stderr == ""
  assert run("-c", "import sys; print('_Gone' in vars(__import__('site')))"
             ).stdout == "False\n"
  for quiet in ({"JAX_MEND": "0"}, {"JAX_MEND_QUIET": "1"}):
    assert run("-c", GREETING, **quiet).stderr == ""


def test_the_program_of_its_page(site):
  page = (ROOT / "docs" / "live.md").read_text(encoding="utf-8")
  (program,) = re.findall(r"^```python\n(.*?)^```$", page,
                          re.DOTALL | re.MULTILINE)
  assert site.says("-c", program + GREETING) == POLITE
  assert "jax_mend" in page.partition("## What to expect")[0]


def test_where_no_startup_file_is_read_it_is_refused(site):
  assert "no startup file" in site.refuses("-m", "jax_mend", "enable")


def test_jax_mend_is_built_with_setuptools_alone():
  text = (ROOT / "live" / "pyproject.toml").read_text("utf-8")
  (wanted,) = re.findall(r"^requires = \[(.*)\]", text, re.MULTILINE)
  assert re.fullmatch(r'"setuptools>=\d+"', wanted)


def build(folder, kind, target, **env):
  """Builds a source folder of jax-mend as pip does."""
  target.mkdir(exist_ok=True)
  return subprocess.run(
      [sys.executable, "-c", f"import backend; backend.build_{kind}("
       f"{str(target)!r})"], cwd=folder, env={**os.environ, **env}, text=True,
      capture_output=True, check=False, timeout=120)


def test_a_source_distribution_needs_neither_project_nor_network(
    site, tmp_path):
  folder = shutil.copytree(ROOT / "live", tmp_path / "alone" / "live")
  done = build(folder, "wheel", tmp_path / "none")
  assert done.returncode and "has no table, or the project" in done.stderr
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


def test_a_checkout_needs_no_network_and_no_other_release(tmp_path):
  done = build(ROOT / "live", "wheel", tmp_path / "wheel",
               MEND_CACHE=str(tmp_path / "cache"), PIP_RETRIES="0",
               PIP_CONFIG_FILE=os.devnull,
               PIP_INDEX_URL="http://127.0.0.1:9/simple")
  assert done.returncode == 0, done.stderr
  (wheel,) = (tmp_path / "wheel").iterdir()
  assert wheel.stat().st_size < 750_000
  with zipfile.ZipFile(wheel) as archive:
    (name,) = [n for n in archive.namelist() if n.endswith("/METADATA")]
    said = email.message_from_bytes(archive.read(name))
    assert any(n.endswith("/LICENSE") for n in archive.namelist())
    assert "jax_mend/py.typed" in archive.namelist()  # PEP 561
  assert said["Author"] and said["License-Expression"] == "Apache-2.0"
  assert said["Summary"] and "jax_mend" in said.get_payload()
  assert len(said.get_all("Project-URL")) == 2
  assert len(said.get_all("Classifier")) > 5
  assert not (tmp_path / "cache").exists()
