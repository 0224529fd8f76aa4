# SPDX-License-Identifier: Apache-2.0
"""Does a source have an edit's code? By its tree, not by its text."""

from edits_test import SOURCE, done, make
from mend.editing import operations, presence, syntax
from mend.editing.edit import NEEDS
import pytest

EDITS = [
    dict(op="append", code="os.register(plain)\nos.register(Thing)"),
    dict(op="insert", in_="plain", before="if", code="z = mine.look(z, x)"),
    dict(op="insert", in_="plain", at="end", code="return z"),
    dict(op="insert", after="assign:NAMES", code="NAMES = mine.more(NAMES)"),
    dict(op="replace_body", in_="plain", code="return mine.plain(x)"),
    dict(op="replace_docstring", in_="plain", doc="Words of our own."),
    dict(op="replace_call", in_="plain", call="call:bind#1", code="mine.bind"),
    dict(op="wrap_call", in_="plain", call="call:bind#2", code="mine.seen"),
    dict(op="wrap_call", in_="plain", call="call:bind#2",
         code="mine.seen({}, x)"),
    dict(op="replace_value", in_="plain", value="assign:z", code="mine.z(x)"),
    dict(op="replace_value", in_="generic", value="return", code="mine.of({})"),
    dict(op="add_argument", in_="plain", call="call:bind#1", code="more=None"),
    dict(op="add_parameter", in_="plain", code="more=None"),
    dict(op="add_member", in_="NAMES", code='"c"'),
    dict(op="add_member", in_="Thing", code="three = mine.three\nfour = 4"),
    dict(op="decorate", in_="Thing", code="@mine.marked"),
    dict(op="decorate", in_="plain", code="@mine.marked"),
    dict(op="around", in_="plain", code="mine.marked"),
    dict(op="around", in_="Thing.two", code="mine.marked"),
]


def there(source, **keys):
  return presence.already_there(operations.Source(source), make(**keys))


def test_every_operation_is_tried():
  # Imports say nothing, and add_text is not for Python.
  assert {e["op"] for e in EDITS} == set(NEEDS) - {
      "add_import", "drop_import", "add_text"}


@pytest.mark.parametrize("edit", EDITS, ids=str)
def test_it_is_there_once_the_edit_is_made(edit):
  assert there(done(**edit), **edit)
  assert not there(SOURCE, **edit)


def test_neither_layout_nor_comments_hide_it():
  code = "z = mine.look(z, x)\nz = z or None"
  source = SOURCE.replace(
      "  if z:", "  z = mine.look(  # why\n      z, x)\n  # because\n"
      "  z = z  or None\n  if z:")
  keys = dict(op="insert", in_="plain", before="if")
  assert there(source, code=code, **keys)
  assert not there(source, code=code + "\nz += 1", **keys)


def test_short_code_does_not_match_by_chance():
  assert not there(SOURCE, op="insert", in_="plain", before="if", code="z")
  assert not there(SOURCE, op="replace_value", in_="Thing.two",
                   value="assign:first", code="second")
  assert not there(SOURCE, op="add_argument", in_="plain", call="call:bind#1",
                   code="z")
  # as a substring it was: "k" stands in another table
  assert not there(SOURCE, op="add_member", in_="NAMES", code='"k"')


def test_an_import_says_nothing():
  assert not there(SOURCE, op="add_import", code="import os")


def test_lines_of_a_text_file():
  keys = dict(op="add_text", after="a", code="b = 1\nc = 2")
  assert there("a\nb = 1\nc = 2\n", **keys)
  assert not there("a\nb = 1\nd\nc = 2\n", **keys)


def test_a_definition_that_is_not_there():
  with pytest.raises(syntax.NotFound):
    there(SOURCE, op="replace_body", in_="gone", code="return 1")
