# SPDX-License-Identifier: Apache-2.0
"""A share of a file's tests, which stands for all of them."""

import sys

from conftest import write
from mend.proof import pytest_run


def test_a_share_of_each_kind_of_test(tmp_path):
  names = ("red0", "red1", "red2", "red3", "red4", "alone", "a", "b", "c")
  path = write(tmp_path / "x_test.py", (
      "import unittest\nclass T(unittest.TestCase):\n" + "".join(
          f"  def test_{n}(self): pass\n" for n in names)))
  def run(reds, others, **more):
    found = pytest_run.run_file(sys.executable, path, limit=60, env={
        "MEND_REDS": "a\tT.test_red[01](*\tT.test_red*\nb\tT.test_alone(*",
        "MEND_REDS_SHARE": reds,
        "MEND_OTHERS_SHARE": others, **more})
    return " ".join(sorted(n.removeprefix("T.test_") for n in found))
  assert run("0/4", "0/0") == "alone red0 red4"
  assert run("1/4", "0/2") == "a alone c red1"
  assert run("0/1", "1/2") == "alone b red0 red1 red2 red3 red4"
  assert run("3/9", "4/9") == "alone b red3"  # at least one
  assert run("0/4", "1/2", MEND_SHARE="1/2") == "b red4"
  kept = {"MEND_KEPT": "T.test_red1\nT.test_a\nT.gone"}
  assert run("0/4", "0/0", **kept) == "a alone red0 red1 red4"
  # They stand for the others of their kind, and no other has to.
  assert run("9/10", "9/10", **kept) == "a alone red1"
  # An exception stands before the rule, which keeps a test of its own.
  first = {"MEND_REDS": "1\tT.test_red0(*\n2\tT.test_red*"}
  assert run("0/4", "0/0", **first) == "red0 red1"
  # Lines of one kind have one share, wherever they stand.
  first["MEND_REDS"] = "1\tT.test_red4*\n2\tT.test_red*\n1\tT.test_alone(*"
  assert run("0/9", "0/0", **first) == "alone red0"


def test_a_share_of_the_cases_of_a_test(tmp_path):
  path = write(tmp_path / "x_test.py", """\
import functools, unittest
class T(unittest.TestCase):
  def test_1(self): pass
  def test_2(self): pass
  def test_3(self): pass
def many(self): pass
def named(self): pass
def two(self): pass
# As absl.testing.parameterized does it.
for f, cases in ((many, range(6)), (named, ["_a", "_b", "_c"]), (two, "01")):
  for c in cases:
    @functools.wraps(f)
    def case(self): pass
    case.__name__, case.__x_params_repr__ = f"test_{f.__name__}{c}", "(c)"
    setattr(T, case.__name__, case)
""")
  def run(reds="", **more):
    found = pytest_run.run_file(sys.executable, path, limit=60, env={
        "MEND_CASES": "2", "MEND_REDS": reds, "MEND_REDS_SHARE": "0/1",
        "MEND_OTHERS_SHARE": "0/1", **more})
    return " ".join(sorted(n.removeprefix("T.test_") for n in found
                           if not n[7:].isdecimal() and "two" not in n))
  assert run() == "many0 many2 many4 named_a named_c"
  assert run(MEND_KEPT="T.test_many3\nT.test_named_b") == (
      "many0 many2 many3 many4 named_a named_b named_c")
  # What a kind names is a group of its own; whole where it is small.
  assert run("1\tT.test_many1(*\tT.test_many3(*\n2\tT.test_many*") == (
      "many0 many1 many3 many4 named_a named_c")


def test_a_share_of_a_files_tests(tmp_path):
  body = "".join(f"  def test_{c}(self): self.assertNotEqual('{c}', 'c')\n"
                 for c in "dcbae")
  path = write(tmp_path / "x_test.py",
               f"import unittest\nclass T(unittest.TestCase):\n{body}")
  shares = [pytest_run.run_file(sys.executable, path, limit=60,
                                env={"MEND_SHARE": f"{k}/2"}) for k in (0, 1)]
  assert [sorted(s) for s in shares] == [
      ["T.test_a", "T.test_c", "T.test_e"], ["T.test_b", "T.test_d"]]
  few = pytest_run.run_file(sys.executable, path, limit=60,
                            env={"MEND_SHARE": "7/9"})
  assert list(few) == ["T.test_c"]  # at least one
  # What fails is run again by name, whatever the share.
  assert list(pytest_run.run_file(
      sys.executable, path, limit=60, env={"MEND_SHARE": "1/2"},
      only=["T.test_c"])) == ["T.test_c"]
