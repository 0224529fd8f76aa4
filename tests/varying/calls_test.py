# SPDX-License-Identifier: Apache-2.0
"""Predicates that are passed to functions, in every way of calling one.

Of a value that all devices have, a branch by it is right whatever it holds. Of
one of each device's own, a branch with a collective is refused, and what is
chosen can't be given out as the same. The oracle is each device's program on
one device.
"""
import os
import subprocess
import sys
import threading

from absl.testing import parameterized
import jax
from jax import lax
from jax._src import test_util as jtu
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
from testing.red import red
from testing.sharding import partly_manual
from testing.sharding import shard_map
from varying.testing import calls
from varying.testing.common import make_mesh

jax.config.parse_flags_with_absl()

X = np.float32([.5, 1.5, 2.5, 3.5])
W = np.float32(.7)
NOT_REFUSED = '^AssertionError: ValueError not raised'
# In place of a wrong number, where JAX's types would be narrower.
IN_DOUBT = 'the predicate of a branch or loop .* is the same on all devices'

# A predicate that differs, as if it agreed.
COMPARED = """
import jax
from varying import calls_test as t
jax.config.update('jax_check_agreement', True)
jax.config.update('jax_allow_divergent_collectives', True)
f = t.over_devices(lambda w, x: t.communicate(x, w, x)[None])
jax.block_until_ready(jax.jit(f)(t.W, t.X))
"""


def choose(p, w, x):
  del x
  return lax.cond(p > 2., lambda w: w * w, lambda w: 3. * w, w)


def communicate(p, w, x):
  return lax.cond(p > 2., lambda w: w * lax.psum(x, 'x'), lambda w: 3. * w, w)


def largest(x):
  return jnp.max(lax.all_gather(x, 'x'))


def one(g, p, w):
  """What g gives on one device."""
  return jnp.where(p > 2., w * (w if g is choose else X.sum()), 3. * w)


def over_devices(f, out_specs=P('x')):
  """The program of each device, of w and its own x."""
  return shard_map(lambda w, x: f(w, x[0]), mesh=make_mesh(4),
                   in_specs=(P(), P('x')), out_specs=out_specs)


# What is right: of a branch by what all devices have, and by their own.
PROGRAMS = {'shared': (choose, largest), 'own': (choose, lambda x: x),
            'collective': (communicate, largest)}
# These have no backward pass.
FORWARD_ONLY = ('in_while', 'with_vmap')


def results(way, *names):
  """The programs with these names, of each device."""
  def f(w, x):
    return jnp.stack([way(PROGRAMS[n][0], PROGRAMS[n][1](x), w, x)
                      for n in names])[None]
  return over_devices(f)


def wanted(w, *names):
  return jnp.stack([jnp.stack([
      one(PROGRAMS[n][0], x if n == 'own' else X.max(), w) for n in names])
                    for x in X])


