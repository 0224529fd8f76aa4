# SPDX-License-Identifier: Apache-2.0
"""Every operation on an invented source, and what each refuses."""

import textwrap

from mend.editing import edits, operations, splice, syntax
from mend.editing.edit import NEEDS, UPSTREAM_NEEDS, Edit
import pytest

SOURCE = '''\
"""Módule."""
from __future__ import annotations

import os
from typing import (
    Any,
)

NAMES = ["a", "b"]
TABLE = {
    "k": 1,
}


def plain(x, *args, y: int = 1, **kw):
  """Doc of plain."""
  z = os.bind(x, k=y)  # é
  if z:
    return z
  return os.bind(z)


@os.decorator
class Thing:
  def one(self): return 1

  def two(self, a):
    # a comment that goes
    first = a
    second = os.call(
        first,
        k=2,
    )
    return first, second


def generic[T](x: T) -> T:
  return os.wrapped(x)
'''


def make(op, **keys):
  keys["scope"] = keys.pop("in_", "")
  return Edit(patch="toy", number=1, file="f.py", op=op, **keys)


def done(op, source=SOURCE, **keys):
  located = edits.locate(operations.Source(source), make(op, **keys))
  return splice.apply(source, located.splices)


def test_every_operation_has_a_need():
  assert {*NEEDS, *UPSTREAM_NEEDS} == {*operations.OPERATIONS, "add_text"}


def test_add_import_goes_after_the_leading_imports():
  out = done("add_import", code="from mine import x")
  assert ")\nfrom mine import x\n\nNAMES" in out


def test_append_goes_last():
  assert done("append", code="register(1)").endswith("(x)\n\nregister(1)\n")


def test_insert_before_and_after_a_statement():
  out = done("insert", in_="plain", before="call:bind#1", code="a = 1\nb = 2")
  assert "  a = 1\n  b = 2\n  z = os.bind" in out
  out = done("insert", in_="plain", after="assign:z", code="a = 1")
  assert "# é\n  a = 1\n  if z:" in out
  out = done("insert", in_="Thing.two", after="kwarg:k", code="third = 3")
  assert "    )\n    third = 3\n    return" in out


def test_insert_at_start_and_end():
  out = done("insert", in_="plain", at="start", code="x = mine(x)")
  assert 'plain."""\n  x = mine(x)\n  z =' in out
  assert done("insert", in_="plain", at="end", code="y").count("bind(z)\n  y\n")
  out = done("insert", in_="Thing.two", at="start", code="pass")
  assert "    pass\n    first = a" in out


def test_insert_at_module_level_ignores_the_insides_of_functions():
  out = done("insert", before="def:plain", code="X = 1")
  assert "}\n\n\nX = 1\ndef plain" in out
  with pytest.raises(syntax.NotFound):
    done("insert", before="call:bind", code="X = 1")


def test_insert_before_a_decorated_definition():
  assert "X = 1\n@os.decorator" in done(
      "insert", before="class:Thing", code="X = 1")


def test_replace_body_keeps_the_docstring():
  out = done("replace_body", in_="plain", code="return mine(x)",
             takes=("x", "*args", "y", "**kw"))
  assert ('plain."""\n  return mine(x)\n\n\n@os.decorator' in out)


def test_replace_body_with_a_docstring_of_our_own():
  out = done("replace_body", in_="plain", code="return 1", doc="Own.\n\nMore.",
             takes=("x", "*args", "y", "**kw"))
  assert '):\n  """Own.\n\n  More.\n  """\n  return 1\n\n\n@' in out


def test_replace_body_of_a_one_line_definition_and_with_comments():
  out = done("replace_body", in_="Thing.one", takes=("self",), code="return 2")
  assert "def one(self):\n    return 2\n\n  def two" in out
  out = done("replace_body", in_="Thing.two", takes=("self", "a"), code="pass")
  assert "def two(self, a):\n    pass\n\n\ndef generic" in out


def test_replace_body_refuses_another_signature():
  with pytest.raises(syntax.NotFound, match="parameters"):
    done("replace_body", in_="Thing.two", takes=("self",), code="pass")


def test_replace_docstring_and_a_new_one():
  assert '"""New."""\n  z = ' in done(
      "replace_docstring", in_="plain", doc="New.")
  assert '"""New."""\n    first' in done(
      "replace_docstring", in_="Thing.two", doc="New.")


def test_replace_call_and_wrap_call():
  assert "return mine(z)" in done(
      "replace_call", in_="plain", call="call:bind#2", code="mine")
  assert "return mine(os.bind(z))" in done(
      "wrap_call", in_="plain", call="call:bind#2", code="mine")
  assert "return mine(os.bind(z), 1)" in done(
      "wrap_call", in_="plain", call="call:bind#2", code="mine({}, 1)")
  assert "return mine.wrapped(x)" in done(
      "replace_call", in_="generic", call="call:wrapped", code="mine.wrapped")


def test_replace_value():
  assert "  z = mine  # é" in done(
      "replace_value", in_="plain", value="assign:z", code="mine")
  assert "k=not y)" in done(
      "replace_value", in_="plain", value="kwarg:k", code="not {}")
  assert "return (first, second) or 1" in done(
      "replace_value", in_="Thing.two", value="return", code="({}) or 1")


