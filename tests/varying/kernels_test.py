# SPDX-License-Identifier: Apache-2.0
"""What varies about a Pallas kernel's results inside shard_map (issue 15)."""
import contextlib
import dataclasses

from absl.testing import parameterized
import jax
from jax import lax
from jax._src import core
from jax._src import test_util as jtu
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas.ops.tpu import splash_attention as splash
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
from testing.red import red
from testing.sharding import partly_manual
from testing.sharding import shard_map
from varying.testing.common import axes_of
from varying.testing.common import make_mesh
from varying.testing.common import maybe_jit
from varying.testing.common import MESHES

jax.config.parse_flags_with_absl()

# What pristine JAX says.
WRONG_AXES_OF_EACH = (r"^AssertionError: Lists differ: \[frozenset\({'y'}\)\] "
                      '!= ')
VMA_NOT_GIVEN = ('^ValueError: When `check_vma=True` on `jax.shard_map`, '
                 '`vma` on')
UNLIKE_OPERANDS = ('^ValueError: Primitive mul requires varying manual axes '
                   'to match')
WRONG_AXES_EACH = r'^AssertionError: Lists differ: \[frozenset\(\)'
VMA_NOT_GIVEN_BY_RELEASE = {
    '<0.10': VMA_NOT_GIVEN,
    '>=0.10':
        '^ValueError: When `check_vma=True` on `jax.shard_map`, '
        '`manual_axis_type` on',
}

F32 = np.float32
LATER = hasattr(core, 'ManualAxisType')  # not 0.6.0
DECLARES = LATER or hasattr(jax.ShapeDtypeStruct((), F32), 'vma')
X = np.arange(16, dtype=F32).reshape(4, 4)
W = np.linspace(.5, 1.5, 4, dtype=F32)
CASES = parameterized.product(jit=[False, True], mesh=list(MESHES))


def call(kernel, out=None, interpret=True, **params):
  """A call whose result is like its last operand, or as declared."""
  def f(*args):
    shape = out or jax.ShapeDtypeStruct(args[-1].shape, args[-1].dtype)
    return pl.pallas_call(kernel, out_shape=shape, interpret=interpret,
                          **params)(*args)
  return f


def declared(*axes):
  if hasattr(jax.ShapeDtypeStruct((), F32), 'vma'):
    return jax.ShapeDtypeStruct(X.shape, X.dtype, vma=frozenset(axes))
  mat = core.ManualAxisType(varying=frozenset(axes))
  return jax.ShapeDtypeStruct(X.shape, X.dtype, manual_axis_type=mat)


def on_mesh(mesh):
  if isinstance(mesh, jax.sharding.Mesh):
    return contextlib.nullcontext()
  return jax.sharding.use_abstract_mesh(mesh)


def times(x_ref, w_ref, o_ref):
  o_ref[...] = x_ref[...] * w_ref[...]


def by_blocks(x_ref, o_ref):
  """Multiplies the n-th block by a power of two, in a loop."""
  def body(i, c):
    return 2. * c
  o_ref[...] = lax.fori_loop(0, pl.program_id(0), body, x_ref[...])


def with_index(x_ref, o_ref):
  o_ref[...] = x_ref[...] + lax.axis_index('x').astype(F32)


def copied(x_ref, o_ref, sem):
  copy = pltpu.make_async_copy(x_ref, o_ref, sem)
  copy.start()
  copy.wait()


def sent_to(device):
  """A kernel that copies its operand to the device of a number."""
  def kernel(x_ref, o_ref, *sems):
    copy = pltpu.make_async_remote_copy(x_ref, o_ref, *sems, device_id=device())
    copy.start()
    copy.wait()
  return kernel


def signalling(x_ref, o_ref, sem):
  sems = pl if hasattr(pl, 'semaphore_signal') else pltpu
  o_ref[...] = x_ref[...]
  sems.semaphore_signal(sem, 1, device_id=jnp.int32(1))
  sems.semaphore_wait(sem, 1)


