# SPDX-License-Identifier: Apache-2.0
"""cond and switch in shard_map with check_rep=True."""
from unittest import mock

from absl.testing import parameterized
import jax
from jax import lax
from jax._src import test_util as jtu
from jax.experimental import shard_map as shard_map_lib
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
MISMATCHED_REPLICATION = ('^Exception: The branches of cond produced '
                          r'mismatched replication types\. Please open an '
                          'issue at')
NOT_REFUSED = '^AssertionError: ValueError not raised'


def mesh_1d(n=4):
  return Mesh(np.array(jax.devices()[:n]), ('i',))


def mesh_2d():
  return Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ('i', 'j'))


def smap(mesh, in_specs, out_specs, **kwargs):
  return lambda f: shard_map(f, mesh=mesh, in_specs=in_specs,
                             out_specs=out_specs, **kwargs)


def sums_in_branches(jaxpr, axis, within=False):
  """Returns whether a sum over `axis` is inside a branch of a cond."""
  for e in jaxpr.eqns:
    if within and e.primitive.name in ('psum', 'psum2'):
      if axis in e.params['axes']:
        return True
    inside = within or e.primitive.name == 'cond'
    for param in jax.tree.leaves(list(e.params.values()), is_leaf=lambda x:
                                 hasattr(x, 'eqns') or hasattr(x, 'jaxpr')):
      inner = getattr(param, 'jaxpr', param)
      if hasattr(inner, 'eqns') and sums_in_branches(inner, axis, inside):
        return True
  return False


@jax.custom_vjp
def scaled(x, w):
  return x * w


scaled.defvjp(lambda x, w: (x * w, (x, w)),
              lambda res, ct: (ct * res[1], (ct * res[0]).sum()))

def on_host(f, x):
  return jax.pure_callback(lambda a: f(a).astype(a.dtype),
                           jax.ShapeDtypeStruct(x.shape, x.dtype), x)


@jax.custom_vjp
def sine_on_host(w):
  return on_host(np.sin, w)


sine_on_host.defvjp(lambda w: (on_host(np.sin, w), w),
                    lambda w, ct: (ct * on_host(np.cos, w),))


@jax.custom_vjp
def same_whatever(w):  # a result that varies with nothing, and its gradient
  return jnp.full_like(w, 2.)


same_whatever.defvjp(lambda w: (jnp.full_like(w, 2.), w),
                     lambda w, ct: (ct * w,))


@jax.custom_jvp
def same_whatever_jvp(w):
  return jnp.full_like(w, 2.)


same_whatever_jvp.defjvp(
    lambda p, t: (jnp.full_like(p[0], 2.), t[0] * p[0]))

# Functions of a device's part x, its number k and the replicated w.
BRANCHES = {
    'one_ignores': lambda x, w, k: lax.cond(
        k == 0, lambda: x * w, lambda: x),
    'both_read': lambda x, w, k: lax.cond(
        k % 2 == 0, lambda: jnp.sin(x * w), lambda: x * w * w),
    'switch': lambda x, w, k: lax.switch(
        k, [lambda: x * w, lambda: x + w, lambda: x, lambda: x * 0 + w * w]),
    'in_scan': lambda x, w, k: lax.scan(
        lambda c, i: (lax.cond(k > i, lambda: c * w, lambda: c), None), x,
        jnp.arange(3))[0],
    'scan_in_it': lambda x, w, k: lax.cond(
        k > 0, lambda: lax.scan(
            lambda c, _: (jnp.sin(c * w), None), x, None, length=2)[0],
        lambda: x),
    'cond_scan_cond': lambda x, w, k: lax.cond(
        k > 0, lambda: lax.scan(
            lambda c, i: (lax.cond(k > i, lambda: c * w, lambda: c + w), None),
            x, jnp.arange(3))[0], lambda: x * w),
    'custom_vjp': lambda x, w, k: lax.cond(
        k > 1, lambda: scaled(x, w) + scaled(x, 2.), lambda: x),
    'callback': lambda x, w, k: lax.cond(
        k > 1, lambda: x * sine_on_host(w), lambda: x),
    'callback_of_operand': lambda x, w, k: lax.cond(
        k > 1, sine_on_host, lambda w: w, w) * x,
    'callback_jit': lambda x, w, k: lax.cond(
        k > 1, jax.jit(sine_on_host), lambda w: w, w) * x,
    'callback_remat': lambda x, w, k: lax.cond(
        k > 1, jax.checkpoint(sine_on_host), lambda w: w, w) * x,
    'constant': lambda x, w, k: lax.cond(
        k > 1, lambda: x + same_whatever(w), lambda: x),
    'constant_jvp': lambda x, w, k: lax.cond(
        k > 1, lambda: x * same_whatever_jvp(w), lambda: x),
    'constant_in_cond': lambda x, w, k: lax.cond(
        k > 1, lambda: x * lax.cond(w > 0, same_whatever, lambda w: 1., w),
        lambda: x),
    'constant_in_scan': lambda x, w, k: lax.cond(
        k > 1, lambda: x * lax.scan(
            lambda c, _: (c + same_whatever(w), None), 0., None, length=2)[0],
        lambda: x),
    'constant_of_scan': lambda x, w, k: lax.cond(
        k > 1, lambda: x * lax.scan(
            lambda c, _: (c, same_whatever(w)), 0., None, length=2)[1].sum(),
        lambda: x),
    'constant_in_solve': lambda x, w, k: lax.cond(
        k > 1, lambda: x * lax.custom_linear_solve(
            lambda v: 2. * v, same_whatever(w), lambda _, b: b / 2.,
            symmetric=True), lambda: x),
    'remat': lambda x, w, k: jax.checkpoint(lambda x, w: lax.cond(
        k > 1, jax.checkpoint(lambda: jnp.sin(x * w)), lambda: x))(x, w),
    'jit': lambda x, w, k: lax.cond(
        k > 1, jax.jit(lambda: jnp.sin(x * w)), lambda: x),
    'handed_through': lambda x, w, k: lax.cond(
        k > 1, lambda: (x * w, w), lambda: (x, w))[0] * w,
}


