# SPDX-License-Identifier: Apache-2.0
"""Values that are reduced over a mesh axis, in branches and loops."""
from absl.testing import parameterized
import jax
from jax import lax
from jax._src import config
from jax._src import test_util as jtu
import jax.numpy as jnp
import numpy as np
from testing.red import red
from testing.sharding import shard_map
from varying.testing import common
from varying.testing.common import P

config.parse_flags_with_absl()

# What pristine JAX says.
MISMATCHED_AXES = ('^Exception: The branches of cond produced mismatched '
                   'varying manual axes')
OTHER_COTANGENT_TYPE = '^ValueError: Expected cotangent type'
UNEQUAL_BRANCHES = '^TypeError: cond branches must have equal output types'

W = np.array([1., -2., .5], np.float32)
X = np.linspace(-1., 1., 12, dtype=np.float32).reshape(4, 3)
OUT = np.array([3., 1., -1.], np.float32)


def repeat(f, x, n=2):
  return lax.scan(lambda c, _: (f(c), None), x, None, length=n)[0]


def once_saved(w, x):
  f = jax.checkpoint(lambda w, x: jnp.sin((x @ w) * x),
                     policy=jax.checkpoint_policies.dots_saveable)
  return f(w, x)


# Of what is reduced and what varies.
PARTING = {
    'one': lambda w, x: lax.cond(x[0] > 0, lambda: x * w, lambda: x),
    'both': lambda w, x: lax.cond(x[0] > 0, lambda: x * w, lambda: x + x * w),
    'argument': lambda w, x: lax.cond(
        x[0] > 0, lambda w, x: x * (x @ w), lambda w, x: jnp.sin(x), w, x),
    'switch': lambda w, x: lax.switch(
        (x[0] > 0).astype(np.int32),
        [lambda: x, lambda: x * jnp.sin(w)]),
    'by_hand': lambda w, x: lax.cond(
        x[0] > 0, lambda: x * varying(w), lambda: x),
    'returned': lambda w, x: lax.cond(x[0] > 0, lambda: w, lambda: x) * x,
    'either': lambda w, x: lax.cond(
        x[0] > 0, lambda: w, lambda: jnp.sin(w)) * x,
    'scan_inside': lambda w, x: lax.cond(
        x[0] > 0, lambda: repeat(lambda c: c * w, x), lambda: x),
    'inside_scan': lambda w, x: repeat(
        lambda c: lax.cond(c[0] > 0, lambda: c * w - 1., lambda: c + 1.), x),
    'remat_inside': lambda w, x: lax.cond(
        x[0] > 0, jax.checkpoint(lambda x: jnp.sin(x * w)), lambda x: x, x),
}
WHILE = {
    'loop': lambda w, x: lax.while_loop(
        lambda c: c[0] < jnp.where(x[0] > 0, 2, 1),
        lambda c: (c[0] + 1, c[1] * w), (0, x))[1],
    'carried': lambda w, x: lax.while_loop(
        lambda c: c[0] < jnp.where(x[0] > 0, 2, 1),
        lambda c: (c[0] + 1, c[1], c[2] * c[1]), (0, w, x))[2],
}
TOGETHER = {
    'scan': lambda w, x: repeat(lambda c: jnp.sin(c * w), x),
    'scan_carry': lambda w, x: lax.scan(
        lambda c, _: ((c[0], c[0] * c[1]), None), (w, x), None, length=2)[0][1],
    'scan_xs': lambda w, x: lax.scan(
        lambda c, t: (jnp.sin(c * t), None), x, w)[0],
    'scan_remat': lambda w, x: repeat(
        jax.checkpoint(lambda c: jnp.sin(c * w)), x),
    'fori': lambda w, x: lax.fori_loop(0, 3, lambda i, c: c * w, x),
    'map': lambda w, x: lax.map(lambda t: t * w, jnp.stack([x, 2. * x])).sum(0),
    'remat': lambda w, x: jax.checkpoint(lambda x: jnp.sin(x * w))(x),
    'remat_saved': once_saved,
    'branch': lambda w, x: lax.cond(
        jnp.float32(3.) > 2., lambda w: x * w, lambda w: x, w),
}


