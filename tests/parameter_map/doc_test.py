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
"""Runs docs/parameter_map.md."""

import doctest
import pathlib
import re

from absl.testing import absltest
import jax
from jax._src import test_util as jtu

jax.config.parse_flags_with_absl()
# What was read from a cache is written without its code, but for another patch.
jax.config.update("jax_enable_compilation_cache", False)

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "parameter_map.md"


class ParameterMapDocTest(jtu.JaxTestCase):

  def test_page(self):
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(),
                        re.DOTALL | re.MULTILINE)
    self.assertGreater(len(blocks), 4)
    test = doctest.DocTestParser().get_doctest(
        "\n".join(blocks), {}, PAGE.name, str(PAGE), 0)
    self.assertGreater(len(test.examples), 15)
    said = []
    result = doctest.DocTestRunner(
        verbose=False, optionflags=doctest.ELLIPSIS).run(test, out=said.append)
    self.assertEqual(result.failed, 0, "".join(said))
    self.assertEqual(result.attempted, len(test.examples))


if __name__ == "__main__":
  absltest.main(testLoader=jtu.JaxTestLoader())
