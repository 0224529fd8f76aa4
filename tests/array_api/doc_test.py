# SPDX-License-Identifier: Apache-2.0
"""Runs docs/array_api.md."""
from sanitizer.testing import pages
import jax
from testing.sharding import eight_devices

jax.config.parse_flags_with_absl()
eight_devices()


class ArrayApiDocTest(pages.PageTest):
  page = 'array_api.md'
  least = 4
