# SPDX-License-Identifier: Apache-2.0
"""Runs docs/parameter_map.md."""
from sanitizer.testing import pages
import jax
from testing.sharding import eight_devices

jax.config.parse_flags_with_absl()
eight_devices()
# What was read from a cache is written without its code, but for another patch.
jax.config.update('jax_enable_compilation_cache', False)


class ParameterMapDocTest(pages.PageTest):
  page = 'parameter_map.md'
  least = 18
