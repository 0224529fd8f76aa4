# SPDX-License-Identifier: Apache-2.0
"""Runs `python -m jax_mend compare` on each of the table's programs."""

import compare_same as same
import compare_table as table
from conftest import OUTER
from compare_programs import Runner
from mend.releases import bases
import pytest

_RELEASES = ("0.6.0", "0.9.2", "0.10.2", "0.12.0.1")


@pytest.fixture(scope="module", params=_RELEASES)
def runner(request, tmp_path_factory):
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv("MEND_CACHE", str(OUTER))
    return Runner(bases.get(request.param), tmp_path_factory.mktemp("table"))


@pytest.fixture
def release(runner, request):
  return tuple(map(int, request.node.callspec.params["runner"].split(".")))


@pytest.mark.parametrize("case", table.CASES + same.CASES, ids=lambda c: c.name)
def test_a_program(runner, release, case):
  if release < case.first:
    pytest.skip(f"stock does so from {case.first} on")
  table.check(runner, case)
