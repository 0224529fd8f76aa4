# SPDX-License-Identifier: Apache-2.0
"""Differences that upstream's checks look for, of type errors and targets."""

import json

from mend.upkeep import upstream_checks


def test_the_difference_of_type_errors():
  one = upstream_checks.Errors({"a": 1, "b": 2})
  two = upstream_checks.Errors({"a": 1, "b": 3, "c": 1})
  assert upstream_checks.types(one, two, ["jax/a.py"]).problems == (
      "1 x b", "1 x c")
  assert upstream_checks.types(two, one, ["jax/a.py"]).good
  assert json.dumps(one) == json.dumps({"a": 1, "b": 2})


def test_new_circles_of_targets():
  before = {"a": {"b"}, "b": {"a"}, "c": set()}
  assert upstream_checks.circles(before, {**before, "d": {"c"}}).good
  found = upstream_checks.circles(before, {**before, "c": {"d"}, "d": {"c"}})
  assert found.problems == ("c <-> d",)
  assert not upstream_checks.circles({}, {}).good
