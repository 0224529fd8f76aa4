# SPDX-License-Identifier: Apache-2.0
"""What varies about the results of random bits and others (issue 3)."""
from absl.testing import parameterized
import jax
from jax import lax
from jax._src import core
from jax._src import test_util as jtu
from jax.extend.core import jaxpr_as_fun
from jax.extend.core import Primitive
from jax.extend.random import threefry_2x32
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
from testing.red import red
from testing.sharding import shard_map
from varying.testing.common import axes_of
from varying.testing.common import make_mesh
from varying.testing.common import maybe_jit

jax.config.parse_flags_with_absl()

# What pristine JAX says.
WRONG_AXES_OF_EACH = (r'^AssertionError: Lists differ: \[frozenset\(\)\] != '
                      r"\[\{'x'\}\]\s+First differing element")
RNG_RULE = r'^AssertionError: raised by lax\._rng_bit_generator_vma_rule'
NOT_REFUSED = '^AssertionError: ValueError not raised'

F32 = np.float32
MESHES = {'1d': (4,), '2d': (2, 4)}
# Without jit each operation compiles by itself, so that one is enough.
WHERE = [dict(jit=True, mesh='1d'), dict(jit=False, mesh='2d')]
# Of how maxima of groups are taken, each pair.
GROUPED = [
    dict(jit=True, mesh='1d', reduce=lax.pmax, groups='pairs'),
    dict(jit=True, mesh='2d', reduce=lax.pmin, groups='pairs'),
    dict(jit=True, mesh='2d', reduce=lax.pmax, groups='uneven'),
    dict(jit=False, mesh='1d', reduce=lax.pmin, groups='uneven'),
    dict(jit=False, mesh='2d', reduce=lax.pmax, groups='pairs')]


def bits(key):
  return lax.rng_bit_generator(key, (3,))[1]


KEYS = np.arange(16, dtype=np.uint32).reshape(4, 4)


