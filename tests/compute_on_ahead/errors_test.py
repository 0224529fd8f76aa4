# SPDX-License-Identifier: Apache-2.0
"""compute_on says what was expected and what came (jax#27825)."""

from absl.testing import parameterized
import jax
import jax.extend
from jax._src import compute_on as compute_on_lib
from jax._src import config
from jax._src import test_util as jtu
import jax.numpy as jnp
import numpy as np
from testing.compute_on_forms import FORMS, context_form, functional_form
from testing.red import red

config.parse_flags_with_absl()

# What pristine JAX says.
NESTED_TYPES = ('^ValueError: Nesting `compute_on` with different compute '
                'types is not allowed')

# 0.10.1 takes any nesting of its context managers; the functional form there
# and later refuses it when it lowers, as older releases do when they trace.
if jax.__version_info__ < (0, 10, 1):
  REFUSES, ERROR = context_form, NotImplementedError
else:
  REFUSES, ERROR = functional_form, ValueError


class ComputeOnErrorsTest(jtu.JaxTestCase):

  def setUp(self):
    super().setUp()
    self.x = np.arange(4, dtype=np.float32)

  @red('^AssertionError: .*does not match .Invalid compute type host')
  def test_unknown_compute_type(self):
    for form in FORMS:
      with self.assertRaisesRegex(
          ValueError,
          r"Invalid compute type 'host'.*compute_on.*device_host.*gpu_stream"):
        form(jnp.sin, 'host')(self.x)

  @red("^AssertionError: .*got .*does not match .`compute_on`'s compute_type "
       'argument must be a string')
  def test_compute_type_not_a_string(self):
    for form in FORMS:
      for bad in (3, None, ('device_host',)):
        with self.assertRaisesRegex(
            TypeError, r"`compute_on`'s compute_type argument must be a string"
            rf'.*device_host.*got .*{type(bad).__name__}'):
          form(jnp.sin, bad)(self.x)

  @red(r'^AssertionError: "`compute_on`\.\*device_host\.\*expected a '
       r'function\.\*got 3 of type int" does not match')
  def test_function_not_callable(self):
    for form in FORMS:
      with self.assertRaisesRegex(
          TypeError, r'`compute_on`.*device_host.*expected a function.*got 3 of'
          ' type int'):
        form(3)(self.x)

  @red('^AssertionError: ValueError not raised', bases='<0.11.1')
  def test_arguments_are_refused_before_the_call(self):
    for form in FORMS:
      with self.assertRaisesRegex(ValueError, 'Invalid compute type'):
        form(jnp.sin, 'host')
      with self.assertRaisesRegex(TypeError, 'must be a string'):
        form(jnp.sin, 3)

  @red('^AssertionError: TypeError not raised', bases='<0.11.1')
  def test_function_in_place_of_the_type(self):
    if context_form in FORMS:
      with self.assertRaisesRegex(
          TypeError, r"must be a string.*compute_on\('device_host'\)\(f\)"):
        compute_on_lib.compute_on(jnp.sin)(self.x)
    else:
      # The function alone is the functional form's first argument.
      with self.assertRaisesRegex(TypeError, 'compute_on.*compute_type'):
        compute_on_lib.compute_on(jnp.sin)

  def test_unknown_compute_type_in_a_with_statement(self):
    if context_form in FORMS:
      with self.assertRaisesRegex(ValueError, 'Invalid compute type'):
        with compute_on_lib.compute_on('host'):
          pass

  def test_valid_types(self):
    for form in FORMS:
      for compute_type in ('device_host', 'device', 'tpu_sparsecore',
                           'gpu_stream:1'):
        self.assertTrue(callable(form(jnp.sin, compute_type)))

  @red('^AssertionError: .*does not match .Nesting `compute_on` with '
       'different compute types')
  def test_another_type_within_names_both(self):
    for wrap in (lambda f: f, jax.jit):
      inner = REFUSES(wrap(lambda x: x * 2), 'device')
      outer = REFUSES(wrap(lambda x: inner(x) + 1), 'device_host')
      for call in (lambda: outer(self.x), lambda: jax.jit(outer)(self.x)):
        with self.assertRaisesRegex(
            ERROR, r"Nesting `compute_on`.*'device_host'.*'device'"):
          call()

  @red('^AssertionError: "o[^"]+" does not match "Nesting `compute_on` with '
       'different compute types is not', bases='<0.10.1')
  @parameterized.named_parameters(
      ('_of_another', lambda x: context_form(jnp.sin, 'device')(x),
       "outer compute type is 'device_host', inside it came 'device'"),
      ('_of_none', jnp.sin, 'operation that was traced outside'))
  def test_program_of_another_type(self, f, message):
    if jax.__version_info__ >= (0, 10, 1):
      self.skipTest('this release evaluates it at the type that it was made at')
    closed = jax.make_jaxpr(f)(self.x)
    outer = context_form(
        lambda x: jax.extend.core.jaxpr_as_fun(closed)(x)[0], 'device_host')
    with self.assertRaisesRegex(NotImplementedError, message):
      outer(self.x)

  def test_another_type_after_an_error(self):
    inner = REFUSES(lambda x: x * 2, 'device')
    outer = REFUSES(lambda x: inner(x) + 1, 'device_host')
    with self.assertRaises(ERROR):
      jax.jit(outer)(self.x)
    self.assertIn('_xla_compute_type', jax.jit(inner).lower(self.x).as_text())
    if REFUSES in FORMS:
      self.assertArraysEqual(jax.jit(inner)(self.x), self.x * 2)

  # The functional form refuses its own type too.
  @red(NESTED_TYPES, bases='>=0.10.2')
  def test_one_type_within_itself(self):
    for form in FORMS:
      for wrap in (lambda f: f, jax.jit):
        inner = form(wrap(lambda x: jnp.sin(x)))
        outer = form(wrap(lambda x: inner(x) * 2))
        self.assertAllClose(outer(self.x), np.sin(self.x) * 2)
        self.assertAllClose(jax.jit(outer)(self.x), np.sin(self.x) * 2)
        self.assertAllClose(form(inner)(self.x), np.sin(self.x))
        text = jax.jit(outer).lower(self.x).as_text()
        self.assertIn('_xla_compute_type = "host"', text)
        grad = jax.grad(lambda x: outer(x).sum())(self.x)
        self.assertAllClose(grad, np.cos(self.x) * 2)

  @red(NESTED_TYPES, bases='>=0.10.2')
  def test_one_type_within_itself_across_a_trace(self):
    # The inner one was traced on its own, so only lowering sees the nesting.
    for form in FORMS:
      closed = jax.make_jaxpr(form(jnp.sin))(self.x)
      outer = form(lambda x: jax.extend.core.jaxpr_as_fun(closed)(x)[0] * 2)
      self.assertAllClose(jax.jit(outer)(self.x), np.sin(self.x) * 2)