def single_device(f, x, w, n):
  parts = [f(p, w, k) for k, p in enumerate(jnp.split(x, n))]
  return jnp.concatenate(parts)


@red(MISMATCHED_REPLICATION)
class GradientTest(jtu.JaxTestCase):
  """Every gradient under a varying predicate is the single device's."""

  @red('^AssertionError: True is not false : a sum is in a branch',
       cases=['remat'])
  @parameterized.named_parameters(*[(f'_{k}', k) for k in sorted(BRANCHES)])
  def test_sum_is_outside_of_the_branch(self, name):
    f = BRANCHES[name]
    x, w = np.linspace(.1, 1., 8, dtype='float32'), np.float32(1.5)
    rows = np.arange(4)
    g = smap(mesh_1d(), (P('i'), P(), P('i')), P('i'))(
        lambda x, w, rows: f(x, w, rows[0]))
    grad = jax.grad(lambda x, w: jnp.sum(jnp.sin(g(x, w, rows))), (0, 1))
    # Were one left inside, running the program might hang.
    self.assertFalse(sums_in_branches(jax.make_jaxpr(grad)(x, w).jaxpr, 'i'),
                     'a sum is in a branch')
    want = jax.grad(lambda x, w: jnp.sum(jnp.sin(single_device(
        f, x, w, 4))), (0, 1))(jnp.array(x), w)
    self.assertAllClose(jax.jit(grad)(x, w), want, rtol=1e-4,
                        check_dtypes=False)

  def test_eager(self):
    f = BRANCHES['one_ignores']
    x, w = np.linspace(.1, 1., 4, dtype='float32'), np.float32(1.5)
    g = smap(mesh_1d(2), (P('i'), P()), P('i'))(
        lambda x, w: f(x, w, lax.axis_index('i')))
    grad = jax.grad(lambda w: jnp.sum(jnp.sin(g(x, w))))
    self.assertFalse(sums_in_branches(jax.make_jaxpr(grad)(w).jaxpr, 'i'),
                     'a sum is in a branch')
    want = jax.grad(lambda w: jnp.sum(jnp.sin(single_device(
        f, jnp.array(x), w, 2))))(w)
    self.assertAllClose(grad(w), want, rtol=1e-4, check_dtypes=False)

  def test_on_two_axes_only_the_deciding_one_moves(self):
    # The predicate varies along i; w is needed on j too.
    @smap(mesh_2d(), (P('i', 'j'), P('i'), P()), P('i', 'j'))
    def g(x, rows, w):
      return lax.cond(rows[0] > 0, lambda: jnp.sin(x * w), lambda: x)
    x, rows = np.linspace(.1, 1., 4, dtype='float32'), np.arange(2)
    x = x.reshape(2, 2)
    grad = jax.grad(lambda w: g(x, rows, w).sum())
    self.assertFalse(
        sums_in_branches(jax.make_jaxpr(grad)(np.float32(2)).jaxpr, 'i'),
        'a sum is in a branch')
    want = (np.cos(x[1] * 2) * x[1]).sum()
    self.assertAllClose(jax.jit(grad)(np.float32(2)), want, rtol=1e-5,
                        check_dtypes=False)


