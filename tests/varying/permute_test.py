# SPDX-License-Identifier: Apache-2.0
"""ppermute over one axis where devices diverge along another."""
import jax
from jax import export
from jax import lax
from jax._src import config
from jax._src import test_util as jtu
import jax.numpy as jnp
import numpy as np
from testing.red import red
from testing.sharding import partly_manual, shard_map
from varying.testing import common
from varying.testing.common import P

config.parse_flags_with_absl()

# What pristine JAX says.
PERMUTES = "^AssertionError: 'collective_permute' unexpectedly found in"
NO_GATHER = "^AssertionError: 'all_gather' not found in"
NO_RULE_FOR_WHILE = r'^NotImplementedError: No replication rule for while\.'
NOT_REFUSED = '^AssertionError: ValueError not raised'

X = np.arange(1., 9., dtype=np.float32).reshape(2, 4)
RING = [(0, 1), (1, 2), (2, 3), (3, 0)]
HALF = [(0, 2), (3, 1)]


def permuted(x, perm):
  """The oracle: a row whose elements have moved, zeros where none came."""
  out = jnp.zeros_like(x)
  for source, target in perm:
    out = out.at[target].set(x[source])
  return out


def shift(perm):
  return lambda x: lax.ppermute(x, 'y', perm)


def branch(move, x, p):
  return lax.cond(p, lambda x: move(2. * x) + x, lambda x: x * x, x)


def loop(move, x, p):
  return lax.while_loop(lambda c: c[0] < jnp.where(p, 3, 1),
                        lambda c: (c[0] + 1, move(c[1]) * 1.5), (0, x))[1]


def nested(move, x, p):
  def yes(x):
    return lax.scan(lambda c, _: (jax.jit(move)(c) + 1., None), x, None,
                    length=2)[0]
  return lax.cond(p, yes, lambda x: 3. * x, x)


def remat(move, x, p):
  return lax.cond(p, jax.checkpoint(lambda x: jnp.sin(move(x))), jnp.cos, x)


BRANCHES = [branch, nested, remat]
FIRST = np.array([1, 0])  # along 'x', where devices diverge


def program(f, perm):
  """The permutation is over 'y'."""
  def body(x, first):
    return f(shift(perm), x, first[0] > 0)
  return shard_map(body, mesh=common.make_mesh(2, 4),
                   in_specs=(P('x', 'y'), P('x')), out_specs=P('x', 'y'))


def oracle(f, perm, x=X):
  return jnp.stack([f(lambda row: permuted(row, perm), row, i == 0)
                    for i, row in enumerate(x)])

KINDS = ['key', 'bool', 'int4', 'uint8', 'int32', 'float32', 'bfloat16',
         'float8_e4m3fn', 'complex64']


def data(x):
  """The data of an array, of a dtype that NumPy knows."""
  if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
    return np.asarray(jax.random.key_data(x))
  known = np.dtype(x.dtype).isbuiltin == 1
  return np.asarray(x if known else x.astype(jnp.float32))


