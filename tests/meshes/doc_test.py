# SPDX-License-Identifier: Apache-2.0
"""Runs docs/upgrading.md."""
import doctest

from sanitizer.testing import pages
import jax
from testing.sharding import eight_devices

jax.config.parse_flags_with_absl()
eight_devices()


class UpgradingDocTest(pages.PageTest):
  page = 'upgrading.md'
  least = 8
  options = doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL
