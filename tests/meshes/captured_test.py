# SPDX-License-Identifier: Apache-2.0
"""Arrays over Explicit mesh axes that a shard_map captures."""
from absl.testing import parameterized
import jax
from jax import lax
from jax._src import config
from jax._src import test_util as jtu
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
import numpy as np
from testing.red import red
from testing.sharding import AxisType, partly_manual, shard_map, typed_mesh
from varying.testing import common

config.parse_flags_with_absl()

# What pristine JAX says.
CLOSED_OVER_EXPLICIT = ('^NotImplementedError: Closing over inputs to '
                        'shard_map where the input is sharded on `Explicit` '
                        'axes is')
OTHER_CONTEXT_MESH = ('^ValueError: For primitive .*, context mesh '
                      r'AbstractMesh\(')
OTHER_KIND = (r'^ValueError: .*\), device_kind=cpu, num_cores=None\) should '
              'match the')
OTHER_KIND_ON_CPU = (r'^ValueError: .*\), device_kind=cpu, num_cores=None, '
                     r'platform=cpu\) should match the')
OTHER_SCALAR_COTANGENT = (r'^ValueError: unexpected JAX type \(e\.g\. '
                          r'shape/dtype\) for argument to vjp function: got '
                          r'float32\[\],')
OTHER_ABSTRACT_MESH = (r'^ValueError: Context mesh AbstractMesh\(.* should '
                       'match the mesh of sharding')
OTHER_KIND_SINCE_0_9_1 = {
    '>=0.9.1,<0.10.1': OTHER_KIND,
    '>=0.10.1': OTHER_KIND_ON_CPU,
}
OTHER_KIND_SINCE_0_8 = {
    '>=0.8,<0.10.1': OTHER_KIND,
    '>=0.10.1': OTHER_KIND_ON_CPU,
}

set_mesh = getattr(jax, 'set_mesh', None) or jax.sharding.use_mesh
X = np.arange(1., 9., dtype=np.float32).reshape(8, 1)
W = np.linspace(1., 2., 8, dtype=np.float32)
MESHES = {'1d': ((4,), AxisType.Explicit), '2d': ((2, 2), AxisType.Explicit),
          'partly': ((2, 2), AxisType.Explicit),
          'partly auto': ((2, 2), AxisType.Auto)}


def plain(x, w):
  return x * jnp.sum(w * w) + jnp.mean(w) * w.size


def indexing(x, w):
  return x * w[3] + w[-1] + jnp.sum(w[2:5]) + jnp.zeros_like(w).sum()


def through_jit(x, w):
  return jax.jit(lambda x: x * jnp.sum(w))(x)


def scan(x, w):
  return lax.scan(lambda c, _: (c * jnp.sum(w), None), x, None, length=2)[0]


def cond(x, w):
  return lax.cond(x.size > 0, lambda x: x * jnp.max(w), lambda x: x, x)


def checkpoint(x, w):
  return jax.checkpoint(lambda x: jnp.sin(x) * jnp.sum(w * w))(x)


def custom_vjp(x, w):
  f = jax.custom_vjp(lambda x: x * 2)
  f.defvjp(lambda x: (x * 2, None), lambda _, ct: (ct * jnp.sum(w),))
  return x * jax.grad(lambda x: jnp.sum(f(x)))(x) + jax.vmap(
      lambda row: row + w[0])(x)


def primitives(x, w):
  return lax.mul(x, lax.broadcast(lax.dot(w, w), x.shape))


def indices(x, w):
  return x * jnp.sum(w[np.array([1, 3])]) + w[-1]


def written(x, w):
  return x * jnp.sum(w.at[1].set(2.) ** 2) + jnp.sum(w.at[:3].add(w[5]))


def filled(x, w):
  return x * jnp.sum(w * jnp.ones_like(w)) + jnp.sum(jnp.full_like(w, 2.))


PROGRAMS = [plain, indexing, through_jit, scan, cond, checkpoint, custom_vjp,
            primitives]
NAMED = parameterized.named_parameters((f'_{p.__name__}', p) for p in PROGRAMS)
DIFFERENTIABLE = [plain, indexing, scan, checkpoint]


@jax.custom_vjp
def doubled(w):
  return w * 2


doubled.defvjp(lambda w: (w * 2, None), lambda _, ct: (ct * 2,))
GIVEN = dict(custom_jvp=jax.nn.relu, custom_vjp=doubled,
             checkpoint=jax.checkpoint(jnp.sin), vmap=jax.vmap(jnp.sin),
             checkpoint_of_vmap=jax.checkpoint(jax.vmap(jax.nn.silu)))
# Programs whose functions read an array's type, and meshes of Auto axes, with
# whether only the first is made manual.
READING = [indexing, indices, written, filled]
AUTO_MESHES = {'1d': ((4,), False), 'one': ((1, 4), False),
               'partly': ((2, 2), True)}


def oracle(program, x, w):
  if program is custom_vjp:
    return x * jnp.sum(w) + x + w[0]
  return jax.jit(program)(x, w)


def mesh_of(kind):
  sizes, second = MESHES[kind]
  names = ('x', 'y')[:len(sizes)]
  return typed_mesh(sizes, names, (AxisType.Explicit, second)[:len(sizes)])


def mapped(program, kind, mesh):
  """A function of x and w, whose shard_map gets x and captures w."""
  partly = partly_manual('y', of='xy')
  manual = partly if kind.startswith('partly') else {}
  def f(x, w):
    return shard_map(lambda x: program(x, w), mesh=mesh, in_specs=P('x'),
                     out_specs=P('x'), **manual)(x)
  return f


def placed(mesh, spec):
  put = lambda x, spec: jax.device_put(x, NamedSharding(mesh, spec))
  return put(X, P('x')), put(W, spec)


class CapturedTest(jtu.JaxTestCase):

  def check(self, got, want):
    self.assertAllClose(np.asarray(got), np.asarray(want), rtol=1e-4)

  @red(OTHER_KIND_SINCE_0_9_1, cases=['indexing'])
  @red(CLOSED_OVER_EXPLICIT, bases='>=0.6.2')
  @red(OTHER_SCALAR_COTANGENT, bases='==0.6.0', cases=['custom_vjp'],
       also='varying')
  @red(OTHER_CONTEXT_MESH, bases='<0.6.2')
  @NAMED
  def test_constant(self, program):
    mesh = mesh_of('1d')
    x, w = placed(mesh, P('x'))
    f = mapped(program, '1d', mesh)
    self.check(jax.jit(lambda x: f(x, w))(x), oracle(program, X, W))

  @red(OTHER_CONTEXT_MESH, bases='>=0.6.2,<0.8')
  @red(OTHER_KIND_SINCE_0_8)
  @red(OTHER_SCALAR_COTANGENT, bases='==0.6.0', cases=['custom_vjp'],
       also='varying')
  @red(OTHER_CONTEXT_MESH, bases='<0.6.2')
  @NAMED
  def test_traced(self, program):
    mesh = mesh_of('partly')
    with set_mesh(mesh):
      x, w = placed(mesh, P('x'))
      got = jax.jit(mapped(program, 'partly', mesh))(x, w)
    self.check(got, oracle(program, X, W))

  @red(OTHER_CONTEXT_MESH, bases='>=0.6.2,<0.8', cases=['partly'])
  @red(OTHER_KIND_SINCE_0_8, cases=['partly'])
  @red(CLOSED_OVER_EXPLICIT, bases='>=0.6.2')
  @red(OTHER_CONTEXT_MESH, bases='<0.6.2')
  @jtu.sample_product(kind=list(MESHES), spec=[P(), P('x'), P(('y', 'x'))])
  def test_layouts(self, kind, spec):
    mesh = mesh_of(kind)
    explicit = ['x', 'y'] if kind in ('2d', 'partly') else ['x']
    if any(n not in explicit for n in jax.tree.leaves(tuple(spec))):
      spec = P('x')
    x, w = placed(mesh, spec)
    got = jax.jit(mapped(plain, kind, mesh))(x, w)
    self.check(got, oracle(plain, X, W))

  @red(OTHER_KIND_SINCE_0_9_1, cases=['indexing'])
  @red(CLOSED_OVER_EXPLICIT, bases='>=0.6.2')
  @red(OTHER_CONTEXT_MESH, bases='<0.6.2', cases=['plain'])
  @red(r'^ValueError: For primitive gather, context mesh AbstractMesh\(',
       bases='>=0.6.0,<0.6.2')
  @parameterized.parameters((indexing, P('x')), (plain, P()))
  def test_eager(self, program, spec):
    mesh = mesh_of('1d')
    x, w = placed(mesh, spec)
    f = mapped(program, '1d', mesh)
    for _ in range(2):  # what the first call traced isn't left over
      self.check(f(x, w), oracle(program, X, W))

  # Up to 0.5.3 x[i] beside Explicit axes has no gradient, of arguments too.
  @red(OTHER_CONTEXT_MESH, bases='>=0.6.2,<0.8', cases={'kind': 'partly'})
  @red(OTHER_KIND_SINCE_0_8, cases={'kind': 'partly'})
  @red(CLOSED_OVER_EXPLICIT, bases='>=0.6.2')
  @red(OTHER_CONTEXT_MESH, bases='<0.6.2')
  @parameterized.parameters(
      (p, k) for p in DIFFERENTIABLE for k in ('1d', 'partly')
      if (jax.__version_info__ >= (0, 6) or (p, k) != (indexing, 'partly')))
  def test_gradient(self, program, kind):
    mesh = mesh_of(kind)
    with set_mesh(mesh):
      x, w = placed(mesh, P('x'))
      f = mapped(program, kind, mesh)
      got = jax.jit(jax.grad(lambda w: jnp.sum(f(x, w))))(w)
    self.assertEqual(got.sharding.spec, P('x'))
    want = jax.jit(jax.grad(lambda w: jnp.sum(program(X, w))))(W)
    self.check(got, want)

  @red(CLOSED_OVER_EXPLICIT, bases='>=0.6.2')
  @red(OTHER_CONTEXT_MESH, bases='<0.6.2')
  def test_constant_of_jit_over_auto_axes(self):
    # The shard_map's own mesh has no Explicit axes; the array's has.
    explicit = typed_mesh((4,), ('x',), (AxisType.Explicit,))
    auto = typed_mesh((4,), ('x',), (AxisType.Auto,))
    w = jax.device_put(W, NamedSharding(explicit, P('x')))
    f = shard_map(lambda x: x * jax.jit(jnp.sum)(w), mesh=auto,
                  in_specs=P('x'), out_specs=P('x'))
    np.testing.assert_allclose(jax.jit(f)(X), X * W.sum(), rtol=1e-6)

  def test_guard_text_over_auto_axes_stays(self):
    if jax.__version_info__ != (0, 7, 0):
      self.skipTest('results are lowered as they were but there')
    mesh = typed_mesh((2, 2, 2), ('x', 'y', 'z'), (AxisType.Auto,) * 3)
    inner = shard_map(lambda a: jnp.sin(a) * 2, in_specs=P('y'),
                      out_specs=P('y'), axis_names={'y'})
    f = shard_map(lambda a: inner(a), mesh=mesh, in_specs=P('x'),
                  out_specs=P('x'), axis_names={'x'})
    text = jax.jit(f).lower(jnp.ones((8, 8))).as_text()
    self.assertEqual(text.count('sdy.sharding_constraint'), 3)

  @jtu.sample_product(kind=['1d', 'partly'], jit=[True, False])
  def test_guard_evaluated_while_tracing(self, kind, jit):
    mesh = mesh_of(kind)
    x, w = placed(mesh, P('x'))
    def program(x, w):
      with jax.ensure_compile_time_eval():
        total = jnp.sum(w)
      return x * total
    f = lambda x: mapped(program, kind, mesh)(x, w)
    # Not a RecursionError.
    with self.assertRaises((NotImplementedError, ValueError)):
      (jax.jit(f) if jit else f)(x)

  @red(CLOSED_OVER_EXPLICIT, bases='>=0.6.2')
  @red(OTHER_CONTEXT_MESH, bases='<0.6.2')
  def test_one_jit_in_two_shard_maps(self):
    mesh = mesh_of('1d')
    x, w = placed(mesh, P('x'))
    @jax.jit
    def f(x, w):
      layer = jax.jit(lambda x: x * jnp.sum(w))
      g = mapped(lambda x, _: layer(x), '1d', mesh)
      return g(g(x, w), w)
    self.check(f(x, w), X * np.sum(W) ** 2)

  @red(CLOSED_OVER_EXPLICIT, bases='>=0.6.2')
  @red(OTHER_CONTEXT_MESH, bases='<0.6.2')
  @jtu.sample_product(spec=[P(), P('x')])
  def test_called_outside_first(self, spec):
    # jit keeps what it inferred outside, under the mesh of that context.
    mesh = mesh_of('1d')
    x, w = placed(mesh, spec)
    layer = jax.jit(lambda x: x * jnp.sum(w))
    self.check(layer(x), X * np.sum(W))
    f = mapped(lambda x, _: layer(x), '1d', mesh)
    for call in f, jax.jit(f):
      self.check(call(x, w), X * np.sum(W))

  @red('^AssertionError: .as an operand. does not match', bases='>=0.6.2')
  @red(OTHER_CONTEXT_MESH, bases='<0.6.2')
  def test_split_operand_is_refused(self):
    mesh = mesh_of('1d')
    x, w = placed(mesh, P('x'))
    f = mapped(lambda x, w: lax.cond(
        x.size > 0, lambda w: x * jnp.sum(w), lambda w: x, w), '1d', mesh)
    with self.assertRaisesRegex(NotImplementedError, 'as an operand'):
      jax.jit(f)(x, w)

  @red({
      '<0.6.2': OTHER_CONTEXT_MESH,
      '>=0.6.2,<0.10': r'^AssertionError: "as an operand\|equal types" does '
                       'not match "Closing over',
      '>=0.10': CLOSED_OVER_EXPLICIT,
  })
  def test_split_operand_in_a_rule_is_refused(self):
    mesh = mesh_of('1d')
    x, w = placed(mesh, P('x'))
    def g(x, w):
      f = jax.custom_jvp(jnp.sin)
      def rule(primals, tangents):
        scale, _ = lax.scan(lambda c, _: (2. * c, None), w, None, length=1)
        return f(*primals), tangents[0] * jnp.sum(scale)
      f.defjvp(rule)
      return jax.jit(f)(x)
    f = mapped(g, '1d', mesh)
    refused = NotImplementedError if jax.__version_info__ < (0, 10) else (
        TypeError)  # the rule's trace doesn't say where it is
    with self.assertRaisesRegex(refused, 'as an operand|equal types'):
      jax.grad(lambda x: jnp.sum(f(x, w)))(x)

  @red(OTHER_ABSTRACT_MESH, cases={'program': ['indexing', 'filled']})
  @red(OTHER_ABSTRACT_MESH, bases='>=0.7.2', cases={'program': 'written'})
  @red(OTHER_ABSTRACT_MESH, bases='>=0.9.1')
  @parameterized.parameters(
      (kind, program) for kind in AUTO_MESHES for program in READING)
  def test_read_over_auto_axes(self, kind, program):
    # The type is asked before anything is bound.
    sizes, manual = AUTO_MESHES[kind]
    mesh = typed_mesh(sizes, ('x', 'y')[:len(sizes)],
                      (AxisType.Auto,) * len(sizes))
    x, w = placed(mesh, P('x'))
    f = mapped(program, 'partly' if manual else '1d', mesh)
    self.check(jax.jit(lambda x: f(x, w))(x), oracle(program, X, W))
    if not manual:
      self.check(f(x, w), oracle(program, X, W))
    got = jax.jit(jax.grad(lambda w: jnp.sum(f(x, w))))(w)
    self.check(got, jax.jit(jax.grad(lambda w: jnp.sum(program(X, w))))(W))

  @red({
      '<0.6':
          '^ValueError: For primitive convert_element_type, context mesh '
          r'AbstractMesh\(',
      '>=0.6,<0.6.1':
          r'^ValueError: For primitive scatter, context mesh AbstractMesh\(',
      '>=0.6.1,<0.7':
          r'^ValueError: Context mesh AbstractMesh\(.* must match the mesh '
          'passed to shardings',
      '>=0.7,<0.7.1': OTHER_ABSTRACT_MESH,
      '>=0.7.1,<0.7.2': CLOSED_OVER_EXPLICIT,
      '>=0.7.2': OTHER_ABSTRACT_MESH,
  })
  @parameterized.parameters('1d', 'one', '2d')
  def test_written_over_explicit_axes(self, kind):
    sizes = {'1d': (4,), 'one': (1, 4), '2d': (2, 2)}[kind]
    mesh = typed_mesh(sizes, ('x', 'y')[:len(sizes)],
                      (AxisType.Explicit,) * len(sizes))
    x, w = placed(mesh, P('x'))
    f = mapped(written, '1d', mesh)
    self.check(f(x, w), oracle(written, X, W))
    got = jax.jit(jax.grad(lambda w: jnp.sum(f(x, w))))(w)
    self.check(got, jax.jit(jax.grad(lambda w: jnp.sum(written(X, w))))(W))

  @red(r'^ValueError: in_specs passed to shard_map: P\(None,\) does not '
       'match the specs of the input', bases='>=0.9.1',
       cases={'name': ['custom_jvp', 'custom_vjp']})
  @red({
      '<0.6.2': OTHER_CONTEXT_MESH,
      '>=0.6.2': CLOSED_OVER_EXPLICIT,
  })
  @parameterized.product(kind=['1d', 'one', '2d'], name=[*GIVEN])
  def test_given_to(self, kind, name):
    # Whoever is given it is traced with the type of its argument.
    sizes = {'1d': (4,), 'one': (1, 4), '2d': (2, 2)}[kind]
    mesh = typed_mesh(sizes, ('x', 'y')[:len(sizes)],
                      (AxisType.Explicit,) * len(sizes))
    x, w = placed(mesh, P('x'))
    program = lambda x, w: x * jnp.sum(GIVEN[name](w))
    f = mapped(program, '1d', mesh)
    for call in f, jax.jit(f):
      self.check(call(x, w), program(X, W))
    got = jax.jit(jax.grad(lambda w: jnp.sum(f(x, w))))(w)
    self.check(got, jax.grad(lambda w: jnp.sum(program(X, w)))(jnp.asarray(W)))

  if jax.__version_info__ >= (0, 10):  # the kinds come and go before

    @red('^NotImplementedError: Closing over inputs to shard_map where the '
         'input is sharded on `Explicit` axes', bases='>=0.10')
    @jtu.sample_product(jit=[True, False])
    def test_reduced(self, jit):
      mesh = typed_mesh((4,), ('x',), (AxisType.Explicit,))
      with set_mesh(mesh):
        w = jax.sharding.reshard(jnp.asarray(W), P(None, reduced={'x'}))
        x = jax.sharding.reshard(jnp.asarray(X), P('x'))
        f = shard_map(lambda x: x * w.sum(), in_specs=P('x'), out_specs=P('x'))
        self.check(common.maybe_jit(jit)(f)(x), X * W.sum())

  @jtu.sample_product(spec=[P(), P('x')])
  def test_auto_stays(self, spec):
    mesh = common.make_mesh(4)
    x, w = placed(mesh, spec)
    f = mapped(scan, '1d', mesh)
    self.check(jax.jit(f)(x, w), oracle(scan, X, W))
