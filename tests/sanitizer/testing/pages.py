# SPDX-License-Identifier: Apache-2.0
"""Runs the programs of a page of docs/: what the tests of pages share.

A page's Python blocks that have prompts are one doctest, in their order; the
others are pieces of programs, and must at least parse.
"""
import doctest
import pathlib
import re

import jax
from jax._src import test_util as jtu

DOCS = pathlib.Path(__file__).parents[3] / 'docs'


def run_docstrings(test, module, least):
  """Runs the examples of a module's docstrings: more than `least` of them."""
  result = doctest.testmod(module)
  test.assertEqual(result.failed, 0)
  test.assertGreater(result.attempted, least)


class PageTest(jtu.JaxTestCase):
  """The test of one page; a subclass names it.

  Attributes:
    page: the page's file in docs/.
    least: as many prompts, at least, must the page have.
    options: of doctest, for what the prompts print.
  """
  page = ''
  least = 1
  options = doctest.ELLIPSIS

  def test_page(self):
    path = DOCS / self.page
    blocks = re.findall(r'^```python\n(.*?)^```$',
                        path.read_text(encoding='utf-8'),
                        re.DOTALL | re.MULTILINE)
    prompts = [block for block in blocks if '>>>' in block]
    for block in blocks:
      if block not in prompts:
        compile(block, str(path), 'exec')
    test = doctest.DocTestParser().get_doctest(
        '\n'.join(prompts), {'__name__': '__main__'}, path.name, str(path), 0)
    self.assertGreaterEqual(len(test.examples), self.least)
    said = []
    before = jax.sharding.get_abstract_mesh() if hasattr(
        jax.sharding, 'get_abstract_mesh') else None
    result = doctest.DocTestRunner(
        verbose=False, optionflags=self.options).run(test, out=said.append)
    if before is not None:
      self.assertEqual(jax.sharding.get_abstract_mesh(), before)
    self.assertEqual(result.failed, 0, ''.join(said))
    self.assertEqual(result.attempted, len(test.examples))
