# SPDX-License-Identifier: Apache-2.0
"""Primitives with constant operands in shard_map with check_rep=True."""
from absl.testing import parameterized
import jax
from jax import lax
from jax._src import test_util as jtu
from jax.experimental.shard_map import shard_map
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
import numpy as np
from testing.red import red
from testing.sharding import eight_devices
from testing.sharding import smap
from varying.testing.common import ships

jax.config.parse_flags_with_absl()
eight_devices()


@red(r"^TypeError: 'NoneType' object is not iterable, raised by shard_map\.")
class ConstantOperandsTest(jtu.JaxTestCase):

  @parameterized.named_parameters(
      ('_jacrev', lambda x: jax.jacrev(lambda y: jnp.sin(y) * y)(x)),
      ('_jacfwd', lambda x: jax.jacfwd(lambda y: jnp.sin(y) * y)(x)),
      ('_hessian', lambda x: jax.hessian(lambda y: jnp.sum(y ** 3))(x)),
      ('_random_bits', lambda x: x + lax.rng_bit_generator(
          jnp.arange(4, dtype='uint32'), (2,))[1].astype(x.dtype) / 2. ** 32),
      ('_split', lambda x: x + lax.split(jnp.arange(4.), (2, 2))[1]),
      ('_sort_pair', lambda x: x * lax.sort((jnp.arange(2.), jnp.ones(2)))[0]),
  )
  def test_same_as_on_one_device(self, f):
    g = smap(P('i'), P('i'))(f)
    x = np.linspace(.5, 2., 4, dtype=np.float32)
    want = np.concatenate([f(jnp.array(p)) for p in np.split(x, 2)])
    for transform in (lambda h: h, jax.jit):
      self.assertAllClose(transform(g)(x), want, rtol=1e-5, atol=1e-6,
                          check_dtypes=False)

  def test_orthogonal_of_a_constant_key(self):
    f = smap(P('i'), P('i'))(
        lambda x: jax.random.orthogonal(jax.random.key(1), 2) @ x)
    x = np.arange(4., dtype=np.float32)
    want = jax.random.orthogonal(jax.random.key(1), 2)
    self.assertAllClose(f(x), np.concatenate([want @ x[:2], want @ x[2:]]),
                        rtol=1e-5, check_dtypes=False)


class VmapTest(jtu.JaxTestCase):

  @red('^Exception: .*requires argument replication types to match')
  def test_vmap_of_a_cond_with_a_batched_predicate(self):
    # It becomes a select between a replicated and a varying value.
    f = smap((P('i'), P(), P()), P('i'))(
        lambda x, w, p: lax.cond(p, lambda: x * w, lambda: x))
    x, w = np.ones((2, 4), np.float32), np.array([2., 3.], np.float32)
    got = jax.jit(jax.vmap(f))(x, w, np.array([True, False]))
    self.assertAllClose(got, np.array([[2.] * 4, [1.] * 4]), check_dtypes=False)


class GuardTest(jtu.JaxTestCase):

  def test_random_orthogonal(self):
    @smap((P('i'), P()), (P('i'), P()))
    def f(x, key):
      q = jax.random.orthogonal(key, 2)
      return q @ x, q
    x, key = np.arange(4., dtype=np.float32), jax.random.key(0)
    y, q = f(x, key)
    want = jax.random.orthogonal(key, 2)
    self.assertAllClose(q, want, rtol=1e-5, check_dtypes=False)
    self.assertAllClose(y, np.concatenate([want @ x[:2], want @ x[2:]]),
                        rtol=1e-5, check_dtypes=False)

  def test_varying_is_not_replicated(self):
    f = smap((P('i'), P()), P())(lambda x, w: x[0] * w)
    with self.assertRaisesRegex(ValueError, 'out_specs'):
      jax.jit(f)(np.ones(2), 1.)

  def test_constant_is_replicated(self):
    f = smap(P('i'), P())(lambda x: jnp.arange(3))
    self.assertArraysEqual(jax.jit(f)(np.ones(2)), np.arange(3))


def product_rule():
  f = jax.custom_vjp(lambda x, w: x * w)
  f.defvjp(lambda x, w: (x * w, (x, w)),
           lambda r, g: (g * r[1], jnp.sum(g * r[0])))
  return f


MEET = {
    'primitive': lambda x, w: x * w,
    'scan': lambda x, w: lax.scan(
        lambda c, _: (c * w, None), x, None, length=2)[0],
    'while': lambda x, w: lax.fori_loop(0, 2, lambda _, c: c * w, x),
    'cond': lambda x, w: lax.cond(x[0] > 0., lambda: x, lambda: x + w),
    'custom_vjp': lambda x, w: product_rule()(x, w),
}


class SpmdAxisTest(jtu.JaxTestCase):

  def run_with(self, f, out_specs):
    # A value that vmap doesn't map would lack the sum over the batch's axis.
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ('i', 'j'))
    g = lambda x, w: shard_map(f, mesh=mesh, in_specs=(P('j'), P()),
                               out_specs=out_specs)(x, w)
    return jax.jit(jax.vmap(g, (0, None), spmd_axis_name='i'))

  @parameterized.parameters(*MEET)
  def test_gradient_has_its_sum_or_is_refused(self, name):
    loss = lambda run: lambda w: jnp.sum(run(np.ones((2, 4), np.float32), w))
    got = lambda: jax.grad(loss(self.run_with(MEET[name], P('j'))))(
        np.float32(2))
    if ships('jax._src.replication.rules.mapped'):
      want = jax.grad(loss(jax.vmap(MEET[name], (0, None))))(np.float32(2))
      self.assertAllClose(got(), want)
    else:
      self.assertRaisesRegex(Exception, 'replication types', got)

  def test_what_does_not_meet_is_right(self):
    f = lambda x, w: (lax.cond(w > 1., jnp.sin, jnp.cos, x), w)
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    loss = lambda run: lambda x, w: sum(jnp.sum(y * y) for y in run(x, w))
    got = jax.grad(loss(self.run_with(f, (P('j'), P()))))(x, np.float32(2))
    want = jax.grad(loss(jax.vmap(f, (0, None))))(x, np.float32(2))
    self.assertAllClose(got, want)
