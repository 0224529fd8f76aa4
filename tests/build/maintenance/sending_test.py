# SPDX-License-Identifier: Apache-2.0
"""Commits for upstream: each alone, all in a row, and what they don't say."""

import dataclasses
import shutil

from checkouts import (
    GREET_TEST, LOG, SENDABLE, commit_all, git, snapshot, with_block)
from conftest import write
from mend.editing import patches, upstream_alone
from mend.ground.errors import MendError
from mend.trees import git as git_of
from mend.trees import sending
from mend.trees.git import Author
import pytest

SOMEBODY = Author("Some Body", "some@body.example", "1700000000 +0200")
OTHER = SENDABLE.replace("greet.py", "other.py").replace(
    'in = "Greeter.greet"', 'in = "count"').replace(
        "assign:out", "assign:total").replace('"Hello, "', "0").replace(
            "name", "1").replace("test_first", "test_second").replace(
                "test_hello", "test_count").replace(
                    'closes = ["28193"]',
                    'report = { program = "x", output = "oi" }')
COUNT = '''
def count():
  total = 1
  return total
'''


@pytest.fixture
def clone(upstream, tmp_path):
  """A checkout of upstream's, with a test and a change log."""
  folder = tmp_path / "clone"
  shutil.copytree(upstream, folder)
  write(folder / "jax" / "_src" / "other.py", COUNT)
  write(folder / "tests" / "greet_test.py", GREET_TEST)
  write(folder / "CHANGELOG.md", LOG)
  commit_all(folder)
  return folder


@pytest.fixture
def series(project):
  """A patch that can't be sent, and two that can."""
  folder = project / "patches"
  write(folder / "series", "greet/greeting\ngreet/hello\ngreet/other\n")
  write(folder / "greet" / "hello.toml", _called("hello", SENDABLE))
  write(folder / "greet" / "other.toml", _called("other", OTHER))
  return patches.load(project)


def _called(name, block):
  return with_block(block).replace('"greet/greeting"', f'"greet/{name}"')


def am(folder, *files):
  git(folder, "am", "--quiet", "--keep-non-patch", *map(str, files))


def test_each_applies_alone_and_after_the_other(series, base, clone, tmp_path):
  made, left_out = sending.all_made(series, base, clone)
  assert not left_out and [m.patch for m in made] == [
      "greet/hello", "greet/other"]
  assert (made[0].added, made[0].removed) == (2, 1)
  out = tmp_path / "out"
  names, _ = sending.write(made, base, clone, out, SOMEBODY)
  assert [n[:5] for n in names] == ["0001-", "0002-"]
  for order in (names[:1], names[1:], names, names[::-1]):
    other = tmp_path / "-".join(n[:4] for n in order)
    shutil.copytree(clone, other)
    am(other, *(out / n for n in order))
    text = (other / "tests" / "greet_test.py").read_text("utf-8")
    assert ("def test_hello" in text) == (names[0] in order)
    assert snapshot(clone).keys() == snapshot(other).keys()
    assert git(other, "log", "-1", "--format=%an %ae %at").strip() == (
        "Some Body some@body.example 1700000000")


def test_the_message_and_what_is_not_said(series, base, clone, tmp_path):
  made, _ = sending.all_made(series, base, clone)
  assert made[0].message == (
      '[greet] Greet politely\n\n`greet` says "oi".\n\n'
      "It didn't know the word hello.\n\nFixes #28193\n")
  assert made[1].message.endswith("word hello.\n")
  names, _ = sending.write(made, base, clone, tmp_path / "out", SOMEBODY)
  text = "".join((tmp_path / "out" / n).read_text("utf-8") for n in names)
  for word in ("mend", "Mend", "Needs:", "CHANGELOG", "polite.py", "toy#1"):
    assert word not in text


def test_the_change_log_on_request(series, base, clone, tmp_path):
  made, _ = sending.all_made(series, base, clone, changelog=True)
  assert all("CHANGELOG.md" in m.files for m in made)
  assert (made[0].added, made[0].removed) == (2, 1)
  sending.write(made, base, clone, tmp_path / "out", SOMEBODY, in_a_row=False)


def test_braces_in_code_are_its_own(series, base, clone, project):
  path = project / "patches" / "greet" / "hello.toml"
  write(path, path.read_text("utf-8").replace(
      'out = "Hello, "\nout += name', 'out = f"Hello, {name} {in}"'))
  made, _ = sending.all_made(patches.load(project), base, clone)
  assert ('out = f"Hello, {name} greet"\n'
          in made[0].files["jax/_src/greet.py"])


def test_a_source_distribution_has_no_tests(series, base, clone):
  shutil.rmtree(clone / "tests")
  made, _ = sending.all_made(series, base, clone)
  assert list(made[0].files) == ["jax/_src/greet.py"]
  assert made[0].without == ("tests/greet_test.py",)


def test_what_has_no_place_is_left_out(series, base, clone):
  write(clone / "jax" / "_src" / "greet.py", "class Greeter:\n  pass\n")
  made, (line,) = sending.all_made(series, base, clone)
  assert [m.patch for m in made] == ["greet/other"]
  assert "patch greet/hello, upstream edit 1" in line and "found: 0" in line
  (clone / "jax" / "_src" / "other.py").unlink()
  made, left_out = sending.all_made(series, base, clone)
  assert not made and "there is no jax/_src/other.py" in left_out[1]


