# SPDX-License-Identifier: Apache-2.0
"""A jaxpr whose inputs are replaced has debug info that fits them."""
import jax
from jax._src import core
from jax._src import test_util as jtu
from jax._src.mend import jaxprs
import jax.numpy as jnp

jax.config.parse_flags_with_absl()


class ReplaceInputsTest(jtu.JaxTestCase):

  def setUp(self):
    super().setUp()
    f = jax.jit(lambda one, two, three: one * two + three)
    self.jaxpr = f.trace(1., 2., 3.).jaxpr.jaxpr

  def names(self, inputs, **others):
    new = jaxprs.replace_inputs(self.jaxpr, inputs, **others)
    self.assertEqual(new.invars, list(inputs))
    self.assertEqual(new.debug_info.result_paths,
                     self.jaxpr.debug_info.result_paths)
    return list(new.debug_info.arg_names)

  def new(self):
    return jaxprs.new_var(core.ShapedArray((), jnp.float32))

  def test_those_that_stay_keep_their_names(self):
    a, b, c = self.jaxpr.invars
    self.assertEqual(self.names([a, c]), ['one', 'three'])
    self.assertEqual(self.names([c, a, b]), ['three', 'one', 'two'])
    self.assertEqual(self.names([a, self.new(), b, c]),
                     ['one', '', 'two', 'three'])

  def test_renamed_ones_have_the_names_of_their_places(self):
    a, _, _ = self.jaxpr.invars
    self.assertEqual(self.names([a, self.new(), self.new()]),
                     ['one', 'two', 'three'])

  def test_unfit_names_are_given_up(self):
    info = self.jaxpr.debug_info
    with jax.enable_checks(False):
      self.jaxpr = self.jaxpr.replace(
          debug_info=info._replace(arg_names=('one',)))
    self.assertEqual(self.names(self.jaxpr.invars), ['', '', ''])

  def test_evaluates_as_before(self):
    a, b, c = self.jaxpr.invars
    new = jaxprs.replace_inputs(self.jaxpr, [c, b, a])
    self.assertEqual(core.eval_jaxpr(new, [], 3., 2., 1.), [5.])
