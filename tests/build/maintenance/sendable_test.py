# SPDX-License-Identifier: Apache-2.0
"""The `[upstream]` table of a patch that can be sent, and its refusals."""

import dataclasses

from checkouts import ONE_LINE, GREET_TEST, with_block
from conftest import PATCH, write
from mend.editing import edits, operations, patches, sendable
from mend.ground.errors import MendError
import pytest


def loaded(project, text):
  write(project / "patches" / "greet" / "greeting.toml", text)
  return patches.load(project)[0].upstream


def test_a_block_is_read(project):
  found = loaded(project, with_block())
  assert (found.status, found.verdict) == ("not-sent", sendable.SENDABLE)
  assert found.commit.closes == ("28193",)
  assert [e.op for e in found.commit.edits] == [
      "replace_statement", "add_member"]
  assert found.commit.edits[1].label.startswith(
      "patch greet/greeting, upstream edit 2 (add_member")


@pytest.mark.parametrize("said, verdict, why", [
    ("discuss: carries are annotated, jax#1", sendable.DISCUSS,
     "carries are annotated, jax#1"),
    ("fork: it re-types from outside", sendable.FORK,
     "it re-types from outside")])
def test_one_that_is_not_sent(said, verdict, why, project):
  line = ONE_LINE.replace(" }", f', sendable = "{said}" }}')
  found = loaded(project, PATCH.replace(ONE_LINE, line))
  assert (found.verdict, found.why, found.commit) == (verdict, why, None)
  assert loaded(project, PATCH).verdict == ""


@pytest.mark.parametrize("old, new, words", [
    ("sendable = true", 'sendable = "later"', "upstream.sendable is 'later'"),
    ("sendable = true", 'sendable = "fork: no"', "go together"),
    ("sendable = true\n", "", "go together"),
    ("sendable = true", "sendable = 1", "true or a reason"),
    ('["28193"]', '["jax#28193"]', "an issue's number"),
    ('title = "[greet] Greet politely"', "", "missing key title"),
    ('[greet] Greet', "long " * 16, "longer than 72"),
    ('`greet` says', "`greet` mended says", "'mended' is a word"),
    ('says "oi".\n', 'says "oi".', "two paragraphs"),
    ('says "oi".', 'says "oi". ' + "and " * 9 + "\nso " * 70,
     "has 88 words, more than 80"),
    ('closes = ["28193"]\n', "", "needs a report"),
    ('closes = ["28193"]', 'guard = true\nreport = {}', "needs a report"),
    ('closes = ["28193"]', 'report = { program = "x" }', "missing key output"),
    ('closes = ["28193"]', 'report = { program = "x\\n%s", output = "y" }' % (
        "x\\n" * 10), "at most 10 lines"),
    ('closes = ["28193"]', 'report = { program = "x", output = "" }',
     "what it prints"),
    ('closes = ["28193"]\n', 'closes = ["1"]\nchangelog = "Mend: x"\n',
     "'Mend' is a word"),
    ('out = "Hello, "', "out = mend_polite.hello", "'mend_polite' is a word"),
    ('out = "Hello, "', "out = greet_other.greeting()", "'from jax._src."),
    ('op = "replace_statement"', 'op = "guess"', "upstream edit 1: unknown op"),
])
def test_what_is_refused(old, new, words, project):
  write(project / "jax" / "_src" / "greeting" / "other.py", "")
  assert old in with_block()
  with pytest.raises(MendError, match="patch greet/greeting: .*") as refused:
    loaded(project, with_block().replace(old, new, 1))
  assert words in str(refused.value)


def test_a_report_a_guard_and_a_proposal(project):
  found = loaded(project, with_block().replace('closes = ["28193"]', (
      'report = { program = "greet()\\n", output = "oi", devices = 4 }')))
  assert found.report == sendable.Report(
      '`greet` says "oi".', "greet()", "oi", 4)
  assert found.report.xla_flags.endswith("device_count=4")
  guard = loaded(project, with_block().replace(
      'closes = ["28193"]', "guard = true"))
  assert guard.commit.guard and guard.report is None
  proposed = loaded(project, with_block().replace(
      "sendable = true", 'sendable = "discuss: jax#1"'))
  assert proposed.verdict == sendable.DISCUSS and proposed.commit


def test_a_report_without_a_commit(project):
  def with_report(report):
    return PATCH.replace(ONE_LINE, ONE_LINE.replace(
        " }", f', sendable = "discuss: jax#1", report = {report} }}'))

  found = loaded(project, with_report(
      '{ symptom = "It says\\noi.\\n", program = "p", output = "oi" }'))
  assert found.report == sendable.Report("It says oi.", "p", "oi")
  assert found.commit is None
  with pytest.raises(MendError, match="missing key symptom"):
    loaded(project, with_report('{ program = "p", output = "oi" }'))


def test_a_digest_is_of_all_that_is_sent(project):
  texts = [with_block(), with_block().replace("hello", "moin"),
           with_block().replace("28193", "28194"),
           with_block().replace("out += name", "out += 'name'")]
  digests = [loaded(project, text).commit.digest for text in texts]
  assert len({*digests}) == len(texts)
  assert digests[0] == loaded(project, with_block().replace(
      'status = "not-sent"', 'status = "sent"')).commit.digest


def test_the_forks_own_edits_replace_no_statement(project):
  with pytest.raises(MendError, match="unknown op 'replace_statement'"):
    loaded(project, PATCH.replace("replace_body", "replace_statement"))


def made(edit, text):
  def refuse(edit, found):
    return AssertionError(f"{edit.label}: {found}")
  return edits.apply(operations.Source(text), [edit], refuse)[0]


def test_statements_and_members(project, upstream):
  source, member = loaded(project, with_block()).commit.edits
  text = (upstream / "jax" / "_src" / "greet.py").read_text("utf-8")
  assert made(source, text) == text.replace(
      '    out = "oi " + name\n', '    out = "Hello, "\n    out += name\n')
  gone = dataclasses.replace(source, code="")
  assert made(gone, text) == text.replace('    out = "oi " + name\n', "")
  lines = made(member, GREET_TEST).splitlines()
  at = lines.index("  def test_hello(self):")
  assert lines[at - 2:at] == ["    pass", ""] and lines[at + 2:at + 4] == [
      "", "  def test_second(self):"]


@pytest.mark.parametrize("code, before", [
    ("from jax._src import core", "from jax._src import test_util"),
    ("from jax._src import api", "from jax._src import config"),
    ("from jax._src import tree", "import numpy as np"),
    ("from zz import tree", "")])
def test_an_import_in_its_place(code, before, project):
  source, _ = loaded(project, with_block()).commit.edits
  edit = dataclasses.replace(source, op="add_import", scope="", value="",
                             code=code)
  lines = made(edit, GREET_TEST).splitlines()
  assert lines[lines.index(code) + 1] == before
