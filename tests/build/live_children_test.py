# SPDX-License-Identifier: Apache-2.0
"""jax-mend: processes that a mended one starts."""

import os

from conftest import write
from live_site import GREETING, POLITE
import pytest


@pytest.mark.parametrize("paths", (":{0}", "{0}:", "{0}::{0}"))
def test_an_empty_part_of_pythonpath_is_the_current_folder(site, paths):
  """`run` dropped it."""
  write(site.work / "here.py", GREETING)
  script = write(site.work / "sub" / "script.py", "import here")
  settings = {"PYTHONPATH": paths.replace(":", os.pathsep).format(site.folder)}
  assert site.says("-m", "jax_mend", "run", script, **settings) == POLITE


def test_an_empty_pythonpath_is_none(site):
  write(site.work / "here.py", "")
  program = (f"import sys; sys.path.append({str(site.folder)!r})\n"
             "from jax_mend import children\nenv = dict(PYTHONPATH='')\n"
             "for _ in range(2):\n  children.export(env)\n"
             "print(env['PYTHONPATH'] == children._STARTUP)")
  assert site.says("-c", program, PYTHONPATH="") == "True"


POOL = """
import concurrent.futures, multiprocessing, sys

def greet(name):
  early = "jax" in sys.modules
  from jax._src import greet
  return early, greet.Greeter().greet(name)

if __name__ == "__main__":
  {first}
  import jax_mend
  {then}
  for method in {methods}:
    context = multiprocessing.get_context(method)
    pool = concurrent.futures.ProcessPoolExecutor(1, mp_context=context)
    with pool:
      print(*pool.submit(greet, "you").result(20))
"""


@pytest.mark.parametrize("then", ("pass", "sys.path.pop(0)"))
def test_jax_mend_that_only_sys_path_names(site, then):
  """The pool was broken: it looked for jax-mend before it had the path."""
  folder = site.folder.parent / "a 'b' \"c\" \\x é {0} %s"
  folder.mkdir()
  for name in ("jax_mend", "jax_mend_startup.py"):
    (site.folder / name).rename(folder / name)
  script = write(site.work / "pool.py", POOL.format(
      first=f"sys.path.insert(0, {str(folder)!r})", then=then,
      methods=["spawn", "forkserver"]))
  assert site.says(script).splitlines() == [f"False {POLITE}"] * 2


def test_jax_and_jax_mend_that_only_sys_path_names(site):
  first = f"sys.path.insert(0, {str(site.folder)!r})"
  script = write(site.work / "pool.py", POOL.format(
      first=first, then="multiprocessing.set_forkserver_preload(['jax'])",
      methods=["spawn", "forkserver"]))
  assert site.says(script, PYTHONPATH="").splitlines() == [
      f"False {POLITE}", f"True {POLITE}"]


PRELOADED = """
import multiprocessing, sys
{first}
def greet(name):
  early = "jax" in sys.modules
  from jax._src import greet
  return early, greet.Greeter().greet(name)

if __name__ == "__main__":
  context = multiprocessing.get_context("forkserver")
  context.set_forkserver_preload(["jax"])
  {then}
  with context.Pool(1) as pool:
    print(*pool.apply_async(greet, ("you",)).get(20))
"""
BEGUN = """pool = context.Pool(1)
  assert pool.apply_async(str, (1,)).get(20) == "1"
  import jax_mend"""


@pytest.mark.parametrize("how", ("run", "import", "later", "begun"))
def test_a_server_that_imports_jax_for_its_processes(site, how):
  """They died, one after the other, and the result never came."""
  script = write(site.work / "preloaded.py", PRELOADED.format(
      first="import jax_mend" if how == "import" else "",
      then={"later": "import jax_mend", "begun": BEGUN}.get(how, "")))
  start = ("-m", "jax_mend", "run") if how == "run" else ()
  assert site.says(*start, script) == f"True {POLITE}"


def test_an_error_of_a_process_reaches_the_one_that_waits(site):
  """It couldn't be unpickled, and the result never came."""
  script = write(site.work / "pool.py", f"""
      import multiprocessing, pathlib

      def greet():
        import jax

      if __name__ == "__main__":
        import jax_mend
        pathlib.Path({str(site.greet)!r}).write_text("")
        with multiprocessing.get_context("spawn").Pool(1) as pool:
          pool.apply_async(greet).get(20)
      """)
  error = site.refuses(script)
  assert "jax/_src/greet.py differs" in error and "TimeoutError" not in error
