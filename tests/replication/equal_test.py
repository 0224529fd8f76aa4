# SPDX-License-Identifier: Apache-2.0
"""Values that vary and are equal on all devices: out_specs, predicates."""
from absl.testing import parameterized
import jax
from jax import lax
from jax._src import custom_derivatives
from jax._src import test_util as jtu
from jax.experimental.shard_map import shard_map
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
import numpy as np
from testing.red import red
from testing.sharding import eight_devices

jax.config.parse_flags_with_absl()
eight_devices()

# What pristine JAX says.
NO_RULE = '^NotImplementedError: No replication rule for'

X = np.linspace(.5, 1.5, 8, dtype=np.float32)
W = np.float32(1.25)


def smap(f, in_specs, out_specs, shape=(4,), **kwargs):
  mesh = Mesh(np.array(jax.devices()[:np.prod(shape)]).reshape(shape),
              ('i', 'j')[:len(shape)])
  return shard_map(f, mesh=mesh, in_specs=in_specs, out_specs=out_specs,
                   **kwargs)


def gather(x):
  return lax.all_gather(x, 'i', tiled=True)


def collectives(f, *args):
  """The primitives of the collectives in the jaxpr of f, in order."""
  found = []

  def visit(jaxpr):
    for e in jaxpr.eqns:
      if e.primitive.name in ('all_gather', 'reduce_scatter', 'psum', 'psum2'):
        found.append(e.primitive.name)
      for j in jax._src.core.jaxprs_in_params(e.params):
        visit(j)
  visit(jax.make_jaxpr(f)(*args).jaxpr)
  return found


def in_scan(x, w):
  def body(c, _):
    return w * jnp.cos(gather(c)[:2]), None
  # The carry starts on each device with its own, and ends everywhere the same.
  c, _ = lax.scan(body, gather(x)[:2], None, length=2)
  return c


def in_cond(x, w):
  return lax.cond(w > 1, lambda x: jnp.sin(gather(x)), lambda x: gather(x) * w,
                  x)


def in_remat(x, w):
  return jax.checkpoint(lambda x: jnp.sin(gather(x)) * w)(x)


def in_jit(x, w):
  return jax.jit(lambda x: jnp.sin(gather(jnp.sin(x))) * w)(x)


@jax.custom_jvp
def _jvp(x):
  return jnp.sin(x)


@_jvp.defjvp
def _(primals, tangents):
  return _jvp(*primals), jnp.cos(primals[0]) * tangents[0]


@jax.custom_vjp
def _vjp(x):
  return jnp.sin(x)


_vjp.defvjp(lambda x: (jnp.sin(x), x), lambda x, ct: (jnp.cos(x) * ct,))


# Functions of a device's part of X and of W; the same on all devices.
FUNCTIONS = {
    'itself': lambda x, w: gather(x),
    'stacked': lambda x, w: lax.all_gather(x, 'i').ravel() * w,
    'mixed': lambda x, w: jnp.sin(gather(x * w)) * w + lax.psum(x.sum(), 'i'),
    'pvary': lambda x, w: gather(x) * jnp.sin(w),
    'norm': lambda x, w: w * jnp.linalg.norm(gather(x)),
    'scan': in_scan,
    'cond': in_cond,
    'remat': in_remat,
    'jit': in_jit,
    'custom_jvp': lambda x, w: _jvp(gather(x)) * w,
    'custom_vjp': lambda x, w: _vjp(gather(x) * w),
    'vmap': lambda x, w: jax.vmap(lambda a: gather(a) * w)(
        jnp.stack([x, 2 * x])),
}


