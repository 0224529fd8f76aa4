# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin that runs upstream's tests of memory kinds on CPU too.

`memories_test.py` skips whole classes on CPU in their `setUp`, by asking
`test_device_matches`. CPU has had memory kinds and host compute since 0.5, so
the question is answered with yes there, and there only: what a test asks in
its own body is answered as ever.
"""

import os
import sys


def pytest_collection_finish(session):
  # Not sooner: jax must not be imported before pytest captures the output.
  import jax._src.test_util as jtu
  matches = jtu.test_device_matches

  def test_device_matches(device_types):
    asker = sys._getframe(1).f_code
    if (asker.co_name == "setUp"
        and os.path.basename(asker.co_filename) == "memories_test.py"):
      return True
    return matches(device_types)

  test_device_matches.__test__ = False
  jtu.test_device_matches = test_device_matches
