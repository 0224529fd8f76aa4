# SPDX-License-Identifier: Apache-2.0
"""Kinds of faults that types let through, put back one at a time.

Mend corrected types that said that a value is the same on all devices and was
not. Each test takes such a correction away again: the program is accepted, its
devices differ, and jax.debug.check_replication must name the operation. With
the check of ``shard_map`` off, a wrong declaration is found as well: by what
``out_specs`` promise.
"""
import contextlib
import faulthandler
import types
import unittest
from unittest import mock
import warnings

from absl.testing import parameterized
from sanitizer.testing.apart import mapped, tell_apart, XY
import jax
from jax import lax
from jax._src import test_util as jtu
from jax._src.interpreters import mlir
from jax._src.mend import manual_axes
from jax._src.sanitizer import axes as axes_lib
from jax._src.sanitizer import digests
from jax.experimental import pallas as pl
from jax.extend import core as extend_core
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
import numpy as np
from testing.sharding import (
    AxisType, eight_devices, partly_manual, typed_mesh, UNCHECKED)

jax.config.parse_flags_with_absl()
eight_devices()

TYPED = bool(manual_axes.AXES_OF_ARRAY)  # types hold axes, from 0.6.0 on


def like(x):
  return jax.ShapeDtypeStruct(x.shape, x.dtype)


def pure(x):
  return jax.pure_callback(lambda x: np.asarray(x) + 1, like(x), x)


def foreign(x):
  """A Cholesky decomposition of the numbers, by LAPACK."""
  x = jnp.abs(x).reshape(1, 1) + 1
  info = jax.ShapeDtypeStruct((), np.int32)
  call = jax.ffi.ffi_call('lapack_spotrf_ffi', [like(x), info])
  return call(x, uplo=np.uint8(ord('L')))[0].reshape(())


def kernel(x):
  def body(x, out):
    out[...] = x[...] * 3
  return pl.pallas_call(body, out_shape=like(x), interpret=True)(x)


def bits(x):
  key = (x * 0 + lax.axis_index('x') + jnp.arange(4.)).astype(jnp.uint32)
  return lax.rng_bit_generator(key, (3,))[1]


def within_groups(x):
  return lax.pmax(x, 'x', axis_index_groups=[[0], [1]])


KINDS = {'pure_callback': pure, 'ffi_call': foreign, 'pallas_call': kernel,
         'rng_bit_generator': bits, 'pmax': within_groups}


def primitive_in(jaxpr, name):
  """The primitive of that name that a jaxpr has somewhere."""
  for eqn in jaxpr.eqns:
    if axes_lib.name_of(eqn.primitive) == name:
      return eqn.primitive
    for inner in axes_lib.inner(eqn):
      found = primitive_in(inner, name)
      if found is not None:
        return found
  return None


def same_everywhere(primitive):
  """Types that say that a primitive's results are the same on all devices."""
  rule = primitive.abstract_eval
  def typed(*avals, **params):
    outs, effects = rule(*avals, **params)
    strip = lambda a: manual_axes.with_axes(a, frozenset())
    return (list(map(strip, outs)) if primitive.multiple_results
            else strip(outs)), effects
  return mock.patch.object(primitive, 'abstract_eval', typed)


@contextlib.contextmanager
def not_summed():
  """Sums over devices are lowered as what each device has of them."""
  with mock.patch.dict(mlir._lowerings):  # all of it is put back
    for primitive in list(mlir._lowerings):
      if primitive.name in ('psum', 'psum2', 'psum_invariant'):
        mlir.register_lowering(
            primitive, lambda ctx, *operands, **params: list(operands))
    yield


# JAX's own checks, from Mend's types on, would find them while tracing.
@jtu.with_config(jax_numpy_rank_promotion='allow', jax_enable_checks=False,
                 jax_numpy_dtype_promotion='standard')
