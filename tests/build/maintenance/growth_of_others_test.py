# SPDX-License-Identifier: Apache-2.0
"""Functions' calls to trace and to lower grow with layers as pristine's.

Of all programs but the two smallest, which tests/build/growth_test.py has: at
night of all of these, else of those that are nearest to the limit.
"""

import os

import growth
import pytest


_PROGRAMS = (growth.OTHERS if os.environ.get("MEND_TEST_WHOLE") else
             growth.NEAREST)


@pytest.mark.parametrize("program", _PROGRAMS)
def test_growth(kept_cache, program):
  growth.hold(program)
