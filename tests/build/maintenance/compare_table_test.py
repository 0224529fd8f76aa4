# SPDX-License-Identifier: Apache-2.0
"""Runs `python -m jax_mend compare` on each of the table's programs."""

import os

import compare_same as same
import compare_table as table
from conftest import OUTER
from compare_programs import Runner
from mend.releases import bases
import pytest

_RELEASES = ("0.6.0", "0.9.2", "0.10.2", "0.12.0.1")
_CASES = table.CASES + same.CASES


def _dealt():
  """Yields releases and cases: of one in three one release, at night all."""
  whole = os.environ.get("MEND_TEST_WHOLE")
  for place, case in enumerate(_CASES if whole else _CASES[::3]):
    having = [r for r in _RELEASES
              if tuple(map(int, r.split("."))) >= case.first]
    for release in having if whole else [having[place % len(having)]]:
      yield pytest.param(release, case, id=f"{case.name}-{release}")


@pytest.fixture(scope="module")
def runners(tmp_path_factory):
  made = {}
  def of(release):
    if release not in made:
      with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MEND_CACHE", str(OUTER))
        made[release] = Runner(bases.get(release),
                               tmp_path_factory.mktemp("table"))
    return made[release]
  return of


@pytest.mark.parametrize(("release", "case"), [*_dealt()])
def test_a_program(runners, release, case):
  table.check(runners(release), case)