class ReplicationSoundTest(jtu.JaxTestCase):

  def setUp(self):
    super().setUp()
    faulthandler.dump_traceback_later(400, exit=True)
    self.addCleanup(faulthandler.cancel_dump_traceback_later)
    self.mesh = Mesh(np.array(jax.devices()[:2]), ('x',))
    jnp.linalg.cholesky(jnp.eye(1))  # starts LAPACK
    jax.clear_caches()  # of types
    self.addCleanup(jax.clear_caches)

  def said(self, f, *args):
    with self.assertRaises(jax.debug.ReplicationError) as e:
      with warnings.catch_warnings():
        warnings.simplefilter('ignore', UserWarning)
        jax.debug.check_replication(f)(*args)
    return str(e.exception)

  def mapped(self, f, spec=P(), **options):
    return mapped(lambda x: f(x[0]), self.mesh, P('x'), spec, **options)

  @unittest.skipUnless(TYPED, 'types hold no axes')
  @parameterized.parameters(*KINDS)
  def test_results_typed_as_the_same(self, name):
    x = jnp.arange(2.)
    f = KINDS[name]
    trace = jax.make_jaxpr(self.mapped(lambda x: f(x)[None], P('x')))
    primitive = primitive_in(trace(x).jaxpr, name)
    jax.clear_caches()
    with same_everywhere(primitive):
      said = self.said(self.mapped(f), x)
    self.assertStartsWith(
        said, f'jax.debug.check_replication: `{name}`')
    self.assertIn("should be the same along 'x' and is not", said)
    self.assertIn("vary along 'x' by their types", said)

  @parameterized.parameters(*KINDS)
  def test_wrong_out_specs_without_types(self, name):
    said = self.said(self.mapped(KINDS[name], **UNCHECKED), jnp.arange(2.))
    self.assertIn("should be the same along 'x' and is not", said)
    self.assertRegex(said, r'result 0 of the shard_map, whose out_spec is P')

  @unittest.skipUnless(TYPED, 'types hold no axes')
  @parameterized.parameters('while', 'cond')
  def test_predicates_that_part_nobody(self, name):
    from jax._src.varying import types as vt
    def f(x):
      if name == 'while':
        return lax.while_loop(lambda c: c[0] < x, lambda c: (
            c[0] + 1., c[1] * 2), (0., 1.))[1]
      return lax.cond(x > 0, lambda: 5., lambda: 4.)
    with mock.patch.object(vt, 'nontrivial', lambda axes: frozenset()):
      said = self.said(self.mapped(f), jnp.arange(2.))
    self.assertStartsWith(said, f'jax.debug.check_replication: `{name}`')
    self.assertIn("should be the same along 'x' and is not", said)

  @unittest.skipUnless(TYPED, 'types hold no axes')
  def test_predicates_that_are_taken_to_agree(self):
    from jax._src.varying import agreement
    from jax._src.varying import requirements
    def f(x):
      return lax.cond(x > 0, lambda: x + lax.psum(x, 'x'), lambda: x)[None]
    with mock.patch.object(agreement, 'differs', lambda x: frozenset()):
      with mock.patch.object(requirements, 'of_jaxpr', lambda jaxpr: ()):
        said = self.said(self.mapped(f, P('x')), jnp.arange(2.))
    self.assertStartsWith(
        said, 'jax.debug.check_replication: a predicate that is taken to agree '
        "should be the same along 'x' and is not.")
    self.assertIn('lax.cond(x > 0', said)
    self.assertIn('0 on x=0; 1 on x=1', said)

  def test_sums_of_a_backward_pass_that_are_not_made(self):
    f = mapped(lambda w, x: w.sum() * x, self.mesh, (P(), P('x')), P('x'))
    gradient = jax.grad(lambda w, x: f(w, x).sum())
    w, x = jnp.ones(2), jnp.arange(4.)
    self.assertAllClose(jax.debug.check_replication(gradient)(w, x),
                        np.full(2, 6, np.float32))
    jax.clear_caches()
    with not_summed():
      said = self.said(gradient, w, x)
    self.assertStartsWith(said, 'jax.debug.check_replication: `psum'
                          + ('_invariant`' if TYPED else '2`'))
    self.assertIn('w.sum() * x', said)  # the line that is differentiated
    self.assertIn('1 on x=0; 5 on x=1', said)

  # Before 0.9.1 types of refs hold no axes; 0.12 has a check of its own.
  @unittest.skipUnless((0, 9, 1) <= jax.__version_info__ < (0, 12),
                       'a ref is not taken for what its index varies over')
  def test_refs_written_where_an_index_varies(self):
    from jax._src.varying import types as vt
    from jax._src.varying.rules import refs
    def f(x):
      ref = jax.new_ref(jnp.arange(3.))
      ref[lax.axis_index('x')] = 7.  # each device writes a place of its own
      return ref[...].sum()
    unchecked = {**vars(vt), 'checking': lambda: False}
    with mock.patch.object(refs, 'vt', types.SimpleNamespace(**unchecked)):
      said = self.said(self.mapped(f), jnp.arange(2.))
    # What the write gives back differs already, where it isn't left out.
    self.assertRegex(said, r"^jax\.debug\.check_replication: `(swap|get)` "
                     "should be the same along 'x' and is not")


