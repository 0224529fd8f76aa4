# SPDX-License-Identifier: Apache-2.0

"""What a mended wheel says of itself, and what it must not change."""

import importlib.metadata

import jax
from jax._src import test_util as jtu
from testing.red import red


class MendInfoTest(jtu.JaxTestCase):

  @red(r"^AssertionError: 'mend:' not found in 'jax:\s+0\.")
  def test_environment_info_names_the_fork(self):
    info = jax.print_environment_info(return_string=True)
    self.assertIn('mend:', info)
    self.assertIn('+mend.', info)
    self.assertIn('sanitizer/identity', info)
    self.assertIn(f'base {jax.__version__}', info)

  def test_environment_info_keeps_what_upstream_prints(self):
    info = jax.print_environment_info(return_string=True)
    self.assertIn('jaxlib:', info)
    self.assertIn('process_count: 1', info)

  def test_version_stays_the_base_release(self):
    # Other packages parse jax.__version__ by hand: it has no local label.
    installed = importlib.metadata.version('jax')
    self.assertEqual(jax.__version__, installed.split('+')[0])
    numbers = tuple(int(part) for part in jax.__version__.split('.'))
    self.assertEqual(jax.__version_info__, numbers)
