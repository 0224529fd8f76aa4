# SPDX-License-Identifier: Apache-2.0
"""vmap(..., spmd_axis_name=) of a shard_map that closes over the batch.

The oracle emulates the axis of the shard_map by a vmap on one device.
"""
import hashlib

from absl.testing import parameterized
import jax
from jax import lax
from jax._src import test_util as jtu
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
import numpy as np
from testing.red import red
from testing.sharding import CHECK, partly_manual, shard_map
from varying.testing.common import maybe_jit

jax.config.parse_flags_with_absl()

# What pristine JAX says.
JAXPR_REFUSED = '^JaxprTypeError: .*while checking jaxpr'
NOT_BROADCAST = ('^TypeError: broadcast_in_dim operand dimension sizes must '
                 'either be 1, or be equal to their')
MISMATCHED_AXES = ('^ValueError: Scan carry input and output got mismatched '
                   'varying manual axes')
UNLIKE_AXES = '^ValueError: .*varying manual axes'
UNLIKE_REPLICATION = ('^Exception: Primitive .* requires argument replication '
                      r'types to match, but got \(')
NO_VMA = r"^AssertionError: frozenset\(\{'.'\}\), raised by core\.get_vma"
OTHER_MANUAL_TYPE = r'^AssertionError: ManualAxisType\(varying=frozenset\(\{'
OTHER_AVALS = r'^AssertionError: \(ShapedArray\(float32\[4,3\]\), '
UNLIKE_OPERANDS = ('^ValueError: Primitive .*requires varying manual axes to '
                   'match, but got')
UNLIKE_OPERANDS_OF_ANY = '^ValueError: .*requires varying manual axes to match'
INCOMPATIBLE_SHAPES = ('^TypeError: mul got incompatible shapes for '
                       r'broadcasting: \(')
NOT_VERIFIED_SIZE = ('^ValueError: Cannot lower jaxpr with verifier '
                     r'errors:\s+size of operand dimension 0 \(8\) is not')

RNG = np.random.RandomState(0)
A = RNG.uniform(.5, 2., (8, 3)).astype(np.float32)
B = RNG.uniform(.5, 2., (8, 4, 3)).astype(np.float32)


def repeat(f, n, x):
  return lax.scan(lambda c, t: (f(c) + t, None), x, jnp.arange(float(n)))[0]


# Of one example: a vector that is captured, and a device's rows.
FUNCTIONS = {
    'product': lambda a, b: b * a,
    'jit': lambda a, b: jax.jit(lambda b: b * a)(b),
    'scan': lambda a, b: repeat(lambda c: c * a, 3, b),
    'while': lambda a, b: lax.while_loop(
        lambda c: lax.pmax(c.sum(), 'y') < 50., lambda c: c + a, b),
    'cond': lambda a, b: lax.cond(a[0] > 1., lambda: b * a, lambda: b),
    'vmap': lambda a, b: jax.vmap(
        lambda row, one: row * a + one)(b, jnp.ones_like(b)),
    'vmap_scan': lambda a, b: jax.vmap(
        lambda row: repeat(lambda c: c * a, 2, row))(b),
    'psum': lambda a, b: b - lax.psum(a * b.sum(), 'y'),
    'ppermute': lambda a, b: b + lax.ppermute(a * b, 'y', [(0, 1), (1, 0)]),
    'scatter': lambda a, b: jnp.zeros_like(b).at[0].set(a) + b,
    'clamp': lambda a, b: lax.clamp(.6, b, 1.5) * a,
    'grad': lambda a, b: jax.grad(lambda b: jnp.sum(jnp.sin(b) * a))(b),
    'remat': lambda a, b: jax.grad(jax.checkpoint(
        lambda b: jnp.sum(jnp.sin(b) * a)))(b),
}


# Of one example: what is mapped and captured, what is mapped, what isn't.
MEET = {
    'branch': lambda a, b, w: lax.cond(
        a[0] > 1., lambda: jnp.sin(b) * w, lambda: b + a * w),
    'scan': lambda a, b, w: repeat(lambda c: jnp.sin(c * w) + a, 2, b),
    'rule': lambda a, b, w: product()(w, b) + a * jnp.cos(w),
}


def product():
  f = jax.custom_vjp(lambda w, b: w * b)
  f.defvjp(lambda w, b: (w * b, (w, b)),
           lambda r, g: (jnp.sum(g * r[1], 0), g * r[0]))
  return f