def of_releases(project, value):
  text = _called("hello", SENDABLE).replace('value = "assign:out"', value)
  write(project / "patches" / "greet" / "hello.toml", text.replace(
      "code = '''\nout = \"Hello, \"\nout += name\n'''",
      'code = { ">=2" = "out = 2", "<2" = "out = 1" }'))
  return [p for p in patches.load(project) if p.id == "greet/hello"]


@pytest.mark.parametrize("version, value, wanted", [
    ("1.0", 'value = "assign:out"', "out = 1"),
    ("2.1", 'value = "assign:out"', "out = 2"),
    ("1.0", 'value = { ">=2" = "assign:out", "<2" = "assign:was" }', "out = 2"),
    ("2.1", 'value = { ">=2" = "assign:new", "<2" = "assign:out" }', "out = 1"),
])
def test_the_trees_version_decides_where_both_fit(
    version, value, wanted, series, project, base, clone):
  chosen = of_releases(project, value)
  (made,), _ = sending.all_made(
      chosen, dataclasses.replace(base, version=version), clone)
  assert wanted in made.files["jax/_src/greet.py"]


def test_a_commit_that_is_too_long(series, base, clone, project):
  path = project / "patches" / "greet" / "hello.toml"
  text = path.read_text("utf-8")
  write(path, text.replace("out += name\n", "out += name\n" * 79))
  with pytest.raises(MendError, match="adds 80 lines .* removes 1, more than"):
    sending.all_made(patches.load(project), base, clone)
  write(path, text.replace("jax/_src/greet.py", "tests/greet.py"))
  with pytest.raises(MendError, match="changes no source"):
    sending.all_made(patches.load(project), base, clone)


def test_a_guard_has_tests_alone(series, base, clone, project):
  path = project / "patches" / "greet" / "hello.toml"
  text = path.read_text("utf-8").replace('closes = ["28193"]', "guard = true")
  write(path, text)
  with pytest.raises(MendError, match="changes source, and is to guard alone"):
    sending.all_made(patches.load(project), base, clone)
  first, second = text.split("[[upstream.edit]]")[1:]
  assert "greet_test" in second
  write(path, text.replace(f"[[upstream.edit]]{first}", ""))
  made, left_out = sending.all_made(patches.load(project), base, clone)
  assert list(made[0].files) == ["tests/greet_test.py"] and not left_out


def test_a_line_in_the_change_log(series, base, clone, project):
  path = project / "patches" / "greet" / "hello.toml"
  write(path, path.read_text("utf-8").replace(
      'closes = ["28193"]',
      'closes = ["28193"]\nchangelog = "Bug fixes: it says hello."'))
  made, _ = sending.all_made(patches.load(project), base, clone)
  assert "* Bug fixes\n  * it says hello." in made[0].files["CHANGELOG.md"]
  assert "CHANGELOG.md" not in made[1].files


def test_two_tests_at_one_place_are_in_order(series, base, clone, project,
                                             tmp_path):
  path = project / "patches" / "greet" / "other.toml"
  write(path, path.read_text("utf-8").replace("test_second", "test_first"))
  made, _ = sending.all_made(patches.load(project), base, clone)
  out = tmp_path / "out"
  names, left_out = sending.write(made, base, clone, out, SOMEBODY)
  assert len(names) == 2 and not left_out
  for name in names:
    other = tmp_path / name[:4]
    shutil.copytree(clone, other)
    am(other, out / name)


def test_two_edits_at_one_place_are_not(series, base, clone, project, tmp_path):
  path = project / "patches" / "greet" / "other.toml"
  write(path, (project / "patches" / "greet" / "hello.toml").read_text(
      "utf-8").replace("greet/hello", "greet/other").replace("Hello", "Hi"))
  made, _ = sending.all_made(patches.load(project), base, clone)
  out = tmp_path / "out"
  names, (line,) = sending.write(made, base, clone, out, SOMEBODY)
  assert [n[:5] for n in names] == ["0001-"]
  assert sorted(p.name for p in out.glob("*.patch")) == names
  assert "greet/other" in line and "(greet/hello)" in line


def test_a_commit_of_upstreams_alone(series, base, clone, project):
  text = SENDABLE.replace("[upstream]", 'of = "greet/greeting"').replace(
      "sendable = true\n", "").replace("[[upstream.edit]]", "[[edit]]")
  write(project / "patches" / "upstream" / "moin.toml",
        text.replace("Hello", "Moin"))
  *mine, alone = upstream_alone.with_commits(series, project)
  assert mine == list(series) and alone.id == "upstream/moin"
  (made,), _ = sending.all_made([alone], base, clone)
  assert "Moin" in made.files["jax/_src/greet.py"] and not alone.edits
  write(project / "patches" / "upstream" / "moin.toml",
        text.replace("greet/greeting", "greet/none"))
  with pytest.raises(MendError, match="it is of 'greet/none', wanted a patch"):
    upstream_alone.with_commits(series, project)


@pytest.mark.parametrize("mail", ["a@b.invalid", "a@example.com", "a@host"])
def test_an_address_that_no_mail_reaches(mail, tmp_path, monkeypatch):
  monkeypatch.setenv("GIT_AUTHOR_NAME", "Some Body")
  monkeypatch.setenv("GIT_AUTHOR_EMAIL", mail)
  with pytest.raises(MendError, match="CLA's check refuses"):
    git_of.caller(tmp_path)
  monkeypatch.setenv("GIT_AUTHOR_EMAIL", "some.body@mail.org")
  assert git_of.caller(tmp_path).mail == "some.body@mail.org"
