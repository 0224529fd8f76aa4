# SPDX-License-Identifier: Apache-2.0
"""Axes along which there is one device: no devices diverge there.

A predicate that varies over such an axis is the same on all devices that could
wait for each other. What is expected is computed without a mesh: a reduction
over one device is the identity.
"""
from absl.testing import parameterized
import jax
from jax import lax
from jax._src import config
from jax._src import test_util as jtu
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
import numpy as np
from testing.red import red
from testing.sharding import eight_devices, shard_map

config.parse_flags_with_absl()
eight_devices()

# What pristine JAX says.
MISMATCHED_REPLICATION = ('^Exception: The branches of cond produced '
                          r'mismatched replication types\. Please open an '
                          'issue at')
NO_RULE_FOR_WHILE = (r'^NotImplementedError: No replication rule for while\. '
                     'As a workaround, pass the `check_rep=False` argument')

MESHES = {'alone': (1,), 'beside_others': (1, 4)}
ALONE = [(0, 0)]  # a permutation of one device

# Of a value and the axis, and the same where nobody else is along the axis.
COLLECTIVES = {
    'all_gather': (lambda v, a: lax.all_gather(v, a)[0], lambda v: v),
    'all_to_all': (lambda v, a: lax.all_to_all(v, a, 0, 0, tiled=True),
                   lambda v: v),
    'pmax': (lax.pmax, lambda v: v),
    'ppermute': (lambda v, a: lax.ppermute(v, a, ALONE), lambda v: v),
    'psum': (lax.psum, lambda v: v),
    'psum_scatter': (lambda v, a: lax.psum_scatter(v, a, tiled=True),
                     lambda v: v),
}
X = np.array([3., 1., 2.], np.float32)
W = np.float32(1.5)


def smap(kind, f, out_specs=P('x'), jit=False):
  """``f`` of an x that varies over 'x', of size 1, and of a replicated w."""
  sizes = MESHES[kind]
  devices = np.array(jax.devices()[:np.prod(sizes)]).reshape(sizes)
  mesh = Mesh(devices, ('x', 'y')[:len(sizes)])
  g = shard_map(f, mesh=mesh, in_specs=(P('x'), P()), out_specs=out_specs)
  return jax.jit(g) if jit else g


def plain(f, *args):
  with jax.enable_checks(False):  # jax's own jaxprs
    return f(*args)


EVERYWHERE = dict(kind=sorted(MESHES), jit=[False, True])


class OneDeviceBranchTest(jtu.JaxTestCase):
  """In a branch; stock jax is right."""

  @parameterized.product(**EVERYWHERE, name=sorted(COLLECTIVES))
  def test_collective(self, kind, jit, name):
    over, alone = COLLECTIVES[name]

    def f(x, w, op):
      return lax.cond(x[0] > 2, lambda: x + op(x * w), lambda: x * w)

    g = smap(kind, lambda x, w: f(x, w, lambda v: over(v, 'x')), jit=jit)
    want = plain(lambda x: f(x, W, alone), jnp.asarray(X))
    self.assertAllClose(g(X, W), want)

  @red(MISMATCHED_REPLICATION, bases='<0.6')
  @parameterized.product(**EVERYWHERE, name=['psum', 'all_gather', 'ppermute'])
  def test_gradient(self, kind, jit, name):
    over, alone = COLLECTIVES[name]

    def f(x, w, op):
      return lax.switch((x[0] > 2).astype(int), [
          lambda x: x * w, lambda x: jnp.sin(x) + op(x * w)], x)

    g = smap(kind, lambda x, w: f(x, w, lambda v: over(v, 'x')))
    grad = jax.grad(lambda x, w: jnp.sum(g(x, w) ** 2), (0, 1))
    want = plain(jax.grad(lambda x, w: jnp.sum(f(x, w, alone) ** 2), (0, 1)),
                 jnp.asarray(X), W)
    self.assertAllClose((jax.jit(grad) if jit else grad)(X, W), want,
                        rtol=1e-4)

  @red('^ValueError: unexpected JAX type .* for argument to vjp function: '
       r'got float32\[\], but expected float32', bases='==0.6.0')
  @parameterized.product(**EVERYWHERE)
  def test_gradient_inside(self, kind, jit):
    def f(x, w):
      def by_w(u):
        return jnp.sum(jnp.sin(x * u))
      return x * lax.cond(x[0] > 2, jax.grad(by_w), lambda u: u, w)

    want = plain(f, jnp.asarray(X), jnp.asarray(W))
    self.assertAllClose(smap(kind, f, jit=jit)(X, W), want, rtol=1e-4)

  @red("^ValueError: shard_map applied to the function '<lambda>' was given "
       'out_specs which require replication', bases='<0.6')
  @parameterized.product(**EVERYWHERE)
  def test_result_stays_replicated(self, kind, jit):
    f = lambda x, w: lax.cond(x[0] > 2, lambda: w * 2, lambda: w)
    self.assertAllClose(smap(kind, f, P(), jit)(X, W), 2 * W)