# Programs that JAX takes by itself, and of each release the start of the MD5 of
# their lowered texts, their gradients' included.
ACCEPTED = {
    'product': lambda a, b: b * jnp.sin(a)[None] + A[0],
    'psum': lambda a, b: b - lax.psum(a.sum() * b, 'y'),
    'square': lambda a, b: b * b - lax.psum(b, 'y'),
}
TEXTS = {
    '0.5.1': {'square': '6ff6c333'},
    '0.5.2': {'square': '6ff6c333'},
    '0.5.3': {'square': 'b57fbd92'},
    '0.6.0': {'product': '580d4100', 'psum': 'a0964086',
              'square': 'b57fbd92'},
    '0.6.1': {'product': 'f96418fe', 'psum': 'a750da7f',
              'square': '50e05ebb'},
    '0.6.2': {'product': '92cc9ee7', 'psum': 'a750da7f',
              'square': '50e05ebb'},
    '0.7.0': {'product': '4558b07e', 'psum': '3e3217c0',
              'square': 'bea3b396'},
    '0.7.1': {'product': '4558b07e', 'psum': '3e3217c0',
              'square': 'bea3b396'},
    '0.7.2': {'product': '4558b07e', 'psum': '3e3217c0',
              'square': 'bea3b396'},
    '0.8.0': {'product': '4558b07e', 'psum': '12d7f835',
              'square': 'bea3b396'},
    '0.8.1': {'product': '4558b07e'},
    '0.8.2': {'product': '860f5d06'},
    '0.8.3': {'product': '860f5d06'},
    '0.9.0': {'product': '860f5d06', 'psum': '1c2f3835',
              'square': 'b44dcde8'},
    '0.9.1': {'product': '860f5d06', 'psum': '1c2f3835',
              'square': 'b44dcde8'},
    '0.9.2': {'product': '860f5d06', 'psum': '1c2f3835',
              'square': 'b44dcde8'},
    '0.10.0': {'product': '860f5d06', 'psum': '1c2f3835',
               'square': 'b44dcde8'},
    '0.10.1': {'product': 'b6893306', 'psum': '3cf083f4',
               'square': '9521e0d1'},
    '0.10.2': {'product': 'b6893306', 'psum': '3cf083f4',
               'square': '9521e0d1'},
    '0.11.0': {'product': 'ec99477f', 'psum': '0bcb7565',
               'square': 'e9a4c449'},
    '0.11.1': {'product': 'ec99477f', 'psum': '0bcb7565',
               'square': 'e9a4c449'},
    '0.11.2': {'product': 'ec99477f', 'psum': '0bcb7565',
               'square': 'e9a4c449'},
    '0.12.0.1': {'product': 'ec99477f', 'psum': 'ff1d5705',
                 'square': '60f0abae'},
}


def make_mesh(*sizes):
  return Mesh(np.array(jax.devices()[:np.prod(sizes)]).reshape(sizes),
              ('x', 'y', 'z')[:len(sizes)])


def expected(f, a, b):
  rows = jax.vmap(f, (None, 0), axis_name='y')
  return jax.jit(jax.vmap(
      lambda a, b: rows(a, b.reshape(2, 2, 3)).reshape(4, 3)))(a, b)


def closure(f, mesh, **options):
  def example(a, b):
    return shard_map(lambda b: f(a, b), mesh=mesh, in_specs=P('y'),
                     out_specs=P('y'), **options)(b)
  return example