def varying(w):
  """A cast by hand; of the oracle's, which varies nowhere, none."""
  aval = jax.typeof(w)
  axes = tuple(aval.mat.reduced)
  return lax.pcast(w, axes, to='varying') if axes else w


def part(f, axes):
  """The part of a device of what ``f`` gives, of a weight that is reduced."""
  def body(w, x):
    x, = x
    n = lax.axis_index(axes).astype(np.float32)
    return f(lax.pcast(w, axes, to='reduced'), x * (1. + n))
  return body


def oracle(f, w, x):
  return sum(f(w, row * (1. + n)) for n, row in enumerate(x))


def sharded(f, axes):
  mesh = common.make_mesh(4) if axes == ('x',) else common.make_mesh(2, 2)
  return lambda *args: shard_map(
      f, mesh=mesh, in_specs=(P(), P(axes)), out_specs=P())(*args)


class ReducedTest(jtu.JaxTestCase):

  def check_value(self, f, axes):
    body = part(f, axes)
    g = sharded(lambda w, x: lax.psum(body(w, x), axes), axes)
    self.assertAllClose(np.asarray(jax.jit(g)(W, X)),
                        np.asarray(oracle(f, W, X)), rtol=1e-5)

  def check_gradient(self, f, axes):
    body = part(f, axes)
    # By the reduced weight, within; and by what is outside.
    def inside(w, x):
      loss = lambda w: jnp.sum(OUT * lax.psum(body(w, x), axes))
      return jax.grad(loss)(w)
    def outside(w, x):
      g = sharded(lambda w, x: lax.psum(body(w, x), axes), axes)
      return jnp.sum(OUT * g(w, x))
    want = jax.grad(lambda w, x: jnp.sum(OUT * oracle(f, w, x)), (0, 1))(W, X)
    self.assertAllClose(jax.jit(sharded(inside, axes))(W, X), want[0],
                        rtol=1e-4, atol=1e-5)
    return lambda: self.assertAllClose(
        jax.jit(jax.grad(outside, (0, 1)))(W, X), want, rtol=1e-4, atol=1e-5)

  @red(UNEQUAL_BRANCHES, cases=['returned'])
  @parameterized.product(name=[*PARTING, *WHILE], axes=[('x',)])
  def test_value_where_devices_part(self, name, axes):
    self.check_value({**PARTING, **WHILE}[name], axes)

  @parameterized.product(name=list(TOGETHER), axes=[('x',)])
  def test_value(self, name, axes):
    self.check_value(TOGETHER[name], axes)

  @red(UNEQUAL_BRANCHES, cases=['returned'])
  @red(MISMATCHED_AXES,
       cases=['one', 'argument', 'switch', 'by_hand', 'either', 'remat_inside'])
  @red(OTHER_COTANGENT_TYPE, cases=['scan_inside', 'inside_scan'])
  @parameterized.product(name=list(PARTING), axes=[('x', 'y')])
  def test_gradient_where_devices_part(self, name, axes):
    outside = self.check_gradient(PARTING[name], axes)
    outside()

  @red(MISMATCHED_AXES, cases=['branch'])
  @red('^ShardingTypeError: dynamic_update_slice operand and update must be '
       'unreduced', cases=['scan_xs'])
  @red(OTHER_COTANGENT_TYPE,
       cases=['scan', 'scan_carry', 'scan_remat', 'fori', 'map'])
  @parameterized.product(name=list(TOGETHER), axes=[('x', 'y')])
  def test_gradient(self, name, axes):
    outside = self.check_gradient(TOGETHER[name], axes)
    if 'remat' not in name:
      outside()

  @red(MISMATCHED_AXES)
  def test_no_collective_in_a_branch(self):
    g = sharded(lambda w, x: lax.psum(part(PARTING['one'], ('x',))(w, x), 'x'),
                ('x',))
    jaxpr = jax.make_jaxpr(lambda w: jax.vjp(lambda w: g(w, X), w)[1](OUT))(W)
    sums = [e for e in common.equations(jaxpr.jaxpr)
            if e.primitive.name == 'cond' for b in e.params['branches']
            for e in common.equations(getattr(b, 'jaxpr', b))
            if 'psum' in e.primitive.name]
    self.assertEmpty(sums)