def written_elsewhere(x_ref, o_ref):
  mosaic_gpu.remote_ref(o_ref, jnp.int32(1))[...] = x_ref[...]


def written_everywhere(x_ref, o_ref):
  mosaic_gpu.multicast_ref(o_ref, 'x')[...] = x_ref[...]


def random(x_ref, o_ref):
  o_ref[...] = x_ref[...] + pltpu.prng_random_bits(x_ref.shape).astype(F32)


def seeded(x_ref, o_ref):
  pltpu.prng_seed(0)
  random(x_ref, o_ref)


DMA = dict(scratch_shapes=[pltpu.SemaphoreType.DMA])
TO_NEXT = sent_to(lambda: lax.rem(lax.axis_index('x') + 1, 4))
TO_ONE = sent_to(lambda: np.int32(1))


@jax.custom_vjp
def product(x, w):
  return call(times)(jnp.broadcast_to(w, x.shape), x)


product.defvjp(
    lambda x, w: (product(x, w), (x, w)),
    lambda r, g: (product(g, r[1]), jnp.sum(call(times)(r[0], g), 0)))


@red(VMA_NOT_GIVEN_BY_RELEASE, bases='>=0.6.2')
class KernelTypesTest(jtu.JaxTestCase):

  def types(self, f, *args, in_specs, mesh=(2, 2)):
    """The axes along which each result of ``f`` varies on that mesh."""
    seen = []

    def body(*args):
      seen.extend(map(axes_of, jax.tree_util.tree_leaves(f(*args))))
      return ()

    jax.make_jaxpr(shard_map(body, mesh=make_mesh(*mesh), in_specs=in_specs,
                             out_specs=()))(*args)
    return seen

  @red('^AssertionError: "require replication" does not match "When '
       '`check_vma=True`', bases='>=0.6.2')
  # The check of types that tests turn on; accepted without it.
  @red(r'^AssertionError: \(ShapedArray\(float32\[', bases='<0.6.2')
  @parameterized.parameters((False, '1d'), (True, '2d'))
  def test_claim_of_replication_is_refused(self, jit, mesh):
    mesh = make_mesh(*MESHES[mesh])
    f = shard_map(lambda x: call(times)(x, x), mesh=mesh, in_specs=P('x'),
                  out_specs=P())
    with self.assertRaisesRegex(ValueError, 'require replication'):
      maybe_jit(jit)(f)(X)

  @red(UNLIKE_OPERANDS, bases='<0.6.2')
  @CASES
  def test_values(self, jit, mesh):
    mesh = make_mesh(*MESHES[mesh])
    rows = X.shape[0] // mesh.shape['x']
    grid = dict(grid=(rows,), in_specs=[pl.BlockSpec((1, 4), lambda i: (i, 0))],
                out_specs=pl.BlockSpec((1, 4), lambda i: (i, 0)))
    def f(x, w):
      y = call(times)(jnp.broadcast_to(w, x.shape), x)
      return y, call(by_blocks, **grid)(y)
    f = shard_map(f, mesh=mesh, in_specs=(P('x'), P()), out_specs=P('x'))
    y, z = maybe_jit(jit)(f)(X, W)
    self.assertAllClose(y, X * W)
    self.assertAllClose(z, X * W * 2.**(np.arange(4) % rows)[:, None],
                        check_dtypes=False)

  @red(UNLIKE_OPERANDS, bases='<0.6.2')
  def test_partly_manual_mesh(self):
    part = partly_manual('y', of='xy')
    f = shard_map(lambda x, w: call(times)(jnp.broadcast_to(w, x.shape), x),
                  mesh=make_mesh(2, 2), in_specs=(P('x'), P()),
                  out_specs=P('x'), **part)
    self.assertAllClose(jax.jit(f)(X, W), X * W)

  @red(WRONG_AXES_EACH, bases='<0.6.2')
  def test_union_of_the_operands(self):
    f = lambda x, y, z: (call(times)(x[0], y[0]), call(times)(z, z),
                         call(times)(z, x[0]))
    types = self.types(f, X, X, W, in_specs=(P('x'), P('y'), P()))
    self.assertEqual(types, [{'x', 'y'}, set(), {'x'}])

  @red(WRONG_AXES_EACH, bases='<0.6.2')
  def test_what_chooses_the_blocks(self):
    spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1, grid=(2,),
        in_specs=[pl.BlockSpec((1, 4), lambda i, order: (order[i], 0))],
        out_specs=pl.BlockSpec((1, 4), lambda i, order: (i, 0)))

    def kernel(order_ref, x_ref, o_ref):
      o_ref[...] = x_ref[...]

    order = np.array([1, 0, 1, 1], np.int32)
    f = call(kernel, grid_spec=spec)
    self.assertEqual(self.types(f, order, X[:2], in_specs=(P('x'), P())),
                     [{'x'}])
    f = shard_map(f, mesh=make_mesh(2), in_specs=(P('x'), P()),
                  out_specs=P('x'))
    self.assertAllClose(jax.jit(f)(order, X[:2]), X[order])

  @red(WRONG_AXES_EACH, bases='<0.6.2')
  @parameterized.named_parameters(
      ('_index', with_index, {}), ('_remote_copy', TO_NEXT, dict(
          scratch_shapes=[pltpu.SemaphoreType.DMA] * 2)),
      ('_device_id', TO_ONE, dict(
          scratch_shapes=[pltpu.SemaphoreType.DMA] * 2)),
      ('_signal', signalling, dict(
          scratch_shapes=[pltpu.SemaphoreType.REGULAR])),
      *([('_remote_ref', written_elsewhere, {}),
         ('_multicast_ref', written_everywhere, {})] if LATER else []),
      ('_random', random, {}))
  def test_kernel_that_tells_devices_apart(self, kernel, params):
    f = call(kernel, **params)
    self.assertEqual(self.types(f, X, in_specs=P()), [{'x', 'y'}])

  def test_kernel_that_only_looks_like_it(self):
    f = lambda x: (call(copied, **DMA)(x), call(seeded)(x))
    self.assertEqual(self.types(f, X, in_specs=P()), [set(), set()])

  @red('^TypeError: while_loop body function carry', bases='<0.6.2')
  @parameterized.product(jit=[False, True])
  def test_index_and_remote_copy(self, jit):
    def f(x):
      y = call(with_index)(x)
      return y, call(TO_NEXT, scratch_shapes=[pltpu.SemaphoreType.DMA] * 2)(y)
    f = shard_map(f, mesh=make_mesh(4), in_specs=P(), out_specs=P('x'))
    x = X[:1]
    y, z = maybe_jit(jit)(f)(x)
    self.assertAllClose(y, x + np.arange(4, dtype=F32)[:, None])
    self.assertAllClose(z, np.roll(y, 1, 0))

  @red({
      '<0.8': WRONG_AXES_OF_EACH,
      '>=0.8': '^AssertionError: ValueError not raised',
  }, bases='>=0.6.2')
  def test_declarations(self):
    if not DECLARES:
      self.skipTest('there are none')
    trace = lambda f: self.types(f, X, in_specs=P('x'), mesh=(1, 4))
    self.assertEqual(trace(lambda x: call(times, declared('x', 'y'))(x, x)),
                     [{'x', 'y'}])
    # Of one that may have gathered what the devices have, it is believed.
    self.assertEqual(trace(call(with_index, declared())), [set()])
    too_few = lambda x: call(times, declared('y'))(x, x)
    if jax.__version_info__ < (0, 8):  # it may be from eval_shape
      self.assertEqual(trace(too_few), [{'x', 'y'}])
    else:
      with self.assertRaisesRegex(
          ValueError, 'pallas_call: the operands vary.*result 0 must be'):
        trace(too_few)

  @red({
      '<0.6.2': r'^AssertionError: Lists differ: \[frozenset\(\)\] != ',
      '>=0.6.2,<0.7': VMA_NOT_GIVEN,
      '>=0.7': WRONG_AXES_OF_EACH,
  })
  def test_declared_by_another_value(self):
    def f(x, y):
      return call(times, jax.eval_shape(lambda: y))(x, y)
    self.assertEqual(self.types(f, X, X, in_specs=(P('x'), P('y'))),
                     [{'x', 'y'}])

  # The check of types that tests turn on; "Primitive mul requires" without
  # it.
  @red({
      '<0.10':
          r'^AssertionError: \(ShapedArray\(float32\[4,4\]\), '
          r'ShapedArray\(float32\[4,4\]\{[V:]*x\}\)',
      '>=0.10':
          r'^AssertionError: \(ShapedArray\(float32\[4,4\]\), '
          r'ShapedArray\(float32\[4,4\]\{V:x\}\),',
  }, bases='>=0.6.2')
  def test_declaration_runs(self):
    if not DECLARES:
      self.skipTest('there are none')
    f = shard_map(
        lambda x, w: call(times, declared('x'))(jnp.broadcast_to(w, x.shape),
                                                x),
        mesh=make_mesh(1), in_specs=(P('x'), P()), out_specs=P('x'))
    self.assertAllClose(jax.jit(f)(X, W), X * W)

  @red(UNLIKE_OPERANDS, bases='<0.6.2')
  @parameterized.product(jit=[False, True])
  def test_loops_and_branches(self, jit):
    def f(start, x):
      c = lax.fori_loop(0, 3, lambda i, c: call(times)(x, c), start)
      d = lax.while_loop(lambda c: c.sum() < x.sum(),
                         lambda c: call(times)(2. + 0. * c, c), start)
      e = lax.cond(lax.axis_index('x') == 0,
                   lambda: call(times)(x, start), lambda: start)
      return c, d, e

    start = np.ones((1, 4), F32)
    f = shard_map(f, mesh=make_mesh(4), in_specs=(P(), P('x')),
                  out_specs=P('x'))
    c, d, e = maybe_jit(jit)(f)(start, X)
    self.assertAllClose(c, X**3, rtol=1e-5)
    self.assertAllClose(d[:, 0], np.array([2, 8, 16, 16], F32))
    self.assertAllClose(e, np.where(np.arange(4)[:, None] == 0, X, 1.),
                        check_dtypes=False)

  def test_loop_around_a_kernel_is_traced_once(self):
    calls = []
    def f(start, x):
      def body(c, _):
        calls.append(1)
        return call(times)(x, c), None
      return lax.scan(body, start, None, length=2)[0]
    jax.make_jaxpr(shard_map(
        f, mesh=make_mesh(4), in_specs=(P(), P('x')), out_specs=P('x')))(
            np.ones((1, 4), F32), X)
    self.assertLen(calls, 1)

  @red(UNLIKE_OPERANDS, bases='<0.6.2')
  @parameterized.parameters((False, '1d'), (True, '2d'))
  def test_gradients(self, jit, mesh):
    mesh = make_mesh(*MESHES[mesh])
    loss = lambda f: lambda x, w: jnp.sum(jnp.sin(f(x, w)))
    want = jax.grad(loss(lambda x, w: x * w[None]), (0, 1))(X, W)
    sharded = dict(mesh=mesh, in_specs=(P('x'), P()))
    outside = jax.grad(loss(shard_map(product, out_specs=P('x'), **sharded)),
                       (0, 1))
    inside = shard_map(jax.grad(loss(product), (0, 1)),
                       out_specs=(P('x'), P()), **sharded)
    for grad in outside, inside:
      self.assertAllClose(maybe_jit(jit)(grad)(X, W), want, rtol=1e-5)

  @red(UNLIKE_OPERANDS, bases='<0.6.2')
  def test_forward_derivative_and_vmap(self):
    f = lambda x, w: call(times)(jnp.broadcast_to(w, x.shape), x)
    f = shard_map(jax.vmap(f, (0, None)), mesh=make_mesh(2, 2),
                  in_specs=(P('x'), P()), out_specs=P('x'))
    y, t = jax.jit(lambda x, w: jax.jvp(f, (x, w), (x, w)))(X, W)
    self.assertAllClose(y, X * W)
    self.assertAllClose(t, 2 * X * W)

  def test_interpreted_as_on_tpu(self):
    if not hasattr(pltpu, 'InterpretParams'):
      self.skipTest('another interpreter')
    f = shard_map(
        lambda x, w: call(times, interpret=pltpu.InterpretParams())(
            jnp.broadcast_to(w, x.shape), x),
        mesh=make_mesh(2), in_specs=(P('x'), P()), out_specs=P('x'))
    self.assertAllClose(jax.jit(f)(X, W), X * W)

  @red({
      '<0.6.1':
          '^NotImplementedError: Unimplemented primitive in Pallas ... '
          'lowering: pvary',
      '>=0.6.1':
          '^NotImplementedError: Unimplemented primitive in Pallas ... '
          'lowering.*: pvary',
  }, bases='<0.6.2')
  @parameterized.product(platform=['tpu', 'cuda'])
  def test_lowered_for(self, platform):
    mesh = make_mesh(2)
    if platform == 'cuda' and LATER:  # asks what the device is
      fields = dataclasses.fields(jax.sharding.AbstractDevice)
      device = jax.sharding.AbstractDevice(  # its platform since 0.10.1
          *('NVIDIA H100 80GB HBM3', 132, 'cuda')[:len(fields)])
      mesh = jax.sharding.AbstractMesh(
          (2,), ('x',), (jax.sharding.AxisType.Auto,), abstract_device=device)

    def lower(out_specs):
      f = shard_map(
          lambda x, w: call(times, interpret=False)(
              jnp.broadcast_to(w, x.shape), x),
          mesh=mesh, in_specs=(P('x'), P()), out_specs=out_specs)
      with on_mesh(mesh):
        traced = jax.jit(f).trace(np.ones((16, 128), F32), np.ones(128, F32))
        return traced.lower(lowering_platforms=(platform,)).as_text()

    self.assertIn('custom_call', lower(P('x')))
    with self.assertRaisesRegex(ValueError, 'require replication'):
      lower(P())


