# Copyright 2026 The Mend Authors.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     https://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.

"""What a mended wheel says of itself, and what it must not change."""

import importlib.metadata

from absl.testing import absltest
import jax
from jax._src import test_util as jtu


class MendInfoTest(jtu.JaxTestCase):

  def test_environment_info_names_the_fork(self):
    info = jax.print_environment_info(return_string=True)
    self.assertIn('mend:', info)
    self.assertIn('+mend.', info)
    self.assertIn('fork/identity', info)
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


if __name__ == '__main__':
  absltest.main(testLoader=jtu.JaxTestLoader())
