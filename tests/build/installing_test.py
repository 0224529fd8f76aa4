# SPDX-License-Identifier: Apache-2.0
"""Packages are installed by uv where it is, and by pip elsewhere."""

import pathlib
import subprocess
import sys
import zipfile

from conftest import write
from mend.proof import installing
import pytest

PIP = """\
:env:.find-links='/b /c'
global.cert='/ca'
global.constraint=''
global.extra-index-url='https://x/simple\\nhttps://y/simple'
global.find-links='/a'
install.find-links='/a2'
download.index-url='https://z'
"""


def test_pips_settings_are_read():
  assert installing.settings_in(PIP) == {
      "cert": ["/ca"], "find-links": ["/b", "/c"],
      "extra-index-url": ["https://x/simple", "https://y/simple"]}


@pytest.fixture
def ran(monkeypatch, tmp_path):
  """The commands that are run, by an uv that ends with what `code` holds."""
  uv = write(tmp_path / "uv", f"""\
      #!/bin/sh
      echo "$SSL_CERT_FILE $@" >> {tmp_path}/uv.log
      exit $(cat {tmp_path}/code)
      """)
  uv.chmod(0o755)
  (tmp_path / "code").write_text("0")
  monkeypatch.setattr(installing, "_uv", lambda: uv)
  monkeypatch.setattr(installing, "_pips_settings",
                      lambda: installing.settings_in(PIP))
  monkeypatch.delenv("SSL_CERT_FILE", raising=False)
  by_pip = []
  monkeypatch.setattr(installing.process, "run",
                      lambda command, **_: by_pip.append(command))
  return tmp_path, by_pip


def test_uv_is_told_pips_index(ran):
  folder, by_pip = ran
  installing.install(pathlib.Path("env/python"), ["a==1"], "")
  said = (folder / "uv.log").read_text()
  assert said.startswith("/ca pip install --quiet --no-config")
  for words in ("--index https://x/simple --index https://y/simple",
                "--find-links /b --find-links /c", "--python env/python",
                "--index-strategy unsafe-best-match a==1"):
    assert words in said
  installing.install(pathlib.Path("p"), ["--no-index", "a.whl"], "")
  assert "https" not in (folder / "uv.log").read_text().splitlines()[1]
  assert not by_pip


def test_pip_tries_what_uv_can_not_do(ran):
  folder, by_pip = ran
  (folder / "code").write_text("2")
  installing.install(pathlib.Path("env/python"), ["a==1"], "")
  ((python, *command),) = by_pip
  assert python == sys.executable and command[:2] == ["-m", "pip"]
  assert command[-1] == "a==1" and "--ignore-installed" in command


def test_both_install_the_same(tmp_path, monkeypatch):
  """A wheel, by uv if the tool's environment has it, and by pip."""
  wheel = tmp_path / "toy-1-py3-none-any.whl"
  with zipfile.ZipFile(wheel, "w") as made:
    made.writestr("toy.py", "x = 1\n")
    made.writestr("toy-1.dist-info/WHEEL",
                  "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: "
                  "py3-none-any\n")
    made.writestr("toy-1.dist-info/METADATA",
                  "Metadata-Version: 2.1\nName: toy\nVersion: 1\n")
    made.writestr("toy-1.dist-info/RECORD", "")
  for name, uv in (("first", installing._uv()), ("second", None)):
    env = tmp_path / name
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", env],
                   check=True)
    monkeypatch.setattr(installing, "_uv", lambda uv=uv: uv)
    installing.install(env / "bin" / "python", ["--no-deps", "--no-index",
                                                wheel], "toy")
    assert subprocess.run([env / "bin" / "python", "-c",
                           "import toy; print(toy.x)"], check=True,
                          capture_output=True, text=True).stdout == "1\n"