class StagedGradientTest(jtu.JaxTestCase):
  """The check of a differentiated cond takes the zeros that jvp makes."""

  @red(MISMATCHED_REPLICATION)
  def test_grad_of_jit(self):
    @jax.jit
    @smap(mesh_1d(), (P('i'), P()), P())
    def loss(x, w):
      y = lax.cond(lax.psum(w, 'i') > 0, lambda: x * w,
                   lambda: jnp.ones_like(x))
      return lax.psum(y.sum(), 'i')
    x = np.arange(4., dtype=np.float32)
    self.assertAllClose(jax.grad(loss, 1)(x, 2.), 6., check_dtypes=False)

  @red(MISMATCHED_REPLICATION)
  def test_switch(self):
    f = lambda x: lax.switch(x[0].astype(int), [
        jnp.sin, jnp.cos, lambda z: z * 0], x)
    g = smap(mesh_1d(), P('i'), P('i'))(f)
    x = np.array([0, .5, 1, .5, 2, .5, 9, .5], np.float32)
    grad = jax.grad(lambda x: g(x).sum())
    want = np.concatenate(
        [jax.grad(lambda p: f(p).sum())(p) for p in x.reshape(4, 2)])
    self.assertAllClose(jax.jit(grad)(x), want, check_dtypes=False)

  def test_jvp_inside(self):
    def f(x, w):
      return jax.jvp(lambda w: lax.cond(x[0] > 1, lambda: x * w, lambda: x),
                     (w,), (1.,))
    g = smap(mesh_1d(2), (P('i'), P()), P('i'))(f)
    x = np.array([0., 1., 2., 3.], np.float32)
    y, t = jax.jit(g)(x, 3.)
    self.assertAllClose(y, np.array([0., 1., 6., 9.]), check_dtypes=False)
    self.assertAllClose(t, np.array([0., 0., 2., 3.]), check_dtypes=False)


class TypeTest(jtu.JaxTestCase):

  @red("^ValueError: shard_map applied to the function '<lambda>' was given "
       'out_specs which require replication', bases='<0.5.3')
  def test_same_operand_in_every_branch_keeps_its_type(self):
    f = smap(mesh_1d(), (P('i'), P()), (P('i'), P()))(
        lambda x, w: lax.cond(x[0] > 1, lambda: (x * w, w), lambda: (x, w)))
    x, w = jax.jit(f)(np.arange(4.), 3.)
    self.assertAllClose(x, np.array([0., 1., 6., 9.]), check_dtypes=False)
    self.assertAllClose(w, 3., check_dtypes=False)

  @red(NOT_REFUSED)
  def test_collective_under_a_varying_predicate_is_refused(self):
    f = smap(mesh_1d(), P('i'), P('i'))(
        lambda x: lax.cond(x[0] > 1, lambda: lax.psum(x, 'i'), lambda: x))
    with self.assertRaisesRegex(
        ValueError, r"psum over mesh axis 'i'.*lax.cond, at .*"
        r"branches_test.py.*varies over 'i'.*lax.pmax"):
      jax.make_jaxpr(f)(np.arange(4.))  # running it might hang

  @red(NOT_REFUSED)
  @parameterized.named_parameters(
      ('_all_gather', lambda x: lax.all_gather(x, 'i', tiled=True)[:1]),
      ('_ppermute', lambda x: lax.ppermute(x, 'i', [(0, 1), (1, 0)])),
      ('_psum_scatter', lambda x: lax.psum_scatter(jnp.tile(x, 4), 'i',
                                                   tiled=True)),
      ('_all_to_all', lambda x: lax.all_to_all(jnp.tile(x, 4), 'i', 0, 0,
                                               tiled=True)[:1]),
      ('_pmax', lambda x: lax.pmax(x, 'i')),
      ('_in_a_scan', lambda x: lax.scan(
          lambda c, _: (lax.pmin(c, 'i'), None), x, None, length=2)[0]),
      ('_in_a_jit', jax.jit(lambda x: lax.pmin(x, 'i'))),
  )
  def test_refused(self, collective):
    f = smap(mesh_1d(), P('i'), P('i'))(
        lambda x: lax.cond(x[0] > 1, collective, lambda x: x, x))
    with self.assertRaisesRegex(ValueError, "over mesh axis 'i'"):
      jax.make_jaxpr(f)(np.arange(4.))

  @red(NOT_REFUSED)
  def test_option_admits_collectives(self):
    f = smap(mesh_1d(), P('i'), P('i'))(lambda x: lax.cond(
        lax.axis_index('i') < 4, lambda: lax.psum(x, 'i') + x, lambda: x))
    x = np.arange(4., dtype=np.float32)
    with self.assertRaisesRegex(ValueError, 'allow_divergent_collectives'):
      jax.make_jaxpr(f)(x)
    jax.config.update('jax_allow_divergent_collectives', True)
    try:
      # The predicate is typed as varying and is the same everywhere.
      self.assertAllClose(jax.jit(f)(x), x + 6, check_dtypes=False)
    finally:
      jax.config.update('jax_allow_divergent_collectives', False)

  @red(MISMATCHED_REPLICATION)
  def test_in_a_backward_pass_is_refused(self):
    @jax.custom_vjp
    def f(x):
      return x
    f.defvjp(lambda x: (x, None), lambda _, ct: (lax.psum(ct, 'i'),))
    # The function alone would hand x through; its rule must not be lost.
    g = smap(mesh_1d(), P('i'), P('i'))(
        lambda x: lax.cond(x[0] > 1, f, lambda x: x, x))
    with self.assertRaisesRegex(ValueError, "psum over mesh axis 'i'"):
      jax.make_jaxpr(jax.grad(lambda x: g(x).sum()))(np.arange(4.))