@red(NO_RULE_FOR_WHILE, bases='<0.6')
class OneDeviceLoopTest(jtu.JaxTestCase):
  """In a loop."""

  @parameterized.product(**EVERYWHERE, name=sorted(COLLECTIVES))
  def test_collective(self, kind, jit, name):
    over, alone = COLLECTIVES[name]

    def f(x, op):
      return lax.while_loop(lambda c: c[0] < 9 * x[0],
                            lambda c: c + op(c) + x, x * 0.)

    g = smap(kind, lambda x, w: f(x, lambda v: over(v, 'x')), jit=jit)
    self.assertAllClose(g(X, W), plain(lambda x: f(x, alone), jnp.asarray(X)))

  @parameterized.product(**EVERYWHERE)
  def test_count_stays_replicated(self, kind, jit):
    def f(x, w):
      return lax.while_loop(lambda c: c[0] < x[0],
                            lambda c: (c[0] + 1, c[1] * w), (0., w))

    count, power = smap(kind, f, P(), jit)(X, W)
    self.assertAllClose(count, 3., check_dtypes=False)
    self.assertAllClose(power, W ** 4, rtol=1e-5)

  @parameterized.product(**EVERYWHERE)
  def test_traced_bound(self, kind, jit):
    def f(x, w):
      return lax.fori_loop(0, x[0].astype(int),
                           lambda i, c: c + lax.psum(w * i, 'x'), w)

    self.assertAllClose(smap(kind, f, P(), jit)(X, W), 4 * W)

  @red(MISMATCHED_REPLICATION, bases='<0.6')
  @parameterized.product(**EVERYWHERE)
  def test_branch_in_a_loop(self, kind, jit):
    def f(x, op):
      body = lambda c, t: (
          lax.cond(c[0] > t, lambda c: c + op(c), lambda c: c * 2, c), None)
      return lax.scan(body, x, np.arange(0., 12., 4., np.float32))[0]

    g = smap(kind, lambda x, w: f(x, lambda v: lax.psum(v, 'x')), jit=jit)
    grad = jax.grad(lambda x: jnp.sum(g(x, W) ** 2))
    alone = lambda x: f(x, lambda v: v)
    self.assertAllClose(g(X, W), plain(alone, jnp.asarray(X)))
    self.assertAllClose(
        (jax.jit(grad) if jit else grad)(X),
        plain(jax.grad(lambda x: jnp.sum(alone(x) ** 2)), jnp.asarray(X)))


@red(NO_RULE_FOR_WHILE, bases='<0.6')
@red('^AssertionError: ValueError not raised', bases='>=0.6')
class ManyDevicesTest(jtu.JaxTestCase):
  """A function over one device and over a mesh where devices diverge."""

  @parameterized.product(first=[0, 1], jit=[False, True])
  def test_refused_whatever_was_traced_before(self, first, jit):
    loop = lambda x: lax.while_loop(lambda c: c[0] < x[0],
                                    lambda c: c + lax.psum(c, 'x') + 1, x * 0)
    f = jax.jit(loop) if jit else loop

    def run(sizes):
      devices = np.array(jax.devices()[:np.prod(sizes)]).reshape(sizes)
      g = shard_map(f, mesh=Mesh(devices, ('x', 'y')), in_specs=P('x'),
                    out_specs=P('x'))
      return jax.make_jaxpr(g)(np.arange(4, dtype=np.float32))

    for sizes in ((1, 2), (2, 1))[::1 - 2 * first]:
      if sizes[0] == 1:
        run(sizes)
      else:
        with self.assertRaisesRegex(ValueError, 'predicate.*varies over'):
          run(sizes)

  def test_varying_count_is_refused(self):
    f = lambda x: lax.while_loop(lambda c: c < x[0], lambda c: c + 1, 0.)
    for sizes in (1, 2, 1):
      mesh = Mesh(np.array(jax.devices()[:sizes]), ('x',))
      g = shard_map(f, mesh=mesh, in_specs=P('x'), out_specs=P())
      if sizes == 1:
        self.assertEqual(g(X), 3.)
      else:
        with self.assertRaisesRegex(ValueError, 'out_specs'):
          jax.make_jaxpr(g)(np.arange(2, dtype=np.float32))
