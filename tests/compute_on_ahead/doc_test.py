# SPDX-License-Identifier: Apache-2.0
"""Runs docs/compute_on_ahead.md."""
from sanitizer.testing import pages
import jax
from testing.sharding import eight_devices

jax.config.parse_flags_with_absl()
eight_devices()


class ComputeOnDocTest(pages.PageTest):
  page = 'compute_on_ahead.md'
  least = 4
