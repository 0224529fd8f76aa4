# SPDX-License-Identifier: Apache-2.0
"""The decorators that say which tests fail on a pristine base."""

import pathlib
import sys

from conftest import ROOT, TEST, write
from mend.editing import expected_failures, patches, red_tests
from mend.ground.errors import MendError
from mend.proof import pytest_run
from mend.releases import bases
import pytest

MARK = "@red('^AssertionError: .*a rude greeting')"
FILE = "tests/greet/greeting_test.py"


def read(body):
  return red_tests.read(FILE, f"{red_tests.IMPORT}\n{body}")


def names(body):
  return [list(red.tests) for red in read(body)]


@pytest.mark.parametrize("new, words", [
    ("@red('(')", "no regular expression"),
    ("@red('AssertionError: a rude greeting')",
     "does not begin with the exception"),
    ("@red('^AssertionError: ')", "other failures say, too"),
    ("@red('^AssertionError: .*')", "other failures say, too"),
    ("@red('^TypeError: varying')", "other failures say, too"),
    ("@red('^AssertionError: True is not false')", "other failures say, too"),
    ("@red('^AssertionError: False != True')", "other failures say, too"),
    ("@red('^AssertionError: a rude greeting|^KeyError: .*polite')",
     "has alternatives"),
    ("@red('^AssertionError: a (rude|bad) greeting')", "has alternatives"),
    ("@red({'>=1': '^KeyError: '})", "other failures say, too"),
    ("@red({'newest': '^Err: one two'})", "no version specifier"),
    ("@red({})", "empty table"),
    ("@red({'>=0.6': '^KeyError: one two', '<0.7': '^Err: no two'})",
     "two reasons are for 0.6.0"),
    ("@red(3)", "wanted a reason"),
    ("@red('^Err: one two', bases='newest')", "no version specifier"),
    ("@red('^Err: one two', api_missing='yes')", "api_missing = True"),
    ("@red('^Err: one two', when=1)", "red has no when"),
    ("@red('^Err: one two', also='nobody')", "'nobody' is no family"),
    ("@red('^Err: one two', '>=1')", "red takes a reason"),
    ("@red(WORDS)", "WORDS is neither a literal nor this file's name of one"),
    ("@red('^Err: ' + words())", "neither a literal"),
    ("@red('^Err: one two', cases=[])", "cases names none"),
    ("@red('^Err: one two', cases={'loud': True})", "wanted values by param"),
    ("@red('^Err: one two', cases=3)", "wanted values by parameters"),
    ("import this is", "line 8: does not parse"),
])
def test_a_bad_decorator_is_refused(project, new, words):
  assert MARK in TEST
  write(project / FILE, TEST.replace(MARK, new))
  with pytest.raises(MendError, match=words) as error:
    patches.load(project)
  assert f"{FILE}, line " in str(error.value)
  assert error.value.next_step == f"edit {FILE}"


@pytest.mark.parametrize("body", [
    "@red('^Err: one two')\ndef test_of_no_class(): pass",
    "class T(X):\n  @red('^Err: one two')\n  def no_test(self): pass",
    "mark = red('^Err: one two')"])
def test_a_decorator_at_no_test_is_refused(body):
  with pytest.raises(MendError, match="stands at no test"):
    read(body)


def test_cases_of_a_class_are_refused():
  with pytest.raises(MendError, match="no cases in common"):
    read("@red('^Err: one two', cases=[1])\nclass T(X):\n"
         "  def test_x(self): pass")


def test_a_reason_for_each_release(project, base):
  text = TEST.replace(MARK, "@red(WORDS, bases='>=0.9')")
  write(project / FILE, text.replace("class", """WORDS = {
    '<2': RUDE,
    '>=2': "^KeyError: 'a.b' != '[|]'"}
RUDE = '^AssertionError: .*a rude greeting'


class"""))
  (patch,) = patches.load(project)
  assert [(r.bases, r.reason) for r in patch.red] == [
      (">=0.9,<2", "^AssertionError: .*a rude greeting"),
      (">=0.9,>=2", "^KeyError: 'a.b' != '[|]'")]
  assert {(r.file, r.tests) for r in patch.red} == {
      (FILE, ("GreetingTest.test_polite(*",))}


def test_a_file_of_two_patches_for_other_releases(project):
  """The newer releases' patch hasn't got what only older ones have."""
  text = (project / "patches" / "greet" / "greeting.toml").read_text()
  for name, spec in (("older", "<0.6"), ("newer", ">=0.6")):
    write(project / f"patches/greet/{name}.toml", text.replace(
        "greet/greeting\"", f"greet/{name}\"").replace(">=1.0", spec))
  write(project / "patches" / "series", "greet/older\ngreet/newer\n")
  write(project / FILE, TEST.replace(MARK, "\n  ".join([
      "@red('^KeyError: one two', bases='<0.5.3')",
      "@red('^KeyError: no two', bases='>=0.8')",
      "@red('^KeyError: all two')"])))
  found = {p.id: [r.reason for r in p.red] for p in patches.load(project)}
  assert found == {
      "greet/older": ["^KeyError: one two", "^KeyError: all two"],
      "greet/newer": ["^KeyError: no two", "^KeyError: all two"]}