class CallsTest(jtu.JaxTestCase):

  def refuses(self, way, jit=True):
    """A collective that not all reach, and what differs given out as the same.
    """
    run = jax.make_jaxpr if jit else lambda f: f
    with self.assertRaisesRegex(ValueError, 'psum over mesh axis .x. at'):
      run(over_devices(lambda w, x: way(communicate, x, w, x)[None]))(W, X)
    with self.assertRaisesRegex(ValueError, 'require replication'):
      run(over_devices(lambda w, x: way(choose, x, w, x), P()))(W, X)

  def right_outside(self, way, name=''):
    """Values, and gradients taken outside.

    What a backward pass reads of the forward pass is the same on all devices
    without anybody's knowing it. A collective by that is right, or refused.
    """
    self.assertAllClose(jax.jit(results(way, *PROGRAMS))(W, X),
                        wanted(W, *PROGRAMS), rtol=1e-5)
    if name in FORWARD_ONLY:
      return
    for names in ['shared', 'own'], ['collective']:
      weights = jnp.arange(1., 1. + 4 * len(names)).reshape(4, -1)
      try:
        got = jax.jit(jax.grad(
            lambda w: jnp.sum(weights * results(way, *names)(w, X))))(W)
      except ValueError as e:
        self.assertEqual(names, ['collective'], e)
        self.assertRegex(str(e), 'psum over mesh axis .x. at')
        self.assertStartsWith(name, 'checkpointed')
      else:
        want = jax.grad(lambda w: jnp.sum(weights * wanted(w, *names)))(W)
        self.assertAllClose(got, want, rtol=1e-5)

  def right_inside(self, way):
    """Gradients taken inside: right, or refused for a predicate in doubt."""
    def gradient(g, p_of):
      return jax.jit(over_devices(lambda w, x: jax.grad(
          lambda w: way(g, p_of(x), w, x))(w)[None]))(W, X)

    for g in choose, communicate:
      want = jax.grad(lambda w, g=g: one(g, X.max(), w))(W)
      try:
        got = gradient(g, largest)
      except ValueError as e:
        self.assertRegex(str(e), IN_DOUBT)
      else:
        self.assertAllClose(got, np.full(4, want), rtol=1e-5)
    got = gradient(choose, lambda x: x)
    want = sum(jax.grad(lambda w, x=x: one(choose, x, w))(W) for x in X)
    self.assertAllClose(got, np.full(4, want), rtol=1e-5)

  @red(NOT_REFUSED)
  @parameterized.product(way=list(calls.WAYS))
  def test_way(self, way):
    self.refuses(calls.WAYS[way])
    self.right_outside(calls.WAYS[way], way)
    if way not in FORWARD_ONLY:
      self.right_inside(calls.WAYS[way])

  @red(NOT_REFUSED)
  @parameterized.product(
      outer=['keyword', 'static_first', 'checkpointed', 'scanned', 'carried',
             'in_while', 'operand_of_cond', 'with_vjp_by_name', 'captured'],
      inner=['keyword', 'static_by_name', 'scanned', 'carried', 'with_jvp',
             'captured'])
  def test_nested(self, outer, inner):
    way = calls.nested(outer, inner)
    self.refuses(way)
    self.assertAllClose(jax.jit(results(way, *PROGRAMS))(W, X),
                        wanted(W, *PROGRAMS), rtol=1e-5)

  @red(NOT_REFUSED)
  @parameterized.parameters(
      ('static_first', 'scanned', 'checkpointed_static', 'carried',
       'with_vjp_by_name', 'keyword'),
      ('carried_beside_captured',) * 6)
  def test_nested_six_deep(self, *names):
    way = calls.nested(*names)
    self.refuses(way)
    self.assertAllClose(jax.jit(results(way, *PROGRAMS))(W, X),
                        wanted(W, *PROGRAMS), rtol=1e-5)

  @red(NOT_REFUSED)
  def test_traced_for_another_value(self):
    way = calls.converted_for_another
    with self.assertRaisesRegex(ValueError, 'psum over|that was traced for'):
      jax.make_jaxpr(over_devices(
          lambda w, x: way(communicate, x, w, x)[None]))(W, X)
    with self.assertRaisesRegex(
        ValueError, 'require replication|that was traced for'):
      jax.make_jaxpr(over_devices(
          lambda w, x: way(choose, x, w, x), P()))(W, X)

  @red(NOT_REFUSED)
  @parameterized.parameters('eager', 'keyword', 'static_first', 'scanned',
                            'carried', 'with_jvp_by_name', 'with_vjp_by_name')
  def test_without_jit(self, way):
    way = calls.WAYS[way]
    self.refuses(way)
    self.refuses(way, jit=False)
    self.assertAllClose(results(way, *PROGRAMS)(W, X), wanted(W, *PROGRAMS),
                        rtol=1e-5)

  @red(NOT_REFUSED)
  def test_one_function_called_twice(self):
    f = jax.jit(communicate)
    both = lambda w, x: f(largest(x), w, x) + f(x, w, x)
    with self.assertRaisesRegex(ValueError, 'psum over mesh axis .x. at'):
      jax.make_jaxpr(over_devices(lambda w, x: both(w, x)[None]))(W, X)
    got = jax.jit(over_devices(lambda w, x: f(largest(x), w, x)[None]))(W, X)
    self.assertAllClose(got, np.full(4, one(communicate, X.max(), W)))
    # Of a mapped index all branches run, and nothing has to agree.
    for f in (jax.jit(communicate), communicate):
      mapped = jax.jit(jax.vmap(f, (0, None, None)))
      got = jax.jit(over_devices(lambda w, x, mapped=mapped: mapped(
          jnp.stack([x, 3. * x]), w, x)[None]))(W, X)
      self.assertAllClose(got, np.stack(
          [one(communicate, X, W), one(communicate, 3. * X, W)], 1))

  @red(NOT_REFUSED)
  def test_after_an_exception(self):
    def fails(p, w, x):
      communicate(p, w, x)
      raise TypeError('of the user')
    with self.assertRaisesRegex(TypeError, 'of the user'):
      jax.make_jaxpr(over_devices(
          lambda w, x: jax.jit(fails)(largest(x), w, x)[None]))(W, X)
    self.refuses(calls.positional)
    self.right_outside(calls.positional)

  @red(NOT_REFUSED)
  @parameterized.parameters(False, True)
  def test_pullback_whose_residuals_are_changed(self, jitted):
    """A rule's residual agreed; what its holder makes of it doesn't."""
    rule = jax.custom_vjp(lambda p, w: w * p)
    rule.defvjp(lambda p, w: (w * p, p), lambda p, ct: (0. * ct, lax.cond(
        p > 2., lambda c: lax.psum(c, 'x'), lambda c: 3. * lax.psum(c, 'x'),
        ct)))
    call = jax.jit(lambda f, ct: f(ct)) if jitted else lambda f, ct: f(ct)
    def gradient(change, w, x):
      pull = jax.vjp(lambda w: rule(largest(x), w), w)[1]
      pull = jax.tree.map(lambda a: change(a, x), pull)
      return call(pull, 1. + 0. * x)[0][None]
    for f in jax.make_jaxpr, lambda f: f:
      with self.assertRaisesRegex(ValueError, 'psum over|that was traced for'):
        f(over_devices(lambda w, x: gradient(lambda a, x: a - x, w, x)))(W, X)
    got = jax.jit(over_devices(
        lambda w, x: gradient(lambda a, x: a, w, x)))(W, X)
    self.assertAllClose(got, np.full(4, 4.))

  def test_pullback_called_outside(self):
    """There, too, a rule is given what its forward rule kept."""
    rule = jax.custom_vjp(lambda p, w: 2. * w)
    rule.defvjp(lambda p, w: (2. * w, p),
                lambda p, ct: (None, ct * (2. + p.ndim)))
    pulls = over_devices(lambda w, x: jax.tree.map(
        lambda a: a[None], jax.vjp(lambda w: rule(largest(x), w), w)[1]))(W, X)
    got = jax.vmap(lambda pull: pull(jnp.float32(1.))[0])(pulls)
    self.assertAllClose(got, np.full(4, 2., np.float32))

  @red('^AttributeError: .*jax_check_agreement')
  def test_what_is_taken_to_agree_is_compared(self):
    self.assertIsInstance(jax.config.jax_check_agreement, bool)
    if jax.config.jax_check_agreement:  # before 0.10 it is off, and XLA aborts
      # Nothing is compared where an axis is automatic.
      f = shard_map(lambda w, x: jax.jit(communicate)(largest(x[0]), w, x[0])[
          None], mesh=make_mesh(2, 2), in_specs=(P(), P('x')), out_specs=P('x'),
                    **partly_manual('y', of='xy'))
      self.assertAllClose(jax.jit(f)(W, X[2:]), np.full(2, W * X[2:].sum()))
    # In a process of its own: what has failed stays with the devices.
    done = subprocess.run(
        [sys.executable, '-c', COMPARED], capture_output=True, text=True,
        env={**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)},
        check=False)
    self.assertNotEqual(done.returncode, 0)
    self.assertRegex(
        done.stderr, r'jax_check_agreement: the predicate at .*calls_test.py')

  @red('^AttributeError: .*jax_allow_divergent_collectives')
  def test_option_admits_collectives_alone(self):
    """Not a gradient that JAX's types make another number."""
    before = jax.config.jax_allow_divergent_collectives
    jax.config.update('jax_allow_divergent_collectives', True)
    self.addCleanup(
        jax.config.update, 'jax_allow_divergent_collectives', before)
    gradient = lambda w, x: jax.grad(
        lambda w: jax.jit(choose)(largest(x), w, x))(w)[None]
    with self.assertRaisesRegex(ValueError, IN_DOUBT):
      jax.make_jaxpr(over_devices(gradient))(W, X)

  @red(NOT_REFUSED)
  def test_two_threads(self):
    self.refuses(calls.scanned)
    failed = []
    def trace():
      for name in ('positional', 'scanned', 'carried', 'checkpointed') * 2:
        try:
          jax.make_jaxpr(results(calls.WAYS[name], *PROGRAMS))(W, X)
        except Exception as e:  # pylint: disable=broad-except
          failed.append(e)
    threads = [threading.Thread(target=trace) for _ in range(4)]
    for t in threads:
      t.start()
    for t in threads:
      t.join()
    self.assertEmpty(failed)
