# SPDX-License-Identifier: Apache-2.0
"""Runs docs/varying.md, varying_errors.md and varying_primitives.md."""
from sanitizer.testing import pages
import jax
from testing.sharding import eight_devices

jax.config.parse_flags_with_absl()
eight_devices()


class VaryingDocTest(pages.PageTest):
  page = 'varying.md'
  least = 6


class VaryingErrorsDocTest(pages.PageTest):
  page = 'varying_errors.md'
  least = 6


class VaryingPrimitivesDocTest(pages.PageTest):
  page = 'varying_primitives.md'
  least = 6