def test_add_argument():
  assert "os.bind(z, new=1)" in done(
      "add_argument", in_="plain", call="call:bind#2", code="new=1")
  assert "k=2, new=1,\n" in done(
      "add_argument", in_="Thing.two", call="call:call", code="new=1")


def test_add_parameter():
  assert "y: int = 1, new=0, **kw)" in done(
      "add_parameter", in_="plain", code="new=0")
  assert "two(self, a, new=0)" in done(
      "add_parameter", in_="Thing.two", code="new=0")


def test_add_member():
  assert '["a", "b", "c"]' in done("add_member", in_="NAMES", code='"c"')
  assert '"k": 1, "j": 2,\n}' in done("add_member", in_="TABLE", code='"j": 2')
  out = done("add_member", in_="Thing", code="def three(self):\n  return 3")
  assert "second\n\n  def three(self):\n    return 3\n\n\ndef generic" in out


def test_decorate_goes_outermost():
  assert "@mine\n@os.decorator\nclass" in done(
      "decorate", in_="Thing", code="@mine")
  assert "  @mine\n  def two" in done("decorate", in_="Thing.two", code="@mine")


def test_add_text():
  out = done("add_text", source="a(\n    \"x\",\n)\n", after='"x",',
             code='    "y",')
  assert out == 'a(\n    "x",\n    "y",\n)\n'


@pytest.mark.parametrize("keys", [
    dict(before="call:nowhere"), dict(before="call:bind"),
    dict(before="call:bind#3"), dict(before="raise")])
def test_a_place_must_exist_once(keys):
  with pytest.raises(syntax.NotFound):
    done("insert", in_="plain", code="x", **keys)


@pytest.mark.parametrize("scope", ["nobody", "Thing.nobody", "plain.inner"])
def test_a_definition_must_exist(scope):
  with pytest.raises(syntax.NotFound):
    done("insert", in_=scope, at="start", code="x")


def test_a_repeated_definition_needs_an_ordinal():
  source = "def f(x):\n  pass\n\ndef f(x):\n  return 1\n"
  with pytest.raises(syntax.NotFound, match="2 definitions"):
    done("insert", source=source, in_="f", at="start", code="y")
  out = done("insert", source=source, in_="f", n=2, at="start", code="y")
  assert out.endswith("def f(x):\n  y\n  return 1\n")
  assert done("insert", source=source, in_="f", n=-1, at="start",
              code="y") == out


def test_definitions_below_an_if_are_found():
  source = "if 1:\n  def f(x):\n    return 1\n"
  out = done("insert", source=source, in_="f", at="start", code="y")
  assert out == "if 1:\n  def f(x):\n    y\n    return 1\n"


@pytest.mark.parametrize("text", [
    "", "call", "call:", "call:a.b", "nothing:x", "call:x#0", "call:x = 1"])
def test_a_selector_is_a_kind_a_name_and_an_ordinal(text):
  with pytest.raises(ValueError):
    syntax.Selector.parse(text)


def test_a_statement_kind_can_be_narrowed_by_a_name():
  out = done("insert", in_="plain", before="if:z", code="here")
  assert "  here\n  if z:" in out
  assert "  here\n  return os.bind(z)" in done(
      "insert", in_="plain", before="return:os", code="here")


def test_carriage_returns_and_text_outside_an_edit_stay():
  source = SOURCE.replace("\n", "\r\n")
  out = done("add_argument", source=source, in_="plain", call="call:bind#2",
             code="new=1")
  assert out == source.replace("os.bind(z)", "os.bind(z, new=1)")


def test_splices_at_one_place_keep_their_order_and_overlaps_are_refused():
  first = splice.Splice(1, 1, "A", "a")
  second = splice.Splice(1, 1, "B", "b")
  assert splice.apply("xy", [first, second]) == "xABy"
  whole = splice.Splice(0, 2, "Z", "whole")
  with pytest.raises(splice.Overlap, match="whole and a"):
    splice.apply("xy", [whole, first])
  with pytest.raises(splice.Overlap):
    splice.apply("xyz", [whole, splice.Splice(1, 3, "Q", "other")])
  edge = splice.Splice(2, 2, "E", "edge")
  assert splice.apply("xyz", [edge, whole]) == "ZEz"


def test_results_do_not_depend_on_the_run():
  outs = {done("insert", in_="plain", at="start", code="x") for _ in range(3)}
  assert len(outs) == 1
  assert textwrap.dedent(outs.pop()).startswith('"""Módule')


def test_an_import_is_dropped_and_what_others_add_stays():
  source = "import a\nimport b\nfrom c import d, e\nfrom f import g\n\nX = 1\n"
  assert done("drop_import", source, value="import:g") == source.replace(
      "from f import g\n", "")
  spans = [*edits.locate(operations.Source(source), make(
      "drop_import", value="import:g")).splices, *edits.locate(
          operations.Source(source), make(
              "add_import", code="from h import i")).splices]
  assert splice.apply(source, spans) == source.replace(
      "from f import g", "from h import i")
  assert done("drop_import", source, value="import:a") == source[9:]
  for value in ("import:d", "import:x"):
    with pytest.raises(syntax.NotFound):
      done("drop_import", source, value=value)