@red('^ValueError: .*require replication')
@jtu.with_config(jax_numpy_dtype_promotion='standard')
class GatherTest(jtu.JaxTestCase):

  def check(self, f, shape=(4,), run=jax.jit):
    # Alone on one device, it gathers its own.
    g = smap(f, (P('i'), P()), P(), shape)
    single = smap(f, (P('i'), P()), P(), (1,), check_rep=False)
    self.assertAllClose(run(g)(X, W), jax.jit(single)(X, W), rtol=1e-5)
    loss = lambda h: lambda x, w: jnp.sum(jnp.sin(1.5 * h(x, w)))
    got, want = [run(jax.grad(loss(h), (0, 1)))(X, W) for h in (g, single)]
    self.assertAllClose(got, want, rtol=1e-4, atol=1e-5)
    if f is FUNCTIONS['custom_vjp']:
      return  # forward mode is not defined for it
    tangents = (np.cos(X), np.float32(.5))
    got, want = [jax.jit(lambda x, w, h=h: jax.jvp(h, (x, w), tangents)[1])(
        X, W) for h in (g, single)]
    self.assertAllClose(got, want, rtol=1e-4, atol=1e-5)

  @parameterized.named_parameters(*[(f'_{k}', k) for k in sorted(FUNCTIONS)])
  def test_output(self, name):
    self.check(FUNCTIONS[name])

  @parameterized.named_parameters(*[(f'_{k}', k) for k in ('mixed', 'cond')])
  def test_output_on_two_axes(self, name):
    self.check(FUNCTIONS[name], (2, 2))

  @parameterized.named_parameters(*[(f'_{k}', k) for k in ('mixed', 'jit')])
  def test_eager_output(self, name):
    f = FUNCTIONS[name]
    g = smap(f, (P('i'), P()), P())
    want = smap(f, (P('i'), P()), P(), (1,), check_rep=False)(X, W)
    self.assertAllClose(g(X, W), want, rtol=1e-5)

  def test_both_axes(self):
    x = X.reshape(2, 4)
    f = lambda x: jnp.sin(lax.all_gather(x, ('i', 'j')).sum(0))
    g = jax.jit(smap(f, P('i', 'j'), P(), (2, 2)))
    blocks = np.stack([x[:1, :2], x[:1, 2:], x[1:, :2], x[1:, 2:]])
    self.assertAllClose(g(x), np.sin(blocks.sum(0)), rtol=1e-5)
    self.assertAllClose(
        jax.jit(jax.grad(lambda x: g(x).sum()))(x),
        np.tile(np.cos(blocks.sum(0)), (2, 2)), rtol=1e-5)

  def test_derivative_of_an_adaptive_time_step(self):
    # As in jax#27664, by all_gather, which unlike pmin has a derivative.
    def f(u, w, gather):
      def body(c, _):
        u, t = c
        dt = gather(.3 / (1 + jnp.abs(w * u).max(-1))).min()
        return (u + jnp.minimum(dt, 1 - t) * jnp.sin(w * u), t + dt), None
      return lax.scan(jax.checkpoint(body), (u, 0.), None, length=3)[0]
    g = smap(lambda u, w: f(u, w, lambda a: lax.all_gather(a, ('i', 'j'))),
             (P(('i', 'j')), P()), (P(('i', 'j')), P()), (2, 2))
    single = lambda u, w: f(u.reshape(4, 2), w, lambda a: a)
    loss = lambda h: lambda u, w: (
        lambda o: jnp.sum(jnp.sin(o[0])) + o[1] ** 2)(h(u, w))
    self.assertAllClose(jax.jit(jax.grad(loss(g), (0, 1)))(X, W),
                        jax.jit(jax.grad(loss(single), (0, 1)))(X, W),
                        rtol=1e-4)

  def test_hessian(self):
    f = lambda x: jnp.sum(jnp.sin(gather(x)) * gather(x)[::-1])
    got = jax.jit(jax.hessian(smap(f, P('i'), P())))(X)
    want = jax.hessian(lambda x: jnp.sum(jnp.sin(x) * x[::-1]))(X)
    self.assertAllClose(got, want, rtol=1e-4, atol=1e-5)

  def test_vmap_of_shard_map(self):
    g = jax.vmap(smap(FUNCTIONS['mixed'], (P('i'), P()), P()), (0, None))
    f = lambda x: np.sin(x * W) * W + x.sum()
    self.assertAllClose(jax.jit(g)(np.stack([X, 2 * X]), W),
                        np.stack([f(X), f(2 * X)]), rtol=1e-5)


