# SPDX-License-Identifier: Apache-2.0
"""Runs docs/replication.md."""
from sanitizer.testing import pages
import jax
from testing.sharding import eight_devices

jax.config.parse_flags_with_absl()
eight_devices()


class ReplicationDocTest(pages.PageTest):
  page = 'replication.md'
  least = 8
