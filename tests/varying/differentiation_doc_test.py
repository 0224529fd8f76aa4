# SPDX-License-Identifier: Apache-2.0
"""Runs docs/differentiation.md."""
from absl.testing import absltest
from fork.testing import pages
import jax
from jax._src import test_util as jtu
from testing.sharding import eight_devices

jax.config.parse_flags_with_absl()
eight_devices()


class DifferentiationDocTest(pages.PageTest):
  page = 'differentiation.md'
  least = 5


if __name__ == '__main__':
  absltest.main(testLoader=jtu.JaxTestLoader())
