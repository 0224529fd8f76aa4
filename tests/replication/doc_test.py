# SPDX-License-Identifier: Apache-2.0
"""Runs docs/replication.md."""
from absl.testing import absltest
from fork.testing import pages
import jax
from jax._src import test_util as jtu
from testing.sharding import eight_devices

jax.config.parse_flags_with_absl()
eight_devices()


class ReplicationDocTest(pages.PageTest):
  page = 'replication.md'
  least = 8


if __name__ == '__main__':
  absltest.main(testLoader=jtu.JaxTestLoader())
