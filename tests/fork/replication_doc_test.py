# SPDX-License-Identifier: Apache-2.0
"""Runs docs/check_replication.md."""
import doctest

from fork.testing import pages
import jax
from testing.sharding import eight_devices

jax.config.parse_flags_with_absl()
eight_devices()


class CheckReplicationDocTest(pages.PageTest):
  page = 'check_replication.md'
  least = 38
  options = doctest.ELLIPSIS