@jtu.with_config(jax_enable_checks=False)  # of names that nothing binds
class InferenceTest(jtu.JaxTestCase):

  @parameterized.parameters('jit', 'cond', 'while', 'twice')
  def test_collectives_deep_in_what_no_rule_knows(self, how):
    opaque_p = extend_core.Primitive('opaque')
    opaque_p.def_abstract_eval(lambda x, body: x)
    def opaque(f):
      return lambda x: opaque_p.bind(x, body=jax.make_jaxpr(
          f, axis_env=[('x', 2)])(x))
    wrap = {
        'jit': jax.jit, 'twice': lambda f: opaque(jax.jit(f)),
        'cond': lambda f: lambda x: lax.cond(x > 0, jax.jit(f), f, x),
        'while': lambda f: lambda x: lax.while_loop(
            lambda x: jax.jit(f)(x) < 1, f, x)}[how]
    for f, known in ((lambda x: x * lax.axis_index('x').astype(x.dtype), False),
                     (lambda x: lax.psum(x, 'x'), False), (jnp.sin, True)):
      eqn, = jax.make_jaxpr(opaque(wrap(f)))(1.).eqns
      noted = []
      axes, = axes_lib.of_results(
          eqn, [frozenset()], axes_lib.setting(frozenset('x'), noted.append))
      self.assertEqual(axes, frozenset() if known else frozenset('x'))
      self.assertEqual(noted, [] if known else [eqn])


