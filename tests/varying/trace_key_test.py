# SPDX-License-Identifier: Apache-2.0
"""The one entry that Mend's options and states have in tracing caches' keys."""
import contextlib
import functools
import threading

from absl.testing import parameterized
import jax
from jax._src import test_util as jtu
from jax._src.mend import trace_key
from jax._src.varying import casts
from jax._src.varying import context
from jax._src.varying import divergence
from jax._src.varying import types as vt
import jax.numpy as jnp
import numpy as np

jax.config.parse_flags_with_absl()

OPTIONS = [(vt.promote_carries, 'jax_shard_map_promote_carries', False),
           (divergence.allow, 'jax_allow_divergent_collectives', True)]


class Counted:
  """A jitted function that knows how often it was traced."""

  def __init__(self):
    self.times = 0

    @jax.jit
    def inner(x):
      self.times += 1
      return x * 2

    self.calls = [inner, lambda x: jax.jit(lambda x: inner(x))(x)]

  def __call__(self):
    for call in self.calls:  # by the key of jit, and of tracing caches
      np.testing.assert_array_equal(call(jnp.ones(2)), [2, 2])
    return self.times


@contextlib.contextmanager
def of_all_threads(name, value):
  before = getattr(jax.config, name)
  jax.config.update(name, value)
  try:
    yield
  finally:
    jax.config.update(name, before)


class TraceKeyTest(jtu.JaxTestCase):

  def test_there_is_none_until_something_is_set(self):
    self.assertIsNone(trace_key._entry.value)
    self.assertGreater(len(trace_key._parts), 2)

  @parameterized.parameters(*OPTIONS)
  def test_an_option_has_functions_traced_anew(self, option, name, other):
    f = Counted()
    first = f()
    self.assertEqual(f(), first)
    with option(other):
      second = f()
      self.assertEqual(f(), second)
    self.assertGreater(second, first)
    self.assertEqual(f(), second)
    with of_all_threads(name, other):
      self.assertEqual(f(), second)  # kept under the same setting
    with option(not other):  # as it is anyhow
      self.assertEqual(f(), second)
    self.assertIsNone(trace_key._entry.value)

  def test_both_options_are_told_apart(self):
    (a, _, x), (b, _, y) = OPTIONS
    f = Counted()
    seen = [f()]
    for setting in ((a, x),), ((b, y),), ((a, x), (b, y)):
      with contextlib.ExitStack() as stack:
        for option, other in setting:
          stack.enter_context(option(other))
        seen.append(f())
    self.assertEqual(sorted(set(seen)), seen)
    with b(y), a(x):
      self.assertEqual(f(), seen[-1])

  def test_a_state_has_functions_traced_anew(self):
    f = Counted()
    first = f()
    with casts.tracing_again():
      self.assertGreater(f(), first)
      self.assertIsNotNone(trace_key._entry.value)
    self.assertIsNone(trace_key._entry.value)

  def test_a_setting_for_all_threads_counts_after_a_state(self):
    with casts.tracing_again(), vt.predicates_agreeing():
      pass
    (_, name, other), f = OPTIONS[0], Counted()
    first = f()
    with of_all_threads(name, other):
      self.assertGreater(f(), first)

  def test_fields_are_put_back_one_by_one(self):
    keyed = context.keyed
    with vt.predicates_agreeing():
      again = context.swap('traced_again', True)
      self.assertEqual(keyed.value, context.Keyed(
          traced_again=True, predicates_agree=True))
    self.assertEqual(keyed.value, context.Keyed(traced_again=True))
    context.swap('traced_again', again)
    self.assertEqual(keyed.value, context.Keyed())
    self.assertIsNone(trace_key._entry.value)

  def test_what_runs_is_told_by_its_name_and_to_nobody_else(self):
    def f(field, /, function, *, fail=False):  # a caller's own words
      self.assertTrue(getattr(context.running.now, field))
      if fail:
        raise ZeroDivisionError
      return function
    for field in context.Running._fields:
      run = functools.partial(context.run, field, f)
      self.assertEqual(run(field, function=3), 3)
      with self.assertRaises(ZeroDivisionError):
        run(field, function=3, fail=True)
      self.assertEqual(context.running.now, context.Running())
    self.assertIsNone(trace_key._entry.value)

  def test_it_is_put_back_after_an_error(self):
    with self.assertRaises(ZeroDivisionError):
      with OPTIONS[0][0](False), casts.tracing_again():
        _ = 1 / 0
    self.assertIsNone(trace_key._entry.value)

  def test_other_threads_have_their_own(self):
    found = []

    def look():
      found.append(trace_key._entry.value)
    with OPTIONS[0][0](False), casts.tracing_again():
      thread = threading.Thread(target=look)
      thread.start()
      thread.join()
    self.assertEqual(found, [None])
