# SPDX-License-Identifier: Apache-2.0
"""Runs docs/meshes.md."""
import unittest

from fork.testing import pages
import jax
from testing.sharding import eight_devices

jax.config.parse_flags_with_absl()
eight_devices()


@unittest.skipUnless(hasattr(jax.sharding, 'AxisType'),
                     'the page calls AxisTypes by its later name')
class MeshesDocTest(pages.PageTest):
  page = 'meshes.md'
  least = 5
