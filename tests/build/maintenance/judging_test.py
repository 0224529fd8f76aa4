# SPDX-License-Identifier: Apache-2.0
"""The judgement of a test file's outcomes on each side."""

from mend.editing import expected_failures
from mend.proof import failure_reasons, judging
from mend.proof.pytest_run import Outcome
import pytest

RED = expected_failures.Red(("T.test_red*",), "AssertionError.*rude")
RUDE = Outcome("failed", "AssertionError: a rude greeting")


def pristine(outcomes, *reds):
  return judging.judge_pristine("toy", outcomes, reds)


def test_red_for_the_stated_reason_counts():
  tally = pristine({"T.test_red_1": RUDE, "T.test_ok": Outcome("passed")}, RED)
  assert (tally.passed, tally.red, tally.failures) == (1, 1, [])
  assert str(tally) == "1 passed, 1 red as stated, 0 failed"


@pytest.mark.parametrize("outcome, words", [
    (Outcome("passed"), "declared red, and is passed"),
    (Outcome("skipped"), "declared red, and is skipped"),
    (Outcome("failed", "ValueError: other"), "for another reason"),
])
def test_red_that_is_not(outcome, words):
  (failure,) = pristine({"T.test_red": outcome}, RED).failures
  assert words in failure


def test_a_reason_that_no_test_has_to_meet():
  other = expected_failures.Red(("T.test_red_2(*",), "another")
  outcomes = {"T.test_red_2": RUDE}
  (failure,) = pristine(outcomes, RED, other).failures
  assert "no test has to meet /another/" in failure


def test_what_is_left_out_has_a_reason_to_meet_and_no_outcome():
  other = expected_failures.Red(("T.test_red_2(*",), "another")
  outcomes = {"T.test_red_1": RUDE, "T.test_red_2": Outcome("left out"),
              "T.test_ok": Outcome("left out")}
  tally = pristine(outcomes, other, RED)
  assert (tally.passed, tally.red, tally.failures) == (0, 1, [])
  tally = judging.judge_mended("toy", {
      **outcomes, "T.test_red_1": Outcome("passed")}, (other, RED))
  assert (tally.passed, tally.failures) == (1, [])


def test_a_failure_that_nobody_declared():
  (failure,) = pristine({"T.test_new": RUDE}, RED).failures
  assert "no `red`" in failure


def test_a_missing_name_of_ours_does_not_count():
  text = "ModuleNotFoundError: No module named 'jax._src.polite'"
  red = expected_failures.Red(("*",), "polite")
  (failure,) = pristine({"T.t": Outcome("failed", text)}, red).failures
  assert "our own names" in failure
  red = expected_failures.Red(("*",), "polite", api_missing=True)
  assert not pristine({"T.t": Outcome("failed", text)}, red).failures
  text = "AttributeError: 'function' object has no attribute 'lower'"
  red = expected_failures.Red(("*",), "AttributeError: 'function'.*'lower'")
  assert not pristine({"T.t": Outcome("failed", text)}, red).failures


def test_mended_must_pass_and_must_not_skip_a_regression():
  tally = judging.judge_mended("toy", {
      "T.test_red": Outcome("skipped"), "T.test_other": Outcome("skipped"),
      "T.test_bad": RUDE, "T.test_good": Outcome("passed")}, [RED])
  assert (tally.passed, tally.skipped, len(tally.failures)) == (1, 1, 2)


def test_a_red_pattern_must_match_a_test():
  found = {"T.t": Outcome("passed")}
  (failure,) = judging.judge_mended("toy", found, [RED]).failures
  assert "no such test" in failure
  # Each of its patterns must, in a share of the tests, too.
  red = expected_failures.Red(("T.t(*", "T.red(*"), "^E")
  (failure,) = judging.judge_mended("toy", found, [red], True).failures
  assert "names 'T.red(*', no such test" in failure


def test_a_share_of_which_all_are_skipped():
  outcomes = {"T.test_new": Outcome("skipped")}
  (failure,) = judging.judge_mended("toy", outcomes, ()).failures
  assert "no test ran" in failure
  tally = judging.judge_mended("toy", outcomes, (), is_share=True)
  assert (tally.skipped, tally.failures) == (1, [])
  assert judging.judge_mended("toy", {}, (), is_share=True).failures


def test_a_traceback_is_shown_without_the_frames_of_pytest():
  theirs = [f'  File "/x/{p}/runner.py", line 1, in run\n    hook()\n    ^^^^'
            for p in ("_pytest", "pluggy")]
  text = "\n".join([
      "Traceback (most recent call last):", *theirs,
      '  File "/y/a_test.py", line 2, in test\n    assert 1 == 2',
      "AssertionError: assert 1 == 2", " +  where 1 = f()"])
  assert judging.tail(text).split() == (
      'Traceback (most recent call last): File "/y/a_test.py", line 2, in test '
      'assert 1 == 2 AssertionError: assert 1 == 2 + where 1 = f()').split()


def test_a_reason_is_the_last_exception_only():
  text = """\
Traceback (most recent call last):
  File "varying/rude.py", line 1, in f
    raise KeyError("polite")
KeyError: 'polite'

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "polite.py", line 2, in <module>
    f()
jax.errors.ShapeError: rude
  and long
"""
  assert failure_reasons.final(text) == (
      "ShapeError: rude\n  and long, raised by polite.<module>")
  assert failure_reasons.states("^ShapeError: rude.*long", text)
  assert not failure_reasons.states("varying|KeyError|raise ", text)
  assert failure_reasons.states("died", "the process died (exit -6)")


@pytest.mark.parametrize("raised, final", [
    ("KeyError: 'polite'", "KeyError: 'polite', raised by greet.part"),
    ("AssertionError", "AssertionError: raised by greet.part"),
    ("AssertionError: (1, 0)", "AssertionError: (1, 0), raised by greet.part"),
    ("greet.Rude: no words", "Rude: no words, raised by greet.part")])
def test_a_reason_is_told_by_what_raised_it_too(raised, final):
  text = f"""\
Traceback (most recent call last):
  File "polite_test.py", line 1, in test
    part()
  File "/there/greet.py", line 2, in part
    assert False
           ^^^^^
{raised}
"""
  assert failure_reasons.final(text) == final
  assert failure_reasons.final(text.replace("/greet.py", "/case.py")) == (
      final.partition(", raised")[0].partition(": raised")[0])