@jtu.with_config(jax_numpy_rank_promotion='allow')
class SpmdAxisTest(jtu.JaxTestCase):

  @red(JAXPR_REFUSED, bases='<0.6',
       cases=['jit', 'scan', 'vmap_scan', 'psum', 'scatter'])
  @red(NOT_BROADCAST, bases='<0.6',
       cases=['product', 'grad', 'cond', 'vmap', 'ppermute'])
  @red(INCOMPATIBLE_SHAPES, bases='<0.6', cases=['remat'])
  @red(r'^NotImplementedError: No replication rule for while\. As a '
       'workaround, pass the `check_rep=False` argument', bases='<0.6')
  @red(NO_VMA, bases='>=0.8.2,<0.10',
       cases=['product', 'jit', 'grad', 'psum', 'ppermute'])
  @red(MISMATCHED_AXES, bases='>=0.8.2,<0.10', cases=['scan'])
  @red(UNLIKE_OPERANDS, bases='>=0.8.2,<0.10',
       cases=['cond', 'vmap', 'vmap_scan', 'scatter'])
  @red(NOT_VERIFIED_SIZE, bases='>=0.10', cases=['while'])
  @red(NOT_BROADCAST, bases='>=0.10', cases=['cond'])
  @red(r'^TypeError: .*got incompatible shapes for broadcasting: \(',
       bases='>=0.10', cases=['remat', 'scatter'])
  @red(UNLIKE_OPERANDS_OF_ANY, bases='>=0.10', cases=['vmap', 'vmap_scan'])
  @red(JAXPR_REFUSED, bases='>=0.10', cases=['scan'])
  @red(OTHER_MANUAL_TYPE, bases='>=0.10')
  @red(NO_VMA, bases='>=0.8,<0.8.2',
       cases=['product', 'jit', 'grad', 'psum', 'ppermute'])
  @red(NOT_BROADCAST, bases='>=0.6.1,<0.8', cases=['grad'])
  @red(r'^ValueError: unexpected JAX type \(e\.g\. shape/dtype\) for '
       r'argument to vjp function: got float32\[\],', bases='==0.6.0',
       cases=['grad'])
  @red(NOT_VERIFIED_SIZE, bases='>=0.6,<0.10', cases=['while'])
  @red(INCOMPATIBLE_SHAPES, bases='>=0.6,<0.10', cases=['remat'])
  @red(NOT_BROADCAST, bases='>=0.6,<0.8', cases=['product', 'ppermute'])
  @red(JAXPR_REFUSED, bases='>=0.6,<0.8', cases=['jit', 'psum'])
  @red(UNLIKE_AXES, bases='>=0.6,<0.8.2')
  @parameterized.product(name=[n for n in FUNCTIONS if n != 'clamp'])
  def test_value(self, name):
    g = jax.vmap(closure(FUNCTIONS[name], make_mesh(2, 2)), spmd_axis_name='x')
    self.assertAllClose(jax.jit(g)(A, B), expected(FUNCTIONS[name], A, B),
                        check_dtypes=False, rtol=1e-5)

  @red(UNLIKE_REPLICATION, bases='<0.6')
  @red(UNLIKE_OPERANDS, bases='>=0.8.2,<0.10')
  @red(UNLIKE_OPERANDS_OF_ANY, bases='>=0.10')
  @red(UNLIKE_AXES, bases='>=0.6,<0.8.2')
  def test_value_clamp(self):  # where nothing is captured, too
    for f in (lambda a, b: lax.clamp(.6, b, 1.5), FUNCTIONS['clamp']):
      g = jax.vmap(closure(f, make_mesh(2, 2)), spmd_axis_name='x')
      self.assertAllClose(jax.jit(g)(A, B), expected(f, A, B), rtol=1e-5)

  @red(JAXPR_REFUSED, bases='<0.6', cases=['scan'])
  @red(NOT_BROADCAST, bases='<0.6')
  @red(MISMATCHED_AXES, bases='>=0.8.2,<0.10', cases={'check': True})
  @red(NOT_BROADCAST, bases='>=0.10', cases=['product'])
  @red(JAXPR_REFUSED, bases='>=0.10')
  @red(NOT_BROADCAST, bases='>=0.6,<0.10', cases=['product'])
  @red(JAXPR_REFUSED, bases='>=0.6,<0.10', cases={'check': False})
  @red(UNLIKE_AXES, bases='>=0.6,<0.8.2')
  @parameterized.parameters(('scan', True, False), ('product', False, False),
                            ('scan', False, True))
  def test_eager_or_unchecked(self, name, check, jit):
    g = jax.vmap(closure(FUNCTIONS[name], make_mesh(2, 2), **{CHECK: check}),
                 spmd_axis_name='x')
    self.assertAllClose(maybe_jit(jit)(g)(A, B),
                        expected(FUNCTIONS[name], A, B), rtol=1e-5)

  @red(JAXPR_REFUSED, bases='<0.6')
  @red(NO_VMA, bases='>=0.8.2,<0.10')
  @red(OTHER_MANUAL_TYPE, bases='>=0.10')
  @red(NO_VMA, bases='>=0.8,<0.8.2')
  @red(UNLIKE_AXES, bases='>=0.6,<0.8')
  @parameterized.product(jit=[True, False])
  def test_without_arguments(self, jit):  # jax#17874
    mesh = make_mesh(4)
    def f(x):
      return shard_map(lambda: 2 * x, mesh=mesh, in_specs=(), out_specs=P())()
    g = maybe_jit(jit)(jax.vmap(f, spmd_axis_name='x'))
    self.assertAllClose(g(np.arange(8.)), 2 * np.arange(8.),
                        check_dtypes=False)

  @red(JAXPR_REFUSED, bases='<0.6')
  @red(NO_VMA, bases='>=0.8.2,<0.10')
  @red(r'^AssertionError: \(ShapedArray\(float32\[\]\{V:y\}\), '
       r'ShapedArray\(float32\[\]\{V:\(x,y\)\}\),', bases='>=0.10')
  @red(NO_VMA, bases='>=0.8,<0.8.2')
  @red(JAXPR_REFUSED, bases='>=0.6,<0.8')
  @parameterized.product(jit=[True, False])
  def test_vmap_captures(self, jit):  # jax#23476
    def f(offset, state):
      inner = shard_map(jax.vmap(lambda part: offset + part),
                        mesh=make_mesh(2, 2), in_specs=P('y'),
                        out_specs=P('y'))
      return inner(state)
    offset, state = np.float32([0., 1.]), np.ones((2, 4), np.float32)
    g = maybe_jit(jit)(jax.vmap(f, spmd_axis_name='x'))
    self.assertAllClose(g(offset, state), offset[:, None] + state)

  @red(JAXPR_REFUSED, bases='<0.6')
  @red(MISMATCHED_AXES, bases='>=0.8.2,<0.10')
  @red(JAXPR_REFUSED, bases='>=0.10')
  @red(UNLIKE_AXES, bases='>=0.6,<0.8.2')
  def test_partly_manual(self):
    f = FUNCTIONS['scan']
    g = jax.vmap(closure(f, make_mesh(2, 2, 2), **partly_manual('z')),
                 spmd_axis_name='x')
    self.assertAllClose(jax.jit(g)(A, B), expected(f, A, B), rtol=1e-5)

  @red(NOT_BROADCAST, bases='<0.6')
  @red(NO_VMA, bases='>=0.8.2,<0.10')
  @red(OTHER_MANUAL_TYPE, bases='>=0.10')
  @red(NO_VMA, bases='>=0.8,<0.8.2')
  @red(UNLIKE_AXES, bases='>=0.6,<0.8')
  def test_two_batches(self):
    def f(a, b, c):
      return shard_map(lambda b: b * a + c, mesh=make_mesh(2, 2, 2),
                       in_specs=P('y'), out_specs=P('y'))(b)
    g = jax.vmap(jax.vmap(f, (0, 0, None), spmd_axis_name='z'),
                 spmd_axis_name='x')
    a, b, c = A[:4].reshape(2, 2, 3), B[:4, :2].reshape(2, 2, 2, 3), A[:2, 0]
    self.assertAllClose(jax.jit(g)(a, b, c),
                        b * a[:, :, None] + c[:, None, None, None], rtol=1e-5)

  @red(JAXPR_REFUSED, bases='<0.6')
  @red(NO_VMA, bases='>=0.8.2,<0.10')
  @red(OTHER_MANUAL_TYPE, bases='>=0.10')
  @red(NO_VMA, bases='>=0.8,<0.8.2')
  @red(NOT_BROADCAST, bases='>=0.7,<0.8')
  @red(JAXPR_REFUSED, bases='>=0.6,<0.7')
  def test_gradient(self):
    mesh = make_mesh(2, 2)
    def loss(batched):
      return lambda a, b: jnp.sum(jnp.sin(batched(a, b)))
    g = loss(jax.vmap(closure(FUNCTIONS['product'], mesh), spmd_axis_name='x'))
    got = jax.jit(jax.grad(g, (0, 1)))(A, B)
    want = jax.jit(jax.grad(loss(lambda a, b: a[:, None] * b), (0, 1)))(A, B)
    self.assertAllClose(got, want, rtol=1e-5, check_dtypes=False)

  @red('^Exception: Primitive mul requires argument replication types to '
       'match, but got', bases='<0.6', cases={'axes': [(0, None), (None, 0)]})
  @red('^ValueError: Too many leaves for PyTreeDef; expected 1', bases='<0.6',
       cases=['dots_saveable', 'everything_saveable'])
  @red(r'^AssertionError: \(ShapedArray\(float32\[4,3\]\{[V:]*y\}\), '
       r'ShapedArray\(float32\[4,3\]', bases='>=0.6', cases={'axes': (0, 0)})
  @red('^ValueError: Primitive mul requires varying manual axes to match',
       bases='>=0.6')
  @parameterized.product(
      policy=[None, 'dots_saveable', 'everything_saveable'],
      axes=[(0, 0), (0, None), (None, 0)])
  def test_remat(self, policy, axes):
    # The gradient by what is mapped is of each example alone.
    save = policy and getattr(jax.checkpoint_policies, policy)
    def f(a, b):
      return jnp.sin(jnp.outer(a, b) @ b) * a + jnp.cos(b)
    def batched(f):
      return lambda a, b: jax.vmap(f, axes)(a, b)
    def sharded(a, b):
      g = shard_map(jax.checkpoint(f, policy=save), mesh=make_mesh(2, 2),
                    in_specs=(P('y'), P('y')), out_specs=P('y'))
      return jax.vmap(g, axes, spmd_axis_name='x')(a, b)
    def halves(a, b):
      return jnp.concatenate(
          [f(a[:3], b[:3]), f(a[3:], b[3:])])
    a, b = (x if d == 0 else x[0]
            for x, d in zip((B[:, 0:2].reshape(8, 6), B[:, 2:].reshape(8, 6)),
                            axes))
    grad = lambda f: jax.jit(jax.grad(
        lambda a, b: jnp.sum(jnp.cos(f(a, b))), (0, 1)))
    self.assertAllClose(grad(sharded)(a, b), grad(batched(halves))(a, b),
                        rtol=1e-4, atol=1e-5)

  @red(OTHER_AVALS, bases='<0.6')
  @red(NO_VMA, bases='>=0.8.2,<0.10')
  @red(OTHER_MANUAL_TYPE, bases='>=0.10')
  @red(NO_VMA, bases='>=0.8,<0.8.2')
  @red(UNLIKE_AXES, bases='>=0.6,<0.8')
  def test_gradient_of_two_captured(self):
    # One is mapped, the other isn't: its gradient is summed over the batch.
    w = A[0]
    def g(a, b, w):
      f = closure(lambda a, b: repeat(lambda c: c * (a * w), 2, b),
                  make_mesh(2, 2))
      return jnp.sum(jnp.sin(jax.vmap(f, spmd_axis_name='x')(a, b)))
    def unsharded(a, b, w):
      f = lambda a, b: repeat(lambda c: c * (a * w), 2, b)
      return jnp.sum(jnp.sin(jax.vmap(f)(a, b)))
    self.assertAllClose(jax.jit(jax.grad(g, (0, 1, 2)))(A, B, w),
                        jax.jit(jax.grad(unsharded, (0, 1, 2)))(A, B, w),
                        rtol=1e-4)

  @red(JAXPR_REFUSED, bases='<0.6', cases={'name': 'rule', 'jit': True})
  @red(NOT_BROADCAST, bases='<0.6', cases=['branch'])
  @red(UNLIKE_REPLICATION, bases='<0.6', cases=['rule'])
  @red(OTHER_AVALS, bases='<0.6')
  @red(NO_VMA, bases='>=0.8.2,<0.10', cases=['rule'])
  @red(UNLIKE_OPERANDS, bases='>=0.8.2,<0.10')
  @red(UNLIKE_OPERANDS_OF_ANY, bases='>=0.10', cases=['branch', 'scan'])
  @red(OTHER_MANUAL_TYPE, bases='>=0.10')
  @red(NO_VMA, bases='>=0.8,<0.8.2', cases=['rule'])
  @red(UNLIKE_AXES, bases='>=0.7,<0.8', cases={'name': 'rule', 'jit': True})
  @red(JAXPR_REFUSED, bases='>=0.6,<0.7', cases={'name': 'rule', 'jit': True})
  @red(UNLIKE_AXES, bases='>=0.6,<0.8.2')
  @parameterized.parameters(*((n, True) for n in MEET), ('rule', False))
  def test_gradient_of_what_is_not_mapped(self, name, jit):
    f, w = MEET[name], A[0]
    def example(a, b, w):
      return shard_map(lambda b, w: f(a, b, w), mesh=make_mesh(2, 2),
                       in_specs=(P('y'), P()), out_specs=P('y'))(b, w)
    def loss(batched):
      return lambda *args: jnp.sum(jnp.sin(batched(*args)))
    g = loss(jax.vmap(example, (0, 0, None), spmd_axis_name='x'))
    got = maybe_jit(jit)(jax.grad(g, (0, 1, 2)))(A, B, w)
    unsharded = loss(jax.vmap(f, (0, 0, None)))
    want = jax.jit(jax.grad(unsharded, (0, 1, 2)))(A, B, w)
    self.assertAllClose(got, want, rtol=1e-4)

  @red(UNLIKE_REPLICATION, bases='<0.6')
  @red(MISMATCHED_AXES, bases='>=0.8.2,<0.10', cases=[True])
  @red(UNLIKE_OPERANDS, bases='>=0.8.2,<0.10')
  @red(JAXPR_REFUSED, bases='>=0.10', cases=[True])
  @red(UNLIKE_AXES, bases='>=0.6,<0.8.2')
  @parameterized.product(loop=[False, True])
  def test_linear_transpose(self, loop):
    f = lambda b: repeat(lambda c: c * 2, 3, b) if loop else 2 * b
    linear = lambda b: f(b) - f(jnp.zeros_like(b))
    def example(b):
      return shard_map(linear, mesh=make_mesh(2, 2), in_specs=P('y'),
                       out_specs=P('y'))(b)
    g = jax.vmap(example, spmd_axis_name='x')
    got, = jax.linear_transpose(jax.jit(g), B)(B)
    self.assertAllClose(got, linear(B), rtol=1e-5)

  @red(JAXPR_REFUSED, bases='<0.6')
  @red('^ValueError: Axes mentioned in `manual_axis_type` field of '
       'ShapedArray should be of type', bases='>=0.10')
  @red('^ValueError: Axes mentioned in `vma` field of ShapedArray should be '
       r'of type `Manual`\. Got axis:', bases='>=0.6,<0.10')
  def test_a_device_is_given_its_part_only(self):
    mesh = make_mesh(2, 2)
    g = jax.jit(jax.vmap(closure(FUNCTIONS['product'], mesh),
                         spmd_axis_name='x'))
    a, b = (jax.device_put(v, NamedSharding(mesh, s))
            for v, s in ((A, P('x')), (B, P('x', 'y'))))
    self.assertNotIn('all-gather', g.lower(a, b).compile().as_text())

  def test_traced_once_where_nothing_is_captured(self):
    traces = []
    def f(a, b):
      traces.append(0)
      return b * a
    def example(a, b):
      return shard_map(f, mesh=make_mesh(2, 2), in_specs=(P(), P('y')),
                       out_specs=P('y'))(a, b)
    g = jax.jit(jax.vmap(example, spmd_axis_name='x'))
    self.assertAllClose(g(A, B), A[:, None] * B)
    self.assertLen(traces, 1)

  @parameterized.product(
      name=[n for n in ACCEPTED if n in TEXTS.get(jax.__version__, ACCEPTED)])
  def test_accepted_programs_keep_their_texts(self, name):
    def example(a, b):
      return shard_map(ACCEPTED[name], mesh=make_mesh(2, 2),
                       in_specs=(P(), P('y')), out_specs=P('y'))(a, b)
    g = jax.vmap(example, spmd_axis_name='x')
    gradient = jax.grad(lambda a, b: jnp.sum(g(a, b) * B), (0, 1))
    texts = [jax.jit(f).lower(A, B).as_text() for f in (g, gradient)]
    digest = hashlib.md5(''.join(texts).encode()).hexdigest()[:8]
    # A new release's are those that the pristine one gives.
    self.assertEqual(digest, TEXTS.get(jax.__version__, {}).get(name))

  @red(UNLIKE_REPLICATION, bases='<0.6')
  @red(NO_VMA, bases='>=0.8.2,<0.10')
  @red(OTHER_MANUAL_TYPE, bases='>=0.10')
  @red(NO_VMA, bases='>=0.8,<0.8.2')
  @red(JAXPR_REFUSED, bases='>=0.6,<0.8')
  def test_effects_happen_once(self):
    said = []
    def f(a, b):
      jax.debug.callback(lambda x: said.append(0), b.sum())
      return b * a
    g = jax.vmap(closure(f, make_mesh(1, 2)), spmd_axis_name='x')
    for run in (g, jax.jit(g)):
      said.clear()
      self.assertAllClose(run(A[:1], B[:1]), A[:1, None] * B[:1])
      jax.effects_barrier()
      self.assertLen(said, 2)
