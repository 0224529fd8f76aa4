# SPDX-License-Identifier: Apache-2.0
"""Loops and branches that something else than lax binds, inside shard_map.

checkify, and interpreters of other libraries, evaluate a traced jaxpr again and
bind its loops and branches themselves. These must get the types, the casts and
the refusals that the public functions give them.
"""
import inspect
import sys
import threading
import unittest

import jax
from jax import lax
from jax._src import config
from jax._src import test_util as jtu
from jax.experimental import checkify
import jax.numpy as jnp
import numpy as np
from testing.red import red
from testing.sharding import shard_map
import varying.testing.common as smt
from varying.testing.common import P

config.parse_flags_with_absl()

# What pristine JAX says.
NOT_REFUSED = '^AssertionError: ValueError not raised'
JAXPR_REFUSED = '^JaxprTypeError: .*while checking jaxpr'
UNEQUAL_TYPES = '^TypeError: .*must have equal '


def again(f):
  """Evaluates what ``f`` traces to, as an interpreter of jaxprs does.

  The values that the jaxpr captured and its arguments are what is given now, so
  that types can differ from those at which it was traced.
  """
  def evaluated(*args):
    closed = jax.make_jaxpr(f)(*(np.zeros(x.shape, x.dtype) for x in args))
    values = {}
    read = lambda v: v.val if hasattr(v, 'val') else values[v]
    values.update(zip(closed.jaxpr.constvars, closed.consts))
    values.update(zip(closed.jaxpr.invars, args))
    for eqn in closed.jaxpr.eqns:
      outs = eqn.primitive.bind(*map(read, eqn.invars), **eqn.params)
      outs = outs if eqn.primitive.multiple_results else [outs]
      values.update(zip(eqn.outvars, outs))
    return read(closed.jaxpr.outvars[0])
  return evaluated


def branch(x, w, p):
  return lax.cond(p, lambda x, w: x * w, lambda x, w: x + 1., x, w)


def scan(x, w, p):
  del p
  return lax.scan(lambda c, y: (x * c + y, None), w, np.arange(3.))[0]


def while_loop(x, w, p):
  del p
  return lax.while_loop(lambda c: c < 20., lambda c: c * 2. + x, w)


def trip_count(x, w, p):
  del p
  return lax.while_loop(lambda c: c[0] < x, lambda c: (c[0] + 1., c[1] * w),
                        (np.float32(0.), w))[1]


PROGRAMS = [branch, scan]


def checked_branch(x, w):
  def yes():
    checkify.check(w > 0, 'w is {w}', w=w)
    return x * w
  return lax.cond(jnp.sum(x) > 2., yes, lambda: x)


def checked_switch(x, w):
  n = jnp.sum(x).astype(int) % 3
  return lax.switch(n, [lambda: x / w, lambda: x, lambda: w + 0. * x])


def checked_fori(x, w):
  def body(i, c):
    checkify.check(w > 0, 'w')
    return c * w + x
  return lax.fori_loop(0, 3, body, x)


def checked_while(x, w):
  def body(c):
    checkify.check(c > -1, 'c')
    return c * w + 1. + jnp.sum(x)
  return lax.while_loop(lambda c: c < 20., body, w) + x


def checked_scan(x, w):
  return lax.scan(lambda c, y: (c + jnp.sum(x) * y, c / w), w,
                  jnp.arange(3.))[0] + x


def checked_map(x, w):
  return lax.map(lambda v: v / w + x[0], x)


def checked_vmap(x, w):
  return jax.vmap(lambda v: lax.cond(v > 1., lambda: v / w, lambda: w))(x)


CHECKED = [checked_branch, checked_switch, checked_fori, checked_while,
           checked_scan, checked_map, checked_vmap]


def run(f, sizes, jit, x, w):
  spec = P(('x', 'y')[:len(sizes)])
  g = shard_map(f, mesh=smt.make_mesh(*sizes), in_specs=(spec, P()),
                out_specs=spec)
  return smt.maybe_jit(jit)(g)(x, w)


CHECK = ('check_vma' if 'check_vma' in inspect.signature(shard_map).parameters
         else 'check_rep')
X = np.arange(8., dtype=np.float32) / 2
W = np.float32(2.)


def per_device(f, x=X, w=W):
  """The oracle: each block by itself, on one device."""
  f = jax.jit(f)
  return np.concatenate([f(b, w) for b in np.split(x, 4)])


def gradients(f):
  return jax.grad(lambda x, w: jnp.sum(f(x, w) ** 2), argnums=(0, 1))


def on_scalars(f):
  """``f`` of a device's own number, a shared one and its own predicate."""
  return lambda x, w: f(x[0], w, x[0] > 2.)[None]


