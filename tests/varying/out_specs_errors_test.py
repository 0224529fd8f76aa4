# SPDX-License-Identifier: Apache-2.0
"""The error about outputs that can't be shown to be replicated says why."""
import inspect
import re

from absl.testing import parameterized
import jax
from jax import lax
from jax._src import config
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
import numpy as np
from testing.oracle import MeshTestCase
from testing.red import red
from testing.sharding import eight_devices, shard_map

config.parse_flags_with_absl()
eight_devices()

# What pristine JAX says.
OTHER_REFUSAL = '^AssertionError: .*require replication'


def cast(x, axis):
  if hasattr(lax, 'pcast'):
    return lax.pcast(x, axis, to='varying')
  return lax.pvary(x, axis)


# Functions of x, which varies over 'x', and of a replicated w. The line that
# should be named ends in a comment `# here`.


def argument(x, w):
  y = w * 2.
  return {'loss': jnp.sum(x) + y}  # here


def index(x, w):
  del x
  i = lax.axis_index('x')  # here
  return w * i.astype(w.dtype)


def predicate(x, w):
  go_on = lambda c: c < x[0]  # here
  return lax.while_loop(go_on, lambda c: c + w, 0.)


def branch(x, w):
  return lax.cond(
      jnp.sum(x) > 2., lambda: w, lambda: w * 2.)  # here


def nested(x, w):
  del x
  def body(i, d):
    @jax.jit
    def inner(d):
      return d * .5 + lax.axis_index('x').astype(w.dtype)  # here
    return inner(d)
  return lax.scan(
      lambda c, _: (lax.fori_loop(0, 2, body, c), None), w, None, length=2)[0]


def casts_only(x, w):
  del x
  return w + cast(w, 'x')  # here


CASES = {
    argument: r"result\['loss'\] varies over 'x' because of the argument x, "
              r"whose in_spec is .*'x'.*, used at ",
    index: r"result varies over 'x' because of axis_index at ",
    predicate: r"result varies over 'x' because of the argument x, .*through "
               r"the predicate of the lax.while_loop at ",
    branch: r"result varies over 'x' because of the argument x, .*through the "
            r"predicate of the lax.cond or lax.switch at ",
    nested: r"result varies over 'x' because of axis_index at ",
    casts_only: r"result varies over 'x' because of the cast \(pcast, pvary\) "
                r"at ",
}


def line(f):
  """The source line of f that is marked."""
  lines, start = inspect.getsourcelines(f)
  n, = [n for n, text in enumerate(lines) if text.endswith('# here\n')]
  return start + n


class OutSpecsErrorsTest(MeshTestCase):

  def setUp(self):
    super().setUp()
    self.x, self.w = jnp.array([1., 2., 3., 4.]), jnp.float32(2.)

  def message(self, f, mesh='2d', how='jit', out_specs=P()):
    devices = np.array(jax.devices()[:4])
    mesh = (Mesh(devices[:2], ('x',)) if mesh == '1d' else
            Mesh(devices.reshape(2, 2), ('x', 'y')))
    g = shard_map(f, mesh=mesh, in_specs=(P('x'), P()), out_specs=out_specs)
    with self.assertRaises(ValueError) as caught:
      (jax.jit(g) if how == 'jit' else g)(self.x, self.w)
    return str(caught.exception)

  # Eagerly, 0.6.0's jaxlib crashes on nested loops that use the device's index.
  @red('^TypeError: scan body function carry input and carry output must '
       'have equal types, but they', cases=['nested'])
  @red('^AssertionError: ValueError not raised', cases=['predicate', 'branch'])
  @red(OTHER_REFUSAL)
  @parameterized.parameters(
      *[(f, 'jit') for f in CASES],
      *[(f, 'eager') for f in CASES if f is not nested])
  def test_names_output_axis_and_origin(self, f, how):
    message = self.message(f, how=how)
    self.assertRegex(message, CASES[f])
    self.assertRegex(message, f'out_specs_errors_test.py:{line(f)}')
    self.assertRegex(message, 'jax.lax.psum, jax.lax.pmean')
    # What upstream says comes first.
    self.assertRegex(message, f"^shard_map applied to the function "
                     f"'{f.__name__}' was given out_specs which require "
                     "replication")

  @red(OTHER_REFUSAL)
  @parameterized.parameters('jit', 'eager')
  def test_on_a_line_of_devices(self, how):
    self.assertRegex(self.message(index, '1d', how), CASES[index])

  @red(r'^AssertionError: \[\] has length of 0, expected 2\.')
  def test_each_output_and_axis(self):
    def f(x, w):
      fine = lax.psum(x, 'x')
      return (fine, w), [jnp.sum(x) + lax.axis_index('y').astype(x.dtype)], w
    message = self.message(f)
    self.assertLen(re.findall(r'\* result', message), 2)
    self.assertRegex(message, r"result\[1\]\[0\] varies over 'x' because of "
                     'the argument x')
    self.assertRegex(message, r"result\[1\]\[0\] varies over 'y' because of "
                     'axis_index')

  @red(OTHER_REFUSAL)
  def test_only_axes_that_the_spec_leaves_out(self):
    f = lambda x, w: x * lax.axis_index('y').astype(x.dtype)
    message = self.message(f, out_specs=P('x'))
    self.assertRegex(message, "varies over 'y' because of axis_index")
    self.assertNotIn("varies over 'x'", message)

  def test_guard_a_good_program_is_traced_once(self):
    calls = []
    def f(x, w):
      calls.append(1)
      return lax.psum(x, 'x') * w
    mesh = Mesh(np.array(jax.devices()[:2]), ('x',))
    g = shard_map(f, mesh=mesh, in_specs=(P('x'), P()), out_specs=P())
    self.assertAllClose(jax.jit(g)(self.x, self.w), jnp.array([8., 12.]))
    self.assertLen(calls, 1)

  @parameterized.parameters('jit', 'eager')
  def test_guard_a_bad_program_is_refused(self, how):
    self.assertRegex(self.message(argument, how=how), 'require replication')

  def test_guard_a_function_that_runs_once(self):
    # Outside of jit the function is traced to explain; it may refuse.
    calls = []
    def f(x, w):
      calls.append(1)
      if len(calls) > 1:
        raise NotImplementedError
      return x
    self.assertRegex(self.message(f, how='eager'), 'require replication')
