# SPDX-License-Identifier: Apache-2.0
"""A jaxpr whose inputs are replaced has debug info that fits them."""
import jax
from jax._src import core
from jax._src import test_util as jtu
from jax._src.mend import jaxprs
import jax.numpy as jnp
import numpy as np

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


class IsOneNumberTest(jtu.JaxTestCase):

  def one(self, *values, dtype=np.float32):
    avals = [core.ShapedArray(np.shape(v), dtype) for v in values]
    return jaxprs.is_one_number(list(map(core.Literal, values, avals)))

  def test_bit_by_bit(self):
    self.assertTrue(self.one(1., np.float32(1)))
    self.assertTrue(self.one(np.float32(np.nan), np.float32(np.nan)))
    self.assertFalse(self.one(0., -0.))
    self.assertFalse(self.one(np.float32(1), np.nextafter(np.float32(1), 2)))
    self.assertTrue(self.one(2, np.int8(2), dtype=np.int8))
    self.assertTrue(self.one(jnp.bfloat16(3), 3, dtype=jnp.bfloat16))

  def test_no_array_is_one(self):
    x = np.zeros(3, np.float32)
    self.assertFalse(self.one(x, x))

  def test_no_variable_is_one(self):
    x = jaxprs.new_var(core.ShapedArray((), np.float32))
    number = core.Literal(1., x.aval)
    self.assertTrue(jaxprs.is_one_number([number, number]))
    self.assertFalse(jaxprs.is_one_number([x, x]))
    self.assertFalse(jaxprs.is_one_number([number, x]))