class InterpretersTest(jtu.JaxTestCase):

  @red(JAXPR_REFUSED)
  @jtu.sample_product(f=PROGRAMS, mesh=['1d', '2d'], jit=[False, True])
  def test_evaluated_again(self, f, mesh, jit):
    out = run(on_scalars(again(f)), smt.MESHES[mesh], jit, X, W)
    self.assertAllClose(np.asarray(out), per_device(on_scalars(f)), rtol=1e-5)

  @jtu.sample_product(f=[while_loop, trip_count], mesh=['1d', '2d'])
  def test_while_loop(self, f, mesh):
    out = run(on_scalars(again(f)), smt.MESHES[mesh], True, X, W)
    self.assertAllClose(np.asarray(out), per_device(on_scalars(f)), rtol=1e-5)

  @red(JAXPR_REFUSED)
  @jtu.sample_product(f=[branch, scan], mesh=['1d', '2d'])
  def test_gradient_of_evaluated_again(self, f, mesh):
    def g(x, w):
      out = run(on_scalars(again(f)), smt.MESHES[mesh], True, x, w)
      return jnp.sum(out ** 2)
    got = jax.jit(jax.grad(g, argnums=(0, 1)))(X, W)
    one = jax.jit(gradients(on_scalars(f)))
    blocks = [one(b, W) for b in np.split(X, 4)]
    want = np.concatenate([b[0] for b in blocks]), sum(b[1] for b in blocks)
    self.assertAllClose(got, want, rtol=1e-4, check_dtypes=False)

  @red(NOT_REFUSED)
  @jtu.sample_product(f=[while_loop, trip_count])
  def test_claim_of_replication(self, f):
    g = shard_map(lambda x, w: on_scalars(again(f))(x, w)[0],
                  mesh=smt.make_mesh(4), in_specs=(P('x'), P()), out_specs=P())
    with self.assertRaisesRegex(ValueError, 'require replication'):
      jax.jit(g).trace(X, W)

  @red(NOT_REFUSED)
  def test_divergent_collective(self):
    # Traced under a predicate that is the same everywhere, and then it isn't.
    def f(x, w):
      return lax.cond(w > 2., lambda x: lax.psum(x, 'x'),
                      lambda x: lax.psum(2 * x, 'x'), x)
    def g(x, w):
      closed = jax.make_jaxpr(f)(x, w)
      eqn = next(e for e in closed.jaxpr.eqns if e.primitive.name == 'cond')
      return eqn.primitive.bind((x[0] > 1).astype(np.int32), x,
                                **eqn.params)[0]
    g = shard_map(g, mesh=smt.make_mesh(4), in_specs=(P('x'), P()),
                  out_specs=P())
    with self.assertRaisesRegex(ValueError, 'psum over mesh axis .x. at'):
      jax.jit(g).trace(X, W)


class CheckifyTest(jtu.JaxTestCase):

  @red('^ValueError: Scan carry input and output got mismatched varying '
       'manual axes', cases=['checked_fori', 'checked_map'])
  @red('^Exception: The branches of cond produced mismatched varying manual '
       r'axes\. Got \[', cases=['checked_switch', 'checked_branch'])
  @red(UNEQUAL_TYPES)
  @jtu.sample_product(f=CHECKED, mesh=['1d', '2d'], jit=[False, True])
  def test_values(self, f, mesh, jit):
    def checked(x, w):
      _, out = checkify.checkify(f, errors=checkify.all_checks)(x, w)
      return out
    out = run(checked, smt.MESHES[mesh], jit, X, W)
    want = per_device(lambda x, w: checkify.checkify(
        f, errors=checkify.all_checks)(x, w)[1])
    self.assertAllClose(np.asarray(out), want, rtol=1e-5)

  @jtu.sample_product(f=[checked_branch, checked_fori])
  def test_failing_check(self, f):
    self.check_failure(f)

  @red(UNEQUAL_TYPES)
  def test_failing_check_in_while(self):
    self.check_failure(checked_while)

  def check_failure(self, f):
    # Each device has an error of its own, or none.
    def failed(x, w):
      err, _ = checkify.checkify(f)(x, w)
      return jnp.stack([v for v in jax.tree.leaves(err)
                        if v.dtype == bool][:1]).any()[None]
    w = np.float32(-2.)
    out = run(failed, (4,), True, X, w)
    self.assertAllClose(np.asarray(out), per_device(failed, w=w))


class StackTest(jtu.JaxTestCase):
  """A nest can be as deep as pristine's: none of our frames is between."""

  @jtu.sample_product(kind=['scan', 'cond', 'while'], check=[False, True],
                      grad=[False, True])
  def test_frames(self, kind, check, grad):
    if kind == 'while' and grad:
      raise unittest.SkipTest('a while_loop has no reverse derivative')
    deepest = []

    @jax.custom_jvp
    def leaf(x):
      look(False)
      return jnp.sin(x)

    @leaf.defjvp
    def _(primals, tangents):
      look(True)
      return leaf(primals[0]), tangents[0]

    def look(in_rule):
      frame, names = sys._getframe(), []
      while frame is not None:
        path = frame.f_code.co_filename.replace('\\', '/')
        name = frame.f_code.co_name
        # `bound` is there instead of a frame of Primitive's own.
        if '/_src/varying/' in path and not name.startswith('bound'):
          names.append(name)
        frame = frame.f_back
      if in_rule == grad:
        deepest.append(names)

    def nest(level, x):
      if not level:
        return leaf(x)
      if kind == 'scan':
        return lax.scan(lambda c, _: (nest(level - 1, c), None), x, None,
                        length=2)[0]
      if kind == 'cond':
        return lax.cond(jnp.sum(x) > 0, lambda x: nest(level - 1, x),
                        lambda x: x, x)
      return lax.while_loop(lambda c: jnp.sum(c) < 0,
                            lambda c: nest(level - 1, c), x)

    def count(level):
      deepest.clear()
      spec = dict(mesh=smt.make_mesh(4), in_specs=P('x'), out_specs=P('x'))
      f = shard_map(lambda x: nest(level, x), **spec, **{CHECK: check})
      def g(x):
        return jax.grad(lambda x: jnp.sum(f(x)))(x) if grad else f(x)
      jax.clear_caches()
      thread = threading.Thread(target=lambda: jax.jit(g).trace(X))
      thread.start()
      thread.join()
      self.assertNotEmpty(deepest)
      return max(map(len, deepest))

    self.assertEqual(count(6), count(2))
