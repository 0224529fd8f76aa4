# SPDX-License-Identifier: Apache-2.0
"""Each fact of a release is what its table says of the release that runs."""
import types

from absl.testing import parameterized
import jax
from jax._src import test_util as jtu
from jax._src.mend import release_types  # declares facts, too
from jax._src.mend import releases
from packaging import specifiers

jax.config.parse_flags_with_absl()

FACTS = releases.facts
# Asked early: what a fact imports may define options, which a test must not.
ANSWERS = {name: fact() for name, fact in FACTS.items()}


def described(value):
  """An answer as a table says it: a name, a number of members, or None."""
  if value is None or isinstance(value, str):
    return {value}
  if isinstance(value, tuple):
    return {len(value)}
  if isinstance(value, types.ModuleType):
    return {value.__name__}
  return {getattr(value, '__name__', None), getattr(value, 'name', None),
          getattr(value, '__module__', None)}


def within(bases):
  return specifiers.SpecifierSet(bases).contains(jax.__version__)


class ReleaseFactsTest(jtu.JaxTestCase):

  @parameterized.parameters(*FACTS)
  def test_answer(self, name):
    fact, answer = FACTS[name], ANSWERS[name]
    if isinstance(fact.answers, str):
      none = answer is None or answer is False or answer == {}
      self.assertEqual(not none, within(fact.answers), answer)
      return
    expected = [said for bases, said in fact.answers.items() if within(bases)]
    self.assertLen(expected, 1)
    self.assertIn(expected[0], described(answer))

  def test_docstring_ends_with_the_releases(self):
    self.assertEndsWith(
        release_types.types_can_be_reduced.__doc__.rstrip(),
        'Before, types hold varying axes at most.\n\n  Releases: >=0.10.')
    self.assertGreater(len(FACTS), 40)
