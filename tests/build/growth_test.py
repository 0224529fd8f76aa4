# SPDX-License-Identifier: Apache-2.0
"""Functions' calls to trace and to lower grow with layers as pristine's.

Of the two smallest programs; maintenance/growth_of_others_test.py has the rest.
"""

import growth
import pytest


# One by one: all of them take minutes, and a test has a limit.
@pytest.mark.parametrize("program", growth.SMALL)
def test_growth(kept_cache, program):
  growth.hold(program)
