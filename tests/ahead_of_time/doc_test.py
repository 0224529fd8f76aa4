# SPDX-License-Identifier: Apache-2.0
"""Runs docs/ahead_of_time.md."""
from sanitizer.testing import pages
import jax
from testing.sharding import eight_devices

jax.config.parse_flags_with_absl()
eight_devices()


class AheadOfTimeDocTest(pages.PageTest):
  page = 'ahead_of_time.md'
  least = 18