class BranchTracedOnceTest(jtu.JaxTestCase):

  @red('^AssertionError: .*not less than 2')
  @parameterized.named_parameters(*[(f'_{d}', d) for d in (2, 4, 8)])
  def test_nested_branch_is_rewritten_once(self, depth):
    def nest(f):
      return lambda c: lax.cond(c[1] > 0, f, lambda c: c, c)
    f = lambda c: (jnp.sin(c[0]), c[1])
    for _ in range(depth):
      f = nest(f)
    rule = shard_map_lib._rewrite_rules[lax.sin_p]
    count = mock.Mock(side_effect=rule)
    with mock.patch.dict(shard_map_lib._rewrite_rules, {lax.sin_p: count}):
      g = smap(mesh_1d(), (P('i'), P()), P('i'))(lambda x, w: f((x, w))[0])
      jax.make_jaxpr(g)(np.ones(4, np.float32), np.float32(1))
    self.assertLess(count.call_count, 2)


class GuardTest(jtu.JaxTestCase):
  """Programs that worked before stay as they were."""

  def test_collective_over_another_axis(self):
    @smap(mesh_2d(), (P('i', 'j'), P('i')), P('i', 'j'))
    def g(x, rows):
      return lax.cond(rows[0] > 0, lambda: lax.psum(x, 'j'), lambda: x)
    x = np.arange(4., dtype=np.float32).reshape(2, 2)
    want = np.stack([x[0], np.full(2, x[1].sum())])
    self.assertAllClose(jax.jit(g)(x, np.arange(2)), want, check_dtypes=False)

  def test_collective_under_a_replicated_predicate(self):
    g = smap(mesh_1d(), P('i'), P())(lambda x: lax.cond(
        lax.pmax(x[0], 'i') > 1, lambda x: lax.psum(x, 'i'),
        lambda x: lax.pmin(x, 'i'), x))
    x = np.arange(4., dtype=np.float32)
    self.assertAllClose(jax.jit(g)(x), np.array([6.]), check_dtypes=False)
    self.assertAllClose(g(x), np.array([6.]), check_dtypes=False)

  def test_casts_of_a_replicated_predicate(self):
    g = smap(mesh_1d(), (P('i'), P()), P('i'))(lambda x, w: lax.cond(
        w > w, lambda: x * w, lambda: x))
    text = str(jax.make_jaxpr(g)(np.arange(4.), 1.))
    self.assertLess(text.index('branches'), text.index('pbroadcast'))
    self.assertEqual(text.count('pbroadcast'), 1)

  def test_varying_output_is_not_replicated(self):
    g = smap(mesh_1d(), P('i'), P())(
        lambda x: lax.cond(x[0] > 1, lambda: 1., lambda: 0.))
    with self.assertRaisesRegex(ValueError, 'out_specs'):
      jax.jit(g)(np.arange(4.))