@red(NO_RULE)
class PredicateTest(jtu.JaxTestCase):

  def test_while_with_a_collective(self):
    def f(x):
      return lax.while_loop(
          lambda x: jnp.max(lax.all_gather(jnp.sum(x), 'i')) < 50,
          lambda x: x + lax.pmean(x, 'i'), x)
    x, want = X.reshape(4, 2), X.reshape(4, 2)
    while want.sum(1).max() < 50:
      want = want + want.mean(0)
    g = smap(f, P('i'), P('i'))
    self.assertAllClose(jax.jit(g)(x.ravel()), want.ravel(), rtol=1e-5)
    self.assertAllClose(g(x.ravel()), want.ravel(), rtol=1e-5)

  @red('^Exception: The branches of cond produced mismatched replication '
       r'types\. Please open an issue at')
  def test_cond_with_a_collective(self):
    def f(x, w):
      return lax.cond(gather(x)[0] > 1, lambda x: x * w,
                      lambda x: w * lax.psum(x, 'i'), x)
    g = smap(f, (P('i'), P()), P('i'))
    single = lambda x, w: jnp.tile(w * x.reshape(4, 2).sum(0), 4)
    grad = lambda f: jax.grad(lambda x, w: jnp.sum(jnp.sin(f(x, w))), (0, 1))
    self.assertAllClose(jax.jit(g)(X, W), single(X, W), rtol=1e-5)
    self.assertAllClose(jax.jit(grad(g))(X, W), grad(single)(X, W), rtol=1e-4)

  def test_what_it_decides_is_replicated(self):
    def f(x, w):
      return lax.while_loop(lambda c: c[0] < gather(x).max(),
                            lambda c: (c[0] + .25, c[1] * w), (w, w))
    got = jax.jit(smap(f, (P('i'), P()), (P(), P())))(X, W)
    self.assertAllClose(got, (np.float32(1.5), W * W))


@red(NO_RULE)
class FunctionsInsideTest(jtu.JaxTestCase):

  def test_linear_call_result_by_result(self):
    def call(res, x, w):
      fun = lambda res, lin: (lin[0] * res, lin[1] * 2)
      transpose = lambda res, ct: (ct[0] * res, ct[1] * 2)
      return custom_derivatives.linear_call(fun, transpose, res, (x, w))
    g = smap(lambda x, w: call(x, x, w), (P('i'), P()), (P('i'), P()))
    self.assertAllClose(jax.jit(g)(X, W), (X * X, 2 * W))
    ct = (np.cos(X), np.float32(3))  # it has a transpose, and no derivative
    def f_x(x, w):
      h = smap(lambda res, x, w: call(res, x, w), (P('i'), P('i'), P()),
               (P('i'), P()))
      return h(X, x, w)
    got = jax.jit(jax.linear_transpose(f_x, X, W))(ct)
    self.assertAllClose(got, (X * np.cos(X), np.float32(6)), rtol=1e-5)

  def test_custom_vmap_result_by_result(self):
    @jax.custom_batching.custom_vmap
    def h(x, w):
      return jnp.sin(x) * w, jnp.sin(w)

    @h.def_vmap
    def _(size, batched, x, w):
      w = w if batched[1] else jnp.broadcast_to(w, (size,))
      return jax.vmap(lambda x, w: (jnp.sin(x) * w, jnp.sin(w)))(x, w), (
          True, True)
    f = jax.jit(smap(h, (P('i'), P()), (P('i'), P())))
    self.assertAllClose(f(X, W), (np.sin(X) * W, np.sin(W)), rtol=1e-5)


class GuardTest(jtu.JaxTestCase):

  def refused(self, f):
    with self.assertRaisesRegex(ValueError, 'out_specs'):
      jax.make_jaxpr(smap(f, P('i'), P()))(X)

  def test_different_is_refused(self):
    self.refused(lambda x: gather(x)[lax.axis_index('i')])
    self.refused(lambda x: gather(x)[:2] * x)
    self.refused(lambda x: lax.ppermute(gather(x), 'i', [(0, 1)]))
    self.refused(lambda x: lax.psum_scatter(gather(x), 'i', tiled=True))
    self.refused(lambda x: lax.all_to_all(gather(x), 'i', 0, 0, tiled=True))
    self.refused(lambda x: lax.scan(
        lambda c, _: (c + x[0], None), gather(x).sum(), None, length=2)[0])

  def test_groups_are_refused(self):
    self.refused(lambda x: lax.all_gather(
        x, 'i', axis_index_groups=[[0, 1], [2, 3]]))

  def test_gathered_parameter_scatters_its_cotangent(self):
    # Weights sharded and gathered for use: one reduce_scatter, no psum.
    def f(x, w):
      return x @ jax.checkpoint(jnp.sin)(gather(w))
    g = smap(f, (P('i'), P('i')), P('i'))
    x = np.ones((4, 8), np.float32)
    found = collectives(jax.grad(lambda w: g(x, w).sum()), X)
    self.assertEqual(found, ['all_gather', 'reduce_scatter'])
