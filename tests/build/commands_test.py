# SPDX-License-Identifier: Apache-2.0
"""Wrong arguments: each command says what is wrong and what to run next."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time

from conftest import ROOT
from mend import cli
from mend.editing import patches
from mend.ground import bootstrap, interrupts, report
from mend.ground.arguments import USERS
from mend.releases import bases
from mend.suites import upstream
import pytest


@pytest.mark.parametrize("line,wrong,following", [
    ("build --base=1", "not a base release", "--base=V"),
    ("build --wheels=jaxlib", "only jax", "build --wheels=jax"),
    ("build --base=", "names no release", "--base=V"),
    ("test --base=", "names no release", "--base=V"),
    ("test --base=,", "names no release", "--base=V"),
    ("check --base=", "names no release", "--base=V"),
    ("apply --base= --output_path=x", "names no release", "--base=V"),
    ("build --base=0.6.9", "did you mean 0.6.", "--base=V"),
    ("build --patches=nope", "nope is no family and no patch",
     "build.py status"),
    ("build --patches=", "no patch is named", "status"),
    ("build --patches=sanitizer/identiy",
     "did you mean sanitizer/identity?", "choose"),
    ("test sanitizer/identiy", "did you mean sanitizer/identity", "status"),
    ("build --output_path=/proc/no/such", "/proc/no", "--output_path"),
    ("apply", "one of --output_path", "apply --base=V --output_path=DIR"),
    ("apply --base=all --output_path=x", "several", "--base=0.12.0.1"),
    ("check --write", "goes with --candidate", "check --candidate=..."),
    ("check --no_tests", "goes with --candidate", "check --candidate=..."),
    ("check --candidate=nope", "no version and no folder", "--candidate=DIR"),
    ("test --only a_test", "goes with --upstream", "test --upstream=..."),
    ("test --each --share=2", "goes with the project's", "--share=1/2"),
    ("test --time=1", "goes with --upstream", "test --upstream=..."),
    ("test nope", "no test file and no patch", "ls tests"),
    ("test --sources=x", "goes with --clients", "test --clients=..."),
    ("test --clients --only a_test", "goes with --upstream",
     "test --upstream=..."),
    ("test --clients=nope --base=0.12.0.1", "doesn't know nope",
     "choose from equinox"),
    ("test --each nope", "no patch 'nope'", "choose"),
    ("test --upstream=/nope", "no tests/ folder", "--upstream=DIR"),
    ("reproduce --python=/nope", "can't be run", "--python=PATH"),
    ("export --output_path=x nope", "nope is no family and no patch", "choose"),
    ("export --base=0.5.3,0.6.0 --output_path=x", "several", "--base=0.6.0"),
    ("export --candidate=x --base=0.6.0 --output_path=x", "neither",
     "export --candidate=GIT_CHECKOUT"),
    ("export --candidate=/nope --output_path=x", "no jax source tree", "jax/"),
    ("new Bad_Name", "no name for a patch", "another name"),
    ("new sanitizer/name --bases=x", "no version specifier", "--bases="),
    ("retire nope --landed=1", "no patch 'nope'", "choose"),
    ("retire fork-identity --landed=x", "no version", "--landed=0.12.1"),
    ("new_release nope", "no version", "new_release 0.12.1"),
    ("new_release 0.6.0", "a base already", "check --base=0.6.0"),
])
def test_wrong_values(line, wrong, following, capsys):
  assert cli.main(line.split()) == 2
  said = capsys.readouterr().err
  assert said.count(" Next: ") == 1 and said.splitlines()[-1].count(" Next: ")
  what, next_step = said.split(" Next: ")
  assert wrong in what and following in next_step
  assert what.splitlines()[-1].startswith(f"FAILED: {line.split()[0]}: ")
  assert "Traceback" not in said


@pytest.mark.parametrize("line,command", [
    ("", ""), ("frob", ""), ("status --nope", " status"),
    ("docs extra", " docs"), ("--nope status", " status"), ("--nope", ""),
    ("export", " export"), ("new", " new"), ("retire fork-identity", " retire"),
    ("test --time=soon", " test"), ("test --share=0", " test"),
    ("test --share=3/2", " test"),
    ("bazel", " bazel"), ("test --base=0.6.0 --base=0.12.0.1", " test")])
def test_unknown_or_missing_arguments(line, command, capsys):
  with pytest.raises(SystemExit) as stopped:
    cli.main(line.split())
  assert stopped.value.code == 2
  said = capsys.readouterr().err
  last = said.splitlines()[-1]
  assert last.startswith("FAILED: ")
  assert last.endswith(f" Next: python3 build/build.py{command} --help")
  assert said.startswith("usage: python3 build/build.py")


@pytest.mark.parametrize("command", cli.COMMANDS, ids=lambda c: c.name)
def test_every_command_has_help_with_an_example(command, capsys):
  with pytest.raises(SystemExit) as stopped:
    cli.main([command.name, "--help"])
  assert stopped.value.code == 0
  out = capsys.readouterr().out
  assert f"example: python3 build/build.py {command.name}" in out
  if "--base" in dict(command.options) and command.group == USERS:
    known = ", ".join(b.version for b in bases.releases())
    assert known in " ".join(out.split())
  example = command.example.split()
  assert cli._parser().parse_args(example).command == command.name


def test_the_help_has_groups_and_exit_codes(capsys):
  for option, parts in (
      ("--help", ("for users:\n  build ", "for maintainers:\n  check ",
                  "exit codes: 0 all", "130 it was stopped")),
      ("--version", ("Mend, release 1: jax-BASE+mend.1 for BASE "
                    f"{bases.releases()[0].version}, ",))):
    with pytest.raises(SystemExit) as stopped:
      cli.main([option])
    out = capsys.readouterr().out
    assert stopped.value.code == 0 and all(part in out for part in parts)


def test_defaults_are_shown_and_options_are_not_guessed(capsys):
  with pytest.raises(SystemExit):
    cli.main(["test", "--help"])
  out = " ".join(capsys.readouterr().out.split())
  assert "seconds for one test of theirs (default: 120.0)" in out
  with pytest.raises(SystemExit):
    cli.main(["build", "--wheel=x"])
  assert ("--wheel=x: no such argument; did you mean --wheels? Next: "
          in capsys.readouterr().err)
  with pytest.raises(SystemExit):
    cli.main(["biuld"])
  said = capsys.readouterr().err
  assert "there is no 'biuld'; did you mean build? Next" in said
  with pytest.raises(SystemExit):
    cli.main(["test", "--base=0.6.0", "a_test", "--base=0.12.0.1"])
  assert ("--base was given twice; what takes a list takes --base=A,B."
          in capsys.readouterr().err)


def test_only_takes_names_between_commas_and_spaces(monkeypatch):
  requests = []
  monkeypatch.setattr(upstream, "compare_wheels", lambda request, _: (
      requests.append(request) or report.Verdict("done.")))
  line = "test --upstream=x --base=0.6.0 --only a,tests/b.py c"
  assert cli.main(line.split()) == 0
  assert requests[0].only == ["a", "tests/b.py", "c"]


def test_what_patches_need_comes_with_them(capsys):
  (chosen,) = [p for p in patches.load() if p.id == "sanitizer/identity"]
  other = next(p for p in patches.load() if p.depends)
  found = patches.select(patches.load(), [other.id])
  assert {p.id for p in found} > set(other.depends)
  assert "With what they need: " in capsys.readouterr().out
  assert patches.select(patches.load(), ["sanitizer/identity"]) == (chosen,)
  assert not capsys.readouterr().out


def test_a_command_ends_in_one_line(kept_cache, monkeypatch, capsys):
  newest = bases.all_bases()[-1:]
  monkeypatch.setattr(bases, "all_bases", lambda: newest)
  assert cli.main(["status"]) == 0
  assert capsys.readouterr().out.splitlines()[-1].startswith("OK: ")
  assert cli.main(["status", "--json"]) == 0
  said = capsys.readouterr()
  assert json.loads(said.out) and said.err.startswith("OK: ")
  verdict = report.Verdict("it is bad.", "mend it")
  monkeypatch.setattr(cli.checking, "check", lambda *a: verdict)
  assert cli.main(["check"]) == 1
  assert capsys.readouterr().out == "FAILED: it is bad. Next: mend it\n"

  def stop(*_):
    raise KeyboardInterrupt

  monkeypatch.setattr(cli.checking, "check", stop)
  monkeypatch.setattr(interrupts, "_said", threading.Event())
  monkeypatch.setattr(interrupts.signal, "signal", lambda *_: None)
  assert cli.main(["check"]) == 130
  assert capsys.readouterr().err.startswith("FAILED: stopped.")


def test_apply_lists_no_files_before_it_refuses(kept_cache, tmp_path, capsys):
  """A refusal came after 250 lines."""
  line = f"apply --base={bases.all_bases()[-1].version} --tree={tmp_path}"
  assert cli.main(line.split()) == 2
  said = capsys.readouterr()
  assert not said.out and "is no jax source tree" in said.err
  assert cli.main([*line.split(), "--dry_run"]) == 0
  *files, last = capsys.readouterr().out.splitlines()
  assert len(files) > 99
  assert all(f.startswith(("edit ", "add  ")) for f in files)
  assert re.match(r"OK: dry run, nothing written: \d+ patches, \d+ ed", last)


def test_a_termination_is_a_stop_that_clears_up(tmp_path):
  code = ("import sys, time; sys.path.insert(0, sys.argv[1])\n"
          "from mend import cli\nfrom mend.ground import cache\n"
          "def wait(*_):\n"
          "  with cache.scratch():\n"
          "    print('ready', flush=True)\n    time.sleep(60)\n"
          "cli.checking.check = wait\nsys.exit(cli.main(['check']))\n")
  child = subprocess.Popen(
      [sys.executable, "-B", "-c", code, str(ROOT / "build")],
      env={**os.environ, "MEND_CACHE": str(tmp_path)}, text=True,
      stdout=subprocess.PIPE, stderr=subprocess.PIPE)
  assert child.stdout.readline() == "ready\n"
  assert list((tmp_path / "scratch").iterdir())
  child.terminate()
  _, said = child.communicate(timeout=60)
  assert child.returncode == 130
  assert said.strip() == f"* stopping ...\n{bootstrap.STOPPED}"
  assert not list((tmp_path / "scratch").iterdir())


def test_an_interrupt_does_not_wait_for_threads(tmp_path):
  """Ctrl-C in `test` was silent for 20 seconds."""
  code = ("import subprocess, sys, time; sys.path.insert(0, sys.argv[1])\n"
          "from mend import cli\nfrom mend.proof import pools\n"
          "def sleep():\n"
          "  subprocess.run(['sleep', '60'], start_new_session=True)\n"
          "def wait(*_):\n"
          "  with pools.pool() as pool:\n"
          "    future = pool.submit(sleep)\n"
          "    time.sleep(.5)\n    print('ready', flush=True)\n"
          "    future.result()\n"
          "cli.checking.check = wait\nsys.exit(cli.main(['check']))\n")
  child = subprocess.Popen(
      [sys.executable, "-B", "-c", code, str(ROOT / "build")], text=True,
      env={**os.environ, "MEND_CACHE": str(tmp_path)},
      stdout=subprocess.PIPE, stderr=subprocess.PIPE)
  assert child.stdout.readline() == "ready\n"
  below = interrupts._descendants(child.pid)
  began = time.monotonic()
  child.send_signal(signal.SIGINT)
  assert child.stderr.readline() == "\n"
  assert child.stderr.readline() == "* stopping ...\n"
  assert time.monotonic() - began < 1
  _, said = child.communicate(timeout=30)
  assert time.monotonic() - began < interrupts.GRACE + 1
  assert (child.returncode, said) == (130, f"{bootstrap.STOPPED}\n")
  assert below and not any(pathlib.Path(f"/proc/{pid}/exe").exists()
                           for pid in below)


def test_one_base():
  assert bases.one("0.6.0").version == "0.6.0"
  assert bases.one(None) == bases.default_base()