class PrimitiveTypesTest(jtu.JaxTestCase):

  def types(self, f, *args, in_specs):
    """The axes along which each result of ``f`` varies on a 2x4 mesh."""
    seen = []

    def body(*args):
      seen.extend(map(axes_of, jax.tree_util.tree_leaves(f(*args))))
      return ()

    jax.make_jaxpr(shard_map(body, mesh=make_mesh(2, 4), in_specs=in_specs,
                             out_specs=()))(*args)
    return seen

  @red(NOT_REFUSED, bases='>=0.8')
  @red(RNG_RULE, bases='<0.8')
  @parameterized.parameters(*WHERE)
  def test_random_bits_claimed_to_be_replicated(self, jit, mesh):
    mesh = make_mesh(*MESHES[mesh])
    f = shard_map(lambda k: bits(k[0]), mesh=mesh, in_specs=P('x'),
                  out_specs=P())
    with self.assertRaisesRegex(ValueError, 'replicat'):
      jax.block_until_ready(maybe_jit(jit)(f)(KEYS[:mesh.shape['x']]))

  @red(RNG_RULE, bases='<0.8')
  @parameterized.parameters(*WHERE)
  def test_random_bits_per_device(self, jit, mesh):
    mesh = make_mesh(*MESHES[mesh])
    keys = KEYS[:mesh.shape['x']]
    f = shard_map(lambda k: bits(k[0])[None], mesh=mesh, in_specs=P('x'),
                  out_specs=P('x'))
    self.assertArraysEqual(maybe_jit(jit)(f)(keys),
                           np.stack([bits(k) for k in keys]))

  @red(r"^AssertionError: Lists differ: \[frozenset\(\{'x'\}\), "
       r"frozenset\(\)\] != \[\{'x'\}, \{'x'\}\]\s+First differing",
       bases='>=0.8')
  @red(RNG_RULE, bases='<0.8')
  def test_random_bits_and_the_next_key_vary_like_the_key(self):
    f = lambda k: lax.rng_bit_generator(k[0], (3,))
    self.assertEqual(self.types(f, KEYS, in_specs=P('x')), [{'x'}, {'x'}])
    self.assertEqual(self.types(f, KEYS, in_specs=P()), [set(), set()])

  # An assert of _rng_bit_generator_vma_rule, which says nothing.
  @red(RNG_RULE, bases='<0.8')
  @red(r'^AssertionError: \s*Not equal to tolerance .*ACTUAL: '
       r'array\(7\.413\d*, dtype=float32\)', bases='>=0.8')
  def test_gradient_of_a_factor_of_random_bits(self):
    # Bits taken for replicated left the factor's gradient unsummed.
    noise = lambda k: bits(k).astype(F32) / F32(2 ** 32)
    f = shard_map(lambda w, k: (w * noise(k[0]))[None], mesh=make_mesh(4),
                  in_specs=(P(), P('x')), out_specs=P('x'))
    got = jax.jit(jax.grad(lambda w: jnp.sum(f(w, KEYS))))(F32(2.))
    self.assertAllClose(got, sum(np.sum(noise(k)) for k in KEYS), rtol=1e-5)

  @red(RNG_RULE, bases='<0.8')
  @parameterized.parameters('rbg', 'unsafe_rbg')
  def test_keys_of_the_hardware_generator(self, impl):
    sample = lambda s: jax.random.uniform(jax.random.key(s, impl=impl), (3,))
    f = shard_map(lambda s: sample(s[0])[None], mesh=make_mesh(4),
                  in_specs=P('x'), out_specs=P('x'))
    seeds = np.arange(4, dtype=np.uint32)
    self.assertAllClose(jax.jit(f)(seeds), np.stack(list(map(sample, seeds))))

  @red(r'^AssertionError: Lists differ: \[frozenset\(')
  def test_own_generator_varies_along_all_axes(self):
    f = lambda lo, hi: lax.rng_uniform(lo[0], hi[0], (3,))
    lo, hi = np.zeros(4, F32), np.ones(4, F32)
    for specs in ((P('x'), P()), (P(), P('y')), (P(), P())):
      self.assertEqual(self.types(f, lo, hi, in_specs=specs), [{'x', 'y'}])

  @red(NOT_REFUSED)
  @parameterized.product(jit=[False, True], mesh=list(MESHES))
  def test_own_generator_claimed_to_be_the_same(self, jit, mesh):
    f = shard_map(lambda x: x + lax.rng_uniform(0., 1., (3,)),
                  mesh=make_mesh(*MESHES[mesh]), in_specs=P(), out_specs=P())
    with self.assertRaisesRegex(ValueError, 'replicat'):
      jax.block_until_ready(maybe_jit(jit)(f)(np.ones(3, F32)))

  @parameterized.product(jit=[False, True], mesh=list(MESHES))
  def test_own_generator_per_device(self, jit, mesh):
    mesh = make_mesh(*MESHES[mesh])
    f = shard_map(lambda x: x + lax.rng_uniform(0., 1., (1, 3)), mesh=mesh,
                  in_specs=P(), out_specs=P(mesh.axis_names))
    got = np.asarray(maybe_jit(jit)(f)(np.ones((1, 3), F32)))
    self.assertEqual(got.shape, (mesh.size, 3))
    self.assertTrue(np.all((1. <= got) & (got <= 2.)))

  @red(r'^AssertionError: frozenset\(\) != \{')
  def test_own_generator_in_a_loop(self):
    f = lambda x: lax.fori_loop(
        0, 3, lambda i, c: c + lax.rng_uniform(0., 1., ()), x[0])
    (axes,) = self.types(f, np.ones(4, F32), in_specs=P())
    self.assertEqual(axes, {'x', 'y'})

  @red(NOT_REFUSED, bases='<0.7')
  def test_infeed_claimed_to_be_the_same(self):
    if not hasattr(lax, 'infeed'):
      self.skipTest('gone since 0.10')
    shape = core.ShapedArray((2,), F32)
    f = shard_map(lambda x: lax.infeed(lax.create_token(x), shape=(shape,))[0],
                  mesh=make_mesh(4), in_specs=P(), out_specs=P())
    with self.assertRaisesRegex(ValueError, 'replicat'):
      jax.make_jaxpr(f)(F32(1.))

  @red(WRONG_AXES_OF_EACH)
  def test_threefry_varies_along_key_and_count(self):
    count = np.arange(4, dtype=np.uint32)
    f = lambda k, c: threefry_2x32(k[0, :2], c)
    self.assertEqual(self.types(f, KEYS, count, in_specs=(P('x'), P())),
                     [{'x'}])
    self.assertEqual(self.types(f, KEYS, count, in_specs=(P('x'), P('y'))),
                     [{'x', 'y'}])

  def test_threefry_per_device(self):
    count = np.arange(4, dtype=np.uint32)
    f = shard_map(lambda k: threefry_2x32(k[0, :2], count)[None],
                  mesh=make_mesh(4), in_specs=P('x'), out_specs=P('x'))
    self.assertArraysEqual(
        jax.jit(f)(KEYS), np.stack([threefry_2x32(k[:2], count) for k in KEYS]))

  @red(WRONG_AXES_OF_EACH, bases='>=0.9.1')
  def test_scaled_dot_varies_along_every_operand(self):
    if not hasattr(lax, 'scaled_dot'):
      self.skipTest('0.6.0 has no scaled_dot')
    f = lambda a, s: lax.scaled_dot(a, np.ones((4, 4), F32), lhs_scale=s,
                                    rhs_scale=np.ones((1, 4), F32))
    a, s = np.ones((4, 4), F32), np.ones((4, 1), F32)
    self.assertEqual(self.types(f, a, s, in_specs=(P(), P())), [set()])
    self.assertEqual(self.types(f, a, s, in_specs=(P('x'), P('x'))), [{'x'}])

  @red(WRONG_AXES_OF_EACH, bases='<0.7.1')
  def test_gamma_varies_along_the_key(self):
    f = lambda k, a: jax.random.gamma(jax.random.wrap_key_data(k[0, :2]), a)
    self.assertEqual(
        self.types(f, KEYS, np.ones(3, F32), in_specs=(P('x'), P())), [{'x'}])

  @red('^ValueError: Primitive polynomial requires varying manual axes to '
       'match', bases='>=0.12')
  @parameterized.parameters(*WHERE)
  def test_sinc_and_its_gradient(self, jit, mesh):
    mesh = make_mesh(*MESHES[mesh])
    x = np.linspace(-1., 1., 2 * mesh.shape['x'], dtype=F32)
    f = shard_map(jnp.sinc, mesh=mesh, in_specs=P('x'), out_specs=P('x'))
    self.assertAllClose(maybe_jit(jit)(f)(x), np.sinc(x), atol=1e-6)
    g = maybe_jit(jit)(jax.grad(lambda x: jnp.sum(f(x))))
    want = jax.jit(jax.grad(lambda x: jnp.sum(jnp.sinc(x))))(x)
    self.assertAllClose(g(x), want, atol=1e-6)

  @red('^ValueError: Primitive lt_to requires varying manual axes to match',
       bases='<0.8')
  @parameterized.parameters(*WHERE)
  def test_searchsorted_by_comparison(self, jit, mesh):
    mesh = make_mesh(*MESHES[mesh])
    a = np.array([.1, .3, .3, .8], F32)
    v = np.linspace(0, 1, 3 * mesh.shape['x'], dtype=F32)
    f = shard_map(lambda a, v: jnp.searchsorted(a, v, method='compare_all'),
                  mesh=mesh, in_specs=(P(), P('x')), out_specs=P('x'))
    self.assertArraysEqual(maybe_jit(jit)(f)(a, v),
                           np.searchsorted(a, v).astype(np.int32))

  @red(WRONG_AXES_OF_EACH)
  def test_primitive_of_a_library_however_it_is_defined(self):
    rule = lambda x: core.ShapedArray(x.shape, x.dtype)
    for way in ('def_abstract_eval', 'def_effectful_abstract_eval',
                'def_effectful_abstract_eval2'):
      prim = Primitive('tenfold')
      define = getattr(prim, way, None)  # the last is there from 0.7 on
      if define is not None:
        define((lambda x: (rule(x), frozenset()))
               if way == 'def_effectful_abstract_eval' else rule)
        self.assertEqual(self.types(prim.bind, F32(np.arange(4)),
                                    in_specs=P('x')), [{'x'}], way)

  def test_same_jaxpr_where_nothing_was_wrong(self):
    # Operands of one type are bound as they are.
    def body(x, y):
      return (lax.sort((x, y), num_keys=1)[0],
              lax.reduce(x, F32(0.), lambda a, b: a + b * b, (0,))[None])

    f = shard_map(body, mesh=make_mesh(4), in_specs=(P('x'), P('x')),
                  out_specs=(P('x'), P('x')))
    x = np.arange(8, dtype=F32)
    text = str(jax.make_jaxpr(f)(x, x))
    self.assertEqual(text.count('pvary'), 0)

  def grouped(self, f, mesh, groups, out=None):
    """``f`` of each device's number along the last axis, and its groups."""
    mesh = make_mesh(*MESHES[mesh])
    axis = mesh.axis_names[-1]
    groups = {'pairs': [[0, 2], [1, 3]], 'uneven': [[0, 1, 3], [2]],
              'all': [[3, 1, 0, 2]]}[groups]
    x = np.array([3., 7., 5., 1.], F32)
    spec = P(axis) if out is None else out
    g = shard_map(lambda x, w: f(x, w, axis, groups), mesh=mesh,
                  in_specs=(P(axis), P()), out_specs=spec)
    return g, x, [own for n in range(4) for own in groups if n in own]

  @red(NOT_REFUSED)
  @parameterized.parameters(*GROUPED)
  def test_groups_claimed_to_agree(self, jit, mesh, reduce, groups):
    f, x, _ = self.grouped(
        lambda x, w, axis, groups: reduce(x, axis, axis_index_groups=groups),
        mesh, groups, P())
    with self.assertRaisesRegex(ValueError, 'replicat'):
      jax.block_until_ready(maybe_jit(jit)(f)(x, F32(1.)))

  @parameterized.parameters(*GROUPED)
  def test_groups_agree_inside(self, jit, mesh, reduce, groups):
    f, x, of = self.grouped(
        lambda x, w, axis, groups: reduce(x, axis, axis_index_groups=groups),
        mesh, groups)
    best = np.max if reduce is lax.pmax else np.min
    want = np.array([best(x[i]) for i in of])
    self.assertArraysEqual(maybe_jit(jit)(f)(x, F32(1.)), want)

  @red(r'^AssertionError: \s+Not equal to tolerance rtol=1e-06, '
       r'atol=1e-06\s+Mismatched elements: 1 / 1')
  @parameterized.parameters(*GROUPED)
  def test_gradient_of_a_factor_of_grouped(self, jit, mesh, reduce, groups):
    f, x, of = self.grouped(
        lambda x, w, axis, groups: w * reduce(
            x, axis, axis_index_groups=groups), mesh, groups)
    best = np.max if reduce is lax.pmax else np.min
    want = sum(best(x[i]) for i in of)
    grad = jax.grad(lambda w: jnp.sum(f(x, w)))
    self.assertAllClose(maybe_jit(jit)(grad)(F32(2.)), want)

  @parameterized.parameters((True, '1d', lax.pmax), (False, '2d', lax.pmin))
  def test_one_group_is_no_grouping(self, jit, mesh, reduce):
    f, x, _ = self.grouped(
        lambda x, w, axis, groups: w * reduce(
            x, axis, axis_index_groups=groups), mesh, 'all', P(None))
    best = np.max if reduce is lax.pmax else np.min
    self.assertArraysEqual(maybe_jit(jit)(f)(x, F32(2.)), 2 * best(x)[None])

  @red({
      '<0.9.1':
          '^ValueError: Primitive dynamic_slice requires varying manual axes '
          'to match, but got',
      '>=0.9.1': r'^ValueError: pvary should be called under jax\.shard_map\.',
  }, cases=[True])
  @parameterized.parameters(*WHERE)
  def test_constants_at_compile_time(self, jit, mesh):
    mesh = make_mesh(*MESHES[mesh])
    table = jnp.arange(10., 20.)

    def body(i):
      with jax.ensure_compile_time_eval():
        return table[i[0]] + jnp.float32(1.) * i.astype(F32)

    f = shard_map(body, mesh=mesh, in_specs=P('x'), out_specs=P('x'))
    i = np.arange(mesh.shape['x'], dtype=np.int32)
    self.assertAllClose(maybe_jit(jit)(f)(i), 10. + 2. * i.astype(F32))

  def barrier(self, traced, jit, mesh):
    """A shard_map that evaluates a barrier, traced with other types."""
    mesh = make_mesh(*MESHES[mesh])

    def body(x, w):
      both = jax.make_jaxpr(lambda a, b: lax.optimization_barrier((a, b)))
      u, v = jaxpr_as_fun(both(*([w, w] if traced == 'w' else [x[0]] * 2)))(
          x[0], w)
      return (u * v)[None], v

    f = shard_map(body, mesh=mesh, in_specs=(P('x'), P()),
                  out_specs=(P('x'), P('x') if traced == 'x' else P()))
    n = mesh.shape['x']
    x = np.linspace(.5, 2., 3 * n, dtype=F32).reshape(n, 3)
    return maybe_jit(jit)(f), x, np.array([.3, .5, .7], F32)

  @red('^ValueError: Primitive optimization_barrier requires varying manual '
       'axes to match', bases='<0.11.1')
  @parameterized.product(where=WHERE, traced=['w', 'x'])
  def test_barrier_by_operand(self, traced, where):
    # The internal checks refuse values of other types than the jaxpr's.
    with jax.enable_checks(False):
      f, x, w = self.barrier(traced, **where)
      out, same = f(x, w)
      self.assertAllClose(out, x * w)
      self.assertAllClose(same, np.tile(w, len(x)) if traced == 'x' else w)
      loss = lambda x, w: jnp.sum(jnp.sin(f(x, w)[0]))
      by_x, by_w = jax.grad(loss, (0, 1))(x, w)
      self.assertAllClose(by_x, np.cos(x * w) * w)
      self.assertAllClose(by_w, np.sum(np.cos(x * w) * x, 0), rtol=1e-5)
      _, change = jax.jvp(lambda w: f(x, w), (w,), (w * 2,))
      self.assertAllClose(change[0], x * w * 2)
      self.assertAllClose(change[1] * 1., same * 2)