def arrangements(draw):
  """Pairs of arrays of the same numbers in different places, by kind."""
  n = 32
  signs = np.repeat([1, -1], n // 2)
  hot = np.eye(n, dtype=int)
  mask = draw.random((100, n)) < .5
  moved = [draw.permutation(n) for _ in range(100)]
  swapped = lambda v, i, j: np.where(hot[i] == 1, v[j],
                                     np.where(hot[j] == 1, v[i], v))
  ends = [draw.choice(n, 2, replace=False) for _ in range(100)]
  return {
      'permutations': [(np.arange(n), m) for m in moved],
      'two of them swapped': [(m, swapped(m, *e))
                              for m, e in zip(moved, ends)],
      'one-hot': [(hot[i], hot[i - d]) for i in range(n) for d in (1, 2, 5)],
      'signs': [(v, -v) for v in map(draw.permutation, [signs] * 100)],
      'more signs': [(signs[m], signs[k]) for m, k in zip(moved, moved[1:])],
      'masks': [(m, ~m) for m in mask],
      'reversed': [(m, m[::-1]) for m in moved]}


class DigestTest(jtu.JaxTestCase):

  @parameterized.parameters(
      'bool', 'int4', 'int8', 'uint16', 'int32', 'int64', 'bfloat16', 'float16',
      'float8_e4m3fn', 'float32', 'float64', 'complex64')
  def test_places_are_told_apart(self, dtype):
    many = jax.jit(jax.vmap(digests.digest))
    with jtu.global_config_context(jax_enable_x64=True):
      for kind, pairs in arrangements(np.random.default_rng(0)).items():
        if dtype == 'bool':
          pairs = [(a > a.mean(), b > a.mean()) for a, b in pairs]
        sides = [jnp.asarray(np.stack(s)).astype(dtype) for s in zip(*pairs)]
        differ = np.any(np.asarray(sides[0] != sides[1]), axis=1)
        self.assertGreater(differ.sum(), len(pairs) * .4, kind)
        one, other = (np.asarray(many(s)) for s in sides)
        # For as few as these either of the two sums would do.
        self.assertArraysEqual(one != other, np.stack([differ, differ], 1))
        self.assertArraysEqual(np.asarray(many(sides[0].copy())), one)

  def test_words_of_one_number_and_of_others(self):
    def digest(x):
      return tuple(np.asarray(digests.digest(jnp.asarray(x))).tolist())
    bits = np.array([[1, 2], [3, 4]], np.uint32)
    with jtu.global_config_context(jax_enable_x64=True):
      found = {digest(x.ravel().view(np.int64)) for x in (
          bits, bits[::-1], bits[:, ::-1], bits.T, bits[::-1].T)}
      self.assertLen(found, 5)
      z = np.array([1 + 2j, 2 + 1j, 3 + 3j])
      found = {digest(x) for x in (z, z[::-1], z.real + 1j * z.imag[::-1],
                                   z.imag + 1j * z.real)}
      self.assertLen(found, 4)
    keys = jax.random.split(jax.random.key(0), 3)
    self.assertLen({digest(keys), digest(keys[::-1]), digest(keys[:2])}, 3)

  def test_every_mask(self):
    masks = (np.arange(2**12)[:, None] >> np.arange(12)) % 2 == 1
    for values in (masks, masks * 2. - 1, masks.reshape(-1, 3, 4) * 5):
      found = np.asarray(jax.vmap(digests.digest)(jnp.asarray(values)))
      self.assertLen(np.unique(found[:, 0]), 2**12)
      self.assertLen(np.unique(found[:, 1]), 2**12)


@jtu.with_config(jax_numpy_rank_promotion='allow')
class NestedTest(jtu.JaxTestCase):

  @parameterized.product(sizes=[(1, 2), (2, 1), (2, 2)], right=[True, False])
  def test_axes_of_one_device(self, sizes, right):
    if not hasattr(jax, 'shard_map'):
      self.skipTest('shard_maps of a partly manual mesh nest from 0.6.1 on')
    def f(a):
      s = lax.psum(a.sum(), 'y')
      s = s if right else tell_apart(s, 'y')
      jax.debug.callback(lambda s: None, s)
      return s[None]
    inner = jax.shard_map(f, axis_names={'y'}, in_specs=P('y'), out_specs=P())
    outer = jax.shard_map(
        lambda a: inner(a), axis_names={'x'}, in_specs=P('x'), out_specs=P('x'),
        mesh=Mesh(np.array(jax.devices()[:sizes[0] * sizes[1]]).reshape(sizes),
                  XY))
    check = jax.debug.check_replication(jax.jit(outer))
    a = jnp.arange(8.)
    if right or sizes[1] == 1:
      self.assertAllClose(check(a), a.reshape(sizes[0], -1).sum(1))
    else:
      with self.assertRaisesRegex(jax.debug.ReplicationError, '`tell_apart`'):
        check(a)


@jtu.with_config(jax_numpy_rank_promotion='allow')
class ExplicitMeshTest(jtu.JaxTestCase):

  def setUp(self):
    super().setUp()
    self.mesh = typed_mesh((2, 2), XY, (AxisType.Explicit,) * 2)
    self.x = jax.device_put(jnp.arange(16.).reshape(4, 4),
                            NamedSharding(self.mesh, P(*XY)))

  @parameterized.parameters(False, True)
  def test_found(self, jit):
    def f(a):
      y = lax.psum(a.sum(), XY)
      return tell_apart(y, 'y') * 2
    f = mapped(f, self.mesh, P(*XY))
    with self.assertRaisesRegex(
        jax.debug.ReplicationError,
        r"`tell_apart` should be the same along 'y' and is not[^$]*"
        r'tell_apart\('):
      jax.debug.check_replication(jax.jit(f) if jit else f)(self.x)

  def test_places_within_a_part_that_is_sharded_by_type(self):
    if not hasattr(jax, 'shard_map'):
      self.skipTest('a partly manual mesh has no types')
    a = jax.device_put(jnp.array([1., -1., 1., -1.]),
                       NamedSharding(self.mesh, P('y')))
    f = mapped(lambda a: tell_apart(a, 'x', jnp.array([-2, 2, -2, 2])),
               self.mesh, P(), **partly_manual('y', of='xy'))
    with self.assertRaisesRegex(jax.debug.ReplicationError, '`tell_apart`'):
      jax.debug.check_replication(f)(a)

  def test_right(self):
    def f(a):
      c, _ = lax.scan(lambda c, r: (c + r.sum(), None), 0., a)
      return lax.psum(c, XY), a * 2
    f = mapped(f, self.mesh, P(*XY), (P(), P(*XY)))
    total, twice = jax.debug.check_replication(f)(self.x)
    self.assertEqual(total, 120)
    self.assertAllClose(np.asarray(twice), np.arange(16.).reshape(4, 4) * 2,
                        check_dtypes=False)
    self.assertEqual(twice.sharding.spec, P(*XY))
