# SPDX-License-Identifier: Apache-2.0
"""Runs docs/sanitizer.md."""
import doctest

from sanitizer.testing import pages
import jax
from testing.sharding import eight_devices

jax.config.parse_flags_with_absl()
eight_devices()


class CheckReplicationDocTest(pages.PageTest):
  page = 'sanitizer.md'
  least = 38
  options = doctest.ELLIPSIS