def test_what_a_class_says_comes_after_what_its_tests_say():
  body = """
class Shared:
  @red('^KeyError: of one test')
  def test_a(self): pass
@red('^KeyError: of a class')
class First(Shared, X):
  @unittest.skip('no')
  @red('^KeyError: of another test')
  def test_b(self): pass
  if NEW:
    @red('^KeyError: of a newer test')
    def test_c(self): pass
class Second(First):
  def test_b(self): pass
"""
  assert names(body) == [
      ["First.test_b(*"],
      ["First.test_c(*", "Second.test_c(*"],
      ["First.test_a(*", "Second.test_a(*"],
      ["First.*", "Second.*"]]
  first = expected_failures.first("First.test_b()", read(body))
  assert first and first.reason == "^KeyError: of another test"
  second = expected_failures.first("Second.test_b()", read(body))
  assert second and second.reason == "^KeyError: of a class"


# As absl.testing.parameterized does it.
PARAMETERIZED = '''
import functools, unittest
import numpy as np
from testing.red import red


class T(unittest.TestCase):
  @red('^Err: as a list', cases=['scan', ('a', 1)])
  @red('^Err: a dictionary', cases={'jit': True, 'f': ['scan', 'loop']})
  @red('^Err: several', cases=[{'f': None}, {'f': '[*]', 'jit': [0, 1.5]}])
  def test_x(self, f, jit=False): pass

  @red('^Err: the names', cases=['2d', '3d'])
  @red('^Err: no name', cases={'n': 4})
  @named_parameters()
  def test_n(self, n): pass

  @red('^Err: any number', cases={'shape': (2, 3), 'more': {'a': 1}})
  def test_s(self, *shape, **more): pass

  def test_y(self): pass


def cased(f, suffix, testcase_params, named=False):
  @functools.wraps(f)
  def case(self):
    return testcase_params
  case.__x_use_name__ = named
  setattr(T, f.__name__ + suffix, case)


def scan(): pass
'''
CASES = [  # the test, what follows its name, its parameters, the reason
    ("x", "0", "(scan,)", "as a list"), ("x", "1", "{'f': scan, 'jit': 1}",
                                      "as a list"),
    ("x", "2", "dict(f=('a', 1))", "as a list"),
    ("x", "3", "'loop'", ""), ("x", "4", "dict(jit=True, f='loop')",
                               "a dictionary"),
    ("x", "5", "(None,)", "several"), ("x", "6", "('[*]', 1.5)", "several"),
    ("x", "7", "('[*]', False)", ""), ("x", "8", "('*', 0)", ""),
    ("x", "9", "(lambda: 1, 0)", ""), ("x", "10", "(np.zeros(3), 0)", ""),
    ("x", "11", "('scan_loop',)", ""), ("x", "12", "(1, 2, 3)", ""),
    ("n", "_2d", "(4,)", "the names"), ("n", "_1d", "(4,)", "no name"),
    ("n", "_2d_more", "(5,)", ""), ("n", "3d", "{'n': 1}", "the names"),
    ("s", "0", "(2, 3)", ""), ("s", "1", "{'a': 1}", "")]


def test_cases_are_told_by_their_parameters(tmp_path):
  text = PARAMETERIZED.replace("  @named_parameters()\n", "") + "".join(
      f"cased(T.test_{test}, '{suffix}', {given}, {test == 'n'})\n"
      for test, suffix, given, _ in CASES) + "".join(
          f"del T.test_{test}\n" for test in "xns")
  path = write(tmp_path / "x_test.py", text.replace("import numpy as np\n", "")
               .replace("np.zeros(3)", "object()"))
  found = pytest_run.run_file(sys.executable, path, limit=60, env={
      "PYTHONPATH": f"{ROOT / 'build' / 'probes'}:{ROOT / 'tests'}"})
  reds = red_tests.read("x_test.py", PARAMETERIZED.replace(
      "named_parameters", "parameterized.named_parameters"))
  told = {}
  for test, outcome in found.items():
    red = expected_failures.first(outcome.case, reds)
    told[test] = red.reason.removeprefix("^Err: ") if red else ""
  assert told == {"T.test_y": "", **{
      f"T.test_{test}{suffix}": reason for test, suffix, _, reason in CASES}}
  assert found["T.test_y"].case == "T.test_y()"
  assert found["T.test_n_2d"].case == "T.test_n('2d';n=4;)"


def test_each_red_test_is_of_a_file_that_runs_on_pristine():
  series = patches.load()
  proven = {f for p in series for f in p.tests}
  marked = {p.relative_to(ROOT).as_posix()
            for family in {pathlib.Path(f).parent for f in proven}
            for p in (ROOT / family).glob("*_test.py")
            if red_tests.IMPORT in p.read_text(encoding="utf-8")}
  assert marked and marked <= proven
  assert marked == {r.file for p in series for r in p.red}


def test_each_red_test_is_met_on_a_release_of_its_patch():
  series = patches.load()
  reds = {r for p in series for r in p.red}
  met = {r for p in series for b in bases.releases() if b.within(p.bases)
         for r in p.red if b.within(r.bases)}
  assert reds and reds == met
