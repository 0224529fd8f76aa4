# SPDX-License-Identifier: Apache-2.0
"""Runs docs/meshes.md."""
from sanitizer.testing import pages
import jax
from testing.sharding import eight_devices

jax.config.parse_flags_with_absl()
eight_devices()


class MeshesDocTest(pages.PageTest):
  page = 'meshes.md'
  least = 5
