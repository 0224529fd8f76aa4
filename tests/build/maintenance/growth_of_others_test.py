# SPDX-License-Identifier: Apache-2.0
"""Functions' calls to trace and to lower grow with layers as pristine's.

Of all programs but the two smallest, which tests/build/growth_test.py has.
"""

import growth
import pytest


@pytest.mark.parametrize("program", growth.OTHERS)
def test_growth(kept_cache, program):
  growth.hold(program)
