# SPDX-License-Identifier: Apache-2.0
"""Children of a server: as good as new processes, and gone with it."""

import dataclasses
import os
import sys
import textwrap
import time
import types

from mend.proof import fork_servers, pytest_run
import pytest

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="nothing is forked on this system")


@pytest.fixture
def servers(tmp_path):
  with fork_servers.Servers(["json"], {"MEND_GREETING": "hello"}) as made:
    yield made


def start(server, tmp_path, source, text="", env=None, name="out"):
  return server.start(program=textwrap.dedent(source), input=text,
                      output=tmp_path / name, cwd=tmp_path, env=env or {})


def test_a_program_has_its_input_folder_arguments_and_environment(
    servers, tmp_path):
  server = servers.of(sys.executable)
  assert servers.of(sys.executable) is server
  child = start(server, tmp_path, """
      import os, sys
      print(sys.stdin.read(), os.getcwd(), sys.argv, __name__, sys.path[0])
      print("json" in sys.modules, os.environ["MEND_GREETING"],
            os.environ["MORE"], os.getsid(0) == os.getpid())
      print("loud", file=sys.stderr)
      """, "words", {"MORE": "and more"})
  assert child.wait(60) == 0
  said = (tmp_path / "out").read_text().splitlines()
  assert said == [f"words {tmp_path} ['-c'] __main__ ",
                  "True hello and more True", "loud"]
  assert "MORE" not in os.environ


@pytest.mark.parametrize("source,code,words", [
    ("import sys; sys.exit(7)", 7, ""), ("import sys; sys.exit('no')", 1, ""),
    ("1 / 0", 1, "ZeroDivisionError"), ("import os; os._exit(9)", 9, ""),
    ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", -11, "")])
def test_how_a_child_ends(servers, tmp_path, source, code, words):
  child = start(servers.of(sys.executable), tmp_path, source)
  assert child.wait(60) == child.poll() == code
  assert words in (tmp_path / "out").read_text()


def test_children_know_nothing_of_each_other(servers, tmp_path):
  server = servers.of(sys.executable)
  source = """
      import atexit, json, os, threading, time
      assert not hasattr(json, "mark") and "MARK" not in os.environ
      json.mark = os.environ["MARK"] = "mine"
      atexit.register(print, "tidied up")
      threading.Thread(target=lambda: (time.sleep(.1), print("late"))).start()
      """
  made = [start(server, tmp_path, source, name=str(i)) for i in range(5)]
  assert [child.wait(60) for child in made] == [0] * 5
  for i in range(5):
    assert (tmp_path / str(i)).read_text() == "late\ntidied up\n"


def test_an_end_takes_what_was_started_with_it(tmp_path):
  source = """
      import pathlib, subprocess, sys
      code = "import time; time.sleep(60)"
      child = subprocess.Popen([sys.executable, "-c", code])
      pathlib.Path("pid").write_text(str(child.pid))
      child.wait()
      """
  for end in ("kill", "close"):
    with fork_servers.Servers([], {}) as servers:
      child = start(servers.of(sys.executable), tmp_path, source)
      while not (tmp_path / "pid").exists():
        time.sleep(.05)
      grandchild = int((tmp_path / "pid").read_text() or 0)
      (tmp_path / "pid").unlink()
      if end == "kill":
        fork_servers.kill(child)
    assert child.poll() is not None
    assert not running(grandchild) and not running(child.pid)


def running(pid):
  """True if a process runs; a dead one that is inherited may be a zombie."""
  for _ in range(100):
    try:
      with open(f"/proc/{pid}/stat", encoding="utf-8") as handle:
        if handle.read().rpartition(")")[2].split()[0] == "Z":
          return False
    except OSError:
      return False
    time.sleep(.05)
  return True


def test_what_is_called_before_the_first_child(tmp_path):
  (tmp_path / "called.py").write_text("def it():\n  global was\n  was = 1\n")
  env = {"PYTHONPATH": str(tmp_path)}
  with fork_servers.Servers(["called:it"], env) as servers:
    child = start(servers.of(sys.executable), tmp_path,
                  "import called; assert called.was")
    assert child.wait(60) == 0


def test_a_python_that_cannot_import_has_no_server():
  with fork_servers.Servers(["nothing_of_this_name"], {}) as servers:
    assert servers.of(sys.executable) is None


def test_a_server_that_dies_ends_its_children(servers, tmp_path):
  server = servers.of(sys.executable)
  child = start(server, tmp_path, "import time; time.sleep(60)")
  server._process.kill()
  assert child.wait(60) == 255
  assert start(server, tmp_path, "").wait(60) == 255


def test_compiled_programs_are_shared_where_that_is_safe(base, monkeypatch):
  made = []
  monkeypatch.setattr(
      fork_servers, "Server", lambda python, preload, env: made.append(
          (preload, env)) or types.SimpleNamespace(usable=True, close=int))
  newer = dataclasses.replace(base, version="0.12.0")
  older = dataclasses.replace(base, version="0.6.0")
  with fork_servers.Sharing(["json"], {"A": "b"}) as servers:
    assert servers.of("p", newer) is not servers.of("p", older)
    assert servers.of("p", older) is servers.of("p", older)
    (preload, env), (alone, plain) = made
    folder = env["JAX_COMPILATION_CACHE_DIR"]
    assert os.path.isdir(folder) and plain == {"A": "b"} and alone == ["json"]
    assert preload[:-1] == ("json",)
  assert os.path.isdir(folder)  # for the next run


def test_a_second_thread_is_a_reason_not_to_fork(tmp_path, monkeypatch):
  (tmp_path / "starts_a_thread.py").write_text(
      "import threading, time\n"
      "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n")
  env = {"PYTHONPATH": str(tmp_path)}
  with fork_servers.Servers(["starts_a_thread"], env) as servers:
    assert servers.of(sys.executable) is None


# Three seconds, a fraction of one of processor time.
BUSY = """
    import time
    end = time.monotonic() + 3
    while time.monotonic() < end:
      sum(range(150_000))
      time.sleep(.05)
"""


@pytest.mark.parametrize("source, hangs", [
    ("import time; time.sleep(30)", True), (BUSY, False),
    ("while True: pass", True)])
def test_what_gets_processor_time_is_waited_for(
    servers, tmp_path, monkeypatch, source, hangs):
  monkeypatch.setattr(pytest_run, "_LOOK", .5)
  monkeypatch.setattr(pytest_run, "_IDLE", .005)
  (tmp_path / "events").write_text("begun")
  child = start(servers.of(sys.executable), tmp_path, source)
  said = pytest_run.watch(child, tmp_path / "events", 1.)
  assert ("no end" in said) == hangs
