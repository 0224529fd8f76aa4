# SPDX-License-Identifier: Apache-2.0
"""A real wheel: the same bytes each time, and it says truly what it is."""

import base64
import csv
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import zipfile

from conftest import OUTER, ROOT
from mend import cli
from mend.proof import environments, venvs
from mend.releases import bases, interpreters, source
from mend.trees import tree, wheel
import pytest

# One that the run, which this file is part of, has made.
BASE = bases.one(os.environ.get("MEND_TEST_BASE"))


@pytest.fixture
def sdist(private_cache, tmp_path):
  """Puts the release into the test's own cache, fetched once."""
  target = tmp_path / "cache" / "sdists" / f"jax-{BASE.version}.tar.gz"
  kept = OUTER / "sdists" / target.name
  if kept.is_file():
    target.parent.mkdir(parents=True)
    shutil.copyfile(kept, target)
  return source.sdist(BASE)


def built(cache, monkeypatch):
  """The wheel as made from nothing in the folder `cache`."""
  monkeypatch.setenv("MEND_CACHE", str(cache))
  made, _ = wheel.build(BASE, None)
  assert cache in made.parents
  return made.read_bytes()


def of_this_run(monkeypatch):
  """The wheel in the cache of the run that this test is part of."""
  with monkeypatch.context() as context:
    context.setenv("MEND_CACHE", str(OUTER))
    return wheel.build(BASE, None)[0].read_bytes()


def test_two_runs_and_two_folders_give_the_same_bytes(
    sdist, tmp_path, monkeypatch):
  name = "a folder with a much longer name"
  (tmp_path / name / "sdists").mkdir(parents=True)
  shutil.copyfile(sdist, tmp_path / name / "sdists" / sdist.name)
  first = of_this_run(monkeypatch)
  monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
  monkeypatch.setenv("TZ", "Asia/Tokyo")
  umask = os.umask(0o077)
  try:
    other = built(tmp_path / name, monkeypatch)
  finally:
    os.umask(umask)
  assert first == other


def test_another_python_gives_the_same_bytes(sdist, tmp_path, monkeypatch):
  mine = f"{sys.version_info.major}.{sys.version_info.minor}."
  others = [p for v, p in interpreters.found() if not v.startswith(mine)
            and tuple(int(x) for x in v.split(".")[:2]) >= (3, 10)]
  if not others:
    pytest.skip("this machine has one Python")
  cache = tmp_path / "other"
  (cache / "sdists").mkdir(parents=True)
  shutil.copyfile(sdist, cache / "sdists" / sdist.name)
  env = venvs._environment(
      "x-tool", others[-1], ["--require-hashes", "-r",
                             venvs.REQUIREMENTS / "tool.txt"], "the tool")
  subprocess.run(
      [venvs.python_of(env), "-c", "import sys; from mend import cli\n"
       "sys.exit(cli.main(sys.argv[1:]))", "bazel", "wheel",
       f"--base={BASE.version}", f"--output_path={tmp_path / 'dist'}"],
      env={**os.environ, "MEND_CACHE": str(cache),
           "PYTHONPATH": str(ROOT / "build")}, check=True)
  (made,) = (tmp_path / "dist").glob("*.whl")
  assert made.read_bytes() == of_this_run(monkeypatch)


def test_record_lists_every_file_with_its_hash(kept_cache):
  made, _ = wheel.build(BASE, None)
  with zipfile.ZipFile(made) as archive:
    (record,) = (n for n in archive.namelist() if n.endswith("/RECORD"))
    rows = list(csv.reader(io.StringIO(archive.read(record).decode())))
    names = archive.namelist()
    assert sorted(r[0] for r in rows) == sorted(names)
    for name, digest, size in rows:
      if name == record:
        assert not digest and not size
        continue
      data = archive.read(name)
      want = base64.urlsafe_b64encode(hashlib.sha256(data).digest())
      assert digest == "sha256=" + want.rstrip(b"=").decode(), name
      assert int(size) == len(data), name
  assert tree.MANIFEST in names and "jax/_src/mend_info.py" in names
  assert not [n for n in names if n.startswith(("tests/", "reproductions/"))]


def test_the_manifest_is_what_status_says(kept_cache, capsys, monkeypatch):
  with monkeypatch.context() as context:  # of the 21 bases one says as much
    context.setattr(bases, "all_bases", lambda: (BASE,))
    assert cli.main(["status", "--json"]) == 0
  said = json.loads(capsys.readouterr().out)
  made, _ = wheel.build(BASE, None)
  held: dict = {}
  with zipfile.ZipFile(made) as archive:
    exec(archive.read(tree.MANIFEST), held)
    modules = {n for n in archive.namelist() if n.startswith("jax/")}
  here = [p for p in said["patches"] if p["bases"][BASE.version] != "-"]
  assert held["PATCHES"] == tuple(p["id"] for p in here) and here
  assert held["BASE_SHA256"] == said["bases"][held["BASE"]] == BASE.sha256
  assert held["VERSION"] == f"{BASE.version}+mend.{said['release']}"
  assert made.name == f"jax-{held['VERSION']}-py3-none-any.whl"
  assert {m for p in here for m in p["modules"]} <= modules


def test_pip_is_content_with_the_wheel(kept_cache):
  python = interpreters.for_base(BASE, lowest=True)
  made = environments.build(BASE, python=python)
  done = subprocess.run(
      [sys.executable, "-m", "pip", "--python", made.mended, "check"],
      capture_output=True, text=True, check=False)
  assert done.returncode == 0, done.stdout + done.stderr
  assert "No broken requirements" in done.stdout
  listed = subprocess.run(
      [sys.executable, "-m", "pip", "--python", made.mended, "list",
       "--format=json"], capture_output=True, text=True, check=True)
  versions = {p["name"]: p["version"] for p in json.loads(listed.stdout)}
  assert versions["jax"] == BASE.mended
  assert versions["jaxlib"] in " ".join(BASE.requirements)


REQUIREMENTS = sorted((ROOT / "build" / "requirements").glob("*.txt"))


@pytest.mark.parametrize("path", REQUIREMENTS, ids=lambda p: p.stem)
def test_all_that_is_installed_is_pinned_by_hash(path):
  wanted = path.with_suffix(".in").read_text(encoding="utf-8")
  text = path.read_text(encoding="utf-8").replace("\\\n", "")
  lines = [l for l in text.splitlines() if not l.startswith("#")]
  assert lines and all("==" in l and "--hash=sha256:" in l for l in lines)
  pins = {l.split(" ")[0].lower().replace("_", "-") for l in lines}
  asked = {l.split(";")[0].strip().lower().replace("_", "-")
           for l in wanted.splitlines() if not l.startswith("#")}
  assert asked - {""} <= pins, asked - pins
