# SPDX-License-Identifier: Apache-2.0
"""Runs docs/ahead_of_time.md."""
from absl.testing import absltest
from fork.testing import pages
import jax
from jax._src import test_util as jtu
from testing.sharding import eight_devices

jax.config.parse_flags_with_absl()
eight_devices()


class AheadOfTimeDocTest(pages.PageTest):
  page = 'ahead_of_time.md'
  least = 18


if __name__ == '__main__':
  absltest.main(testLoader=jtu.JaxTestLoader())