class ApartTest(jtu.JaxTestCase):

  def run_program(self, f, perm, jit, x=X):
    g = program(f, perm)
    # Run, it would wait forever.
    text = jax.jit(g).lower(x, FIRST).as_text()
    self.assertNotIn('collective_permute', text)
    return common.maybe_jit(jit)(g)(x, FIRST)

  def check_value(self, f, perm, jit):
    self.assertAllClose(np.asarray(self.run_program(f, perm, jit)),
                        np.asarray(oracle(f, perm)))

  @red(PERMUTES, bases='<0.6')
  @red(PERMUTES, bases='>=0.6')
  @jtu.sample_product(f=BRANCHES, perm=[RING, HALF])
  def test_value(self, f, perm):
    self.check_value(f, perm, True)

  @red(PERMUTES, bases='<0.6')
  @red(PERMUTES, bases='>=0.6')
  @jtu.sample_product(f=BRANCHES)
  def test_eager(self, f):
    self.check_value(f, RING, False)

  @red(NO_RULE_FOR_WHILE, bases='<0.6')
  @red(PERMUTES, bases='>=0.6')
  @jtu.sample_product(perm=[RING, HALF], jit=[False, True])
  def test_loop(self, perm, jit):
    self.check_value(loop, perm, jit)

  @red(PERMUTES, bases='<0.6')
  @red(PERMUTES, bases='>=0.6')
  @jtu.sample_product(f=BRANCHES, perm=[RING, HALF])
  def test_gradient(self, f, perm):
    w = jnp.arange(8.).reshape(2, 4)
    got = jax.grad(
        lambda x: jnp.sum(w * self.run_program(f, perm, True, x)))(X)
    want = jax.grad(lambda x: jnp.sum(w * oracle(f, perm, x)))(X)
    self.assertAllClose(got, want, rtol=1e-5)

  def check_vmap(self, f):
    x = np.stack([X, X + 1])
    got = jax.vmap(lambda x: self.run_program(f, RING, True, x))(x)
    self.assertAllClose(np.asarray(got),
                        np.stack([oracle(f, RING, y) for y in x]))

  @red(PERMUTES, bases='<0.6')
  @red(PERMUTES, bases='>=0.6')
  def test_vmap(self):
    self.check_vmap(branch)

  @red(NO_RULE_FOR_WHILE, bases='<0.6')
  @red(PERMUTES, bases='>=0.6')
  def test_loop_vmap(self):
    self.check_vmap(loop)

  @red(r'^NotImplementedError: No replication rule for linear_call\.',
       bases='<0.6')
  @red(PERMUTES, bases='>=0.6')
  def test_solve_and_linear_call(self):
    # The second runs functions as they were traced.
    back = [(target, source) for source, target in RING]
    def f(move, x, p):
      solve = lambda x: lax.custom_linear_solve(
          lambda y: 2. * y, x, lambda _, b: move(b) / 2.)
      moved = lambda x: jax.custom_derivatives.linear_call(
          lambda _, x: move(x), lambda _, x: shift(back)(x), (), x)
      return lax.cond(p, lambda x: solve(moved(x)), lambda x: x, x)
    # The oracle has no solve, whose vector is distributed here.
    want = np.stack([permuted(permuted(X[0], RING), RING) / 2., X[1]])
    self.assertAllClose(np.asarray(self.run_program(f, RING, True)), want)

  def run_moved(self, x, perm, **options):
    def body(x, first):
      return lax.cond(first[0] > 0, shift(perm), lambda x: x, x)
    g = shard_map(body, mesh=common.make_mesh(2, 2, 2), in_specs=(
        P('x', 'y'), P('x')), out_specs=P('x', 'y'), **options)
    self.assertNotIn('collective_permute',
                     jax.jit(g).lower(x, FIRST).as_text())
    got, want = jax.jit(g)(x, FIRST), np.array(data(x))
    parts = np.split(want[0].copy(), 2)
    want[0] = 0
    for source, target in perm:
      np.split(want[0], 2)[target][...] = parts[source]
    self.assertArraysEqual(data(got), want)  # NaN and the sign of 0 too
    self.assertArraysEqual(np.signbit(data(got).real), np.signbit(want.real))

  @red(PERMUTES, bases='<0.6')
  @red(PERMUTES, bases='>=0.6')
  @jtu.sample_product(kind=KINDS, perm=[[(0, 1), (1, 0)], [(0, 1)]],
                      partly=[False, True])
  def test_value_of_any_kind(self, kind, perm, partly):
    x = np.array([[1, 0, 3, 0], [5, 6, 7, 8]])
    if kind == 'key':
      x = jax.random.split(jax.random.key(3), 8).reshape(2, 4)
    elif kind == 'float32':
      x = np.array([[-0., np.nan, np.inf, 4], [5, 6, 7, 8]], np.float32)
    else:
      x = jnp.asarray(x).astype(kind)
    self.run_moved(x, perm, **(partly_manual('z') if partly else {}))

  @red('^Exception: The branches of cond produced mismatched replication '
       'types', bases='<0.6')
  @red(PERMUTES, bases='>=0.6')
  def test_gradient_in_a_partly_manual_mesh(self):
    def body(x, first):
      move = lambda x: lax.ppermute(x * x, 'y', [(0, 1)])
      return lax.cond(first[0] > 0, move, lambda x: 3. * x, x)
    g = shard_map(body, mesh=common.make_mesh(2, 2, 2), in_specs=(
        P('x', 'y'), P('x')), out_specs=P('x', 'y'),
                  **partly_manual('z'))
    h = jax.jit(jax.grad(lambda x: jnp.sum(g(x, FIRST))))
    self.assertNotIn('collective_permute', h.lower(X).as_text())
    want = 3. * np.ones_like(X)
    want[0] = [2., 4., 0., 0.]
    self.assertAllClose(np.asarray(h(X)), want)

  @red(PERMUTES, bases='<0.6')
  @red(PERMUTES, bases='>=0.6')
  def test_two_names(self):
    def body(x):
      move = lambda x: lax.ppermute(x, ('y', 'z'), RING)
      return branch(move, x, lax.axis_index('x') == 0)
    g = shard_map(body, mesh=common.make_mesh(2, 2, 2),
                  in_specs=P('x', ('y', 'z')), out_specs=P('x', ('y', 'z')))
    g = jax.jit(g)
    self.assertNotIn('collective_permute', g.lower(X).as_text())
    self.assertAllClose(np.asarray(g(X)), np.asarray(oracle(branch, RING)))

  @red(NOT_REFUSED, bases='<0.6')
  @red(NOT_REFUSED, bases='>=0.6')
  def test_same_axis_is_refused(self):
    def body(x):
      return branch(shift(RING), x, lax.axis_index('y') == 0)
    g = shard_map(body, mesh=common.make_mesh(2, 4), in_specs=P('x', 'y'),
                  out_specs=P('x', 'y'))
    with self.assertRaisesRegex(ValueError, 'ppermute over mesh axis .y.,? at'):
      jax.jit(g).trace(X)

  def lowered(self, f, platform):
    def body(x):
      return f(shift(RING), x, lax.axis_index('x') == 0)
    g = shard_map(body, mesh=common.make_mesh(2, 4), in_specs=P('x', 'y'),
                  out_specs=P('x', 'y'))
    return jax.jit(g).trace(X).lower(lowering_platforms=(platform,)).as_text()

  @red(PERMUTES, bases='<0.6')
  @red(PERMUTES, bases='>=0.6')
  def test_other_platforms_have_their_own(self):
    for platform in ('tpu', 'cuda'):
      text = self.lowered(branch, platform)
      self.assertIn('collective_permute', text)
      self.assertNotIn('all_gather', text)
    self.assertNotIn('collective_permute', self.lowered(branch, 'cpu'))

  def exported(self, f):
    def body(x):
      return f(shift(RING), x, lax.axis_index('x') == 0)
    g = shard_map(body, mesh=common.make_mesh(2, 4), in_specs=P('x', 'y'),
                  out_specs=P('x', 'y'))
    return g, export.export(jax.jit(g), platforms=('cpu', 'tpu'))(X)

  @red(NO_GATHER, bases='<0.6')
  @red(NO_GATHER, bases='>=0.6')
  def test_for_several_platforms_each_has_its_own(self):
    g, exported = self.exported(branch)
    self.assertIn('all_gather', exported.mlir_module())
    self.assertIn('collective_permute', exported.mlir_module())
    split = jax.device_put(X, jax.sharding.NamedSharding(
        common.make_mesh(2, 4), P('x', 'y')))
    self.assertAllClose(np.asarray(jax.jit(exported.call)(split)),
                        np.asarray(jax.jit(g)(X)))

  def test_outside_of_branches_no_platform_is_asked_for(self):
    _, exported = self.exported(lambda move, x, p: move(x))
    self.assertNotIn('stablehlo.case', exported.mlir_module())

  def test_outside_of_branches_it_stays(self):
    text = self.lowered(lambda move, x, p: move(x), 'cpu')
    self.assertIn('collective_permute', text)
    # A predicate that is the same everywhere: none diverge.
    text = self.lowered(
        lambda move, x, p: branch(move, x, lax.psum(x[0, 0], ('x', 'y')) > 0),
        'cpu')
    self.assertIn('collective_permute', text)
