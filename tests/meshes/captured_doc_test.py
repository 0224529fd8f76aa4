# SPDX-License-Identifier: Apache-2.0
"""Runs docs/meshes.md."""
import unittest

from sanitizer.testing import pages
import jax
from testing.sharding import eight_devices

jax.config.parse_flags_with_absl()
eight_devices()


# The page maps a loop over an Explicit axis, which is mended from there on.
@unittest.skipIf(jax.__version_info__ < (0, 6, 1),
                 'meshes/mapped_carries is of 0.6.1 and later releases')
class MeshesDocTest(pages.PageTest):
  page = 'meshes.md'
  least = 5