class SplashAttentionTest(jtu.JaxTestCase):

  @red(VMA_NOT_GIVEN_BY_RELEASE, bases='>=0.6.2')
  @red('^ValueError: Primitive dot_general requires varying manual axes to '
       'match', bases='<0.6.2')
  def test_keys_that_all_devices_share(self):
    mask = splash.CausalMask((128, 128))
    sizes = [f'block_{n}' for n in (
        'q', 'kv', 'kv_compute', 'q_dkv', 'kv_dkv', 'kv_dkv_compute', 'q_dq',
        'kv_dq')]
    kernel = splash.make_splash_mha(
        splash.MultiHeadMask([mask]), head_shards=1, q_seq_shards=1,
        block_sizes=splash.BlockSizes(**dict.fromkeys(sizes, 128)),
        interpret=True)
    f = shard_map(lambda q, k, v: kernel(q[0], k, v)[None], mesh=make_mesh(2),
                  in_specs=(P('x'), P(), P()), out_specs=P('x'))

    def plain(q, k, v):
      s = jnp.einsum('bhqd,hkd->bhqk', q, k, precision='highest')
      p = jax.nn.softmax(jnp.where(np.tri(128, dtype=bool), s, -jnp.inf))
      return jnp.einsum('bhqk,hkd->bhqd', p, v, precision='highest')

    rng = np.random.RandomState(0)
    q = rng.normal(size=(2, 1, 128, 128)).astype(F32) / 16
    k, v = rng.normal(size=(2, 1, 128, 128)).astype(F32)
    grads = lambda f: jax.jit(jax.value_and_grad(
        lambda *args: jnp.sum(f(*args)**2), (0, 1, 2)))
    self.assertAllClose(grads(f)(q, k, v), grads(plain)(q, k, v), atol=1e-3,
                        rtol=1e-3)
