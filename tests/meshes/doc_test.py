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
"""Runs docs/upgrading.md."""
import doctest
import pathlib
import re

from absl.testing import absltest
import jax
from jax._src import test_util as jtu

jax.config.parse_flags_with_absl()
jtu.request_cpu_devices(8)

PAGE = pathlib.Path(__file__).parents[2] / 'docs' / 'upgrading.md'


class UpgradingDocTest(jtu.JaxTestCase):

  def test_page(self):
    blocks = re.findall(r'^```python\n(.*?)^```$', PAGE.read_text(),
                        re.DOTALL | re.MULTILINE)
    self.assertLen(blocks, 1)
    test = doctest.DocTestParser().get_doctest(
        '\n'.join(blocks), {}, PAGE.name, str(PAGE), 0)
    self.assertGreater(len(test.examples), 7)
    said = []
    before = jax.sharding.get_abstract_mesh()
    result = doctest.DocTestRunner(
        verbose=False, optionflags=doctest.ELLIPSIS
        | doctest.IGNORE_EXCEPTION_DETAIL).run(test, out=said.append)
    self.assertEqual(jax.sharding.get_abstract_mesh(), before)
    self.assertEqual(result.failed, 0, ''.join(said))
    self.assertEqual(result.attempted, len(test.examples))


if __name__ == '__main__':
  absltest.main(testLoader=jtu.JaxTestLoader())
