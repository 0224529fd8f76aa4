# SPDX-License-Identifier: Apache-2.0
"""Runs docs/check_shapes.md."""
from sanitizer.testing import pages
import jax
from testing.sharding import eight_devices

jax.config.parse_flags_with_absl()
eight_devices()


class CheckShapesDocTest(pages.PageTest):
  page = 'check_shapes.md'
  least = 5
