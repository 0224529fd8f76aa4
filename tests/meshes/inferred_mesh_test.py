# SPDX-License-Identifier: Apache-2.0
"""What only its type places, over Explicit axes, runs on the mesh that fits."""
from absl.testing import parameterized
import jax
from jax import lax
from jax._src import config
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
import numpy as np
from testing.oracle import MeshTestCase
from testing.red import red
from testing.sharding import eight_devices, shard_map
from varying.testing import common

config.parse_flags_with_absl()
eight_devices()

# What pristine JAX says.
OTHER_DEVICE_COUNT = ('^ValueError: Length of device assignment 1 is not '
                      r'equal to the size of the mesh 4 of aval f32\[')
PLATFORM_NOT_GIVEN = ('^ValueError: Passing lowering_platforms via '
                      r'jax\.export or')
ONE_DEVICE_ONLY = ('^ValueError: cannot reshape array of size 1 into shape '
                   r'\(2,2\)')
FEWER_DEVICES = '^AssertionError: Items in the second set but not the first:'

X = np.linspace(.5, 1.5, 8, dtype=np.float32)
Y = np.linspace(-1., 1., 8, dtype=np.float32)
TYPES = {'1d': (AxisType.Explicit,), '2d': (AxisType.Explicit,) * 2,
         'mixed': (AxisType.Explicit, AxisType.Auto)}


def mesh_of(kind):
  sizes = (4,) if kind == '1d' else (2, 2)
  devices = np.array(jax.devices()[:4]).reshape(sizes)
  # Its names are of this test alone: other meshes of the process don't count.
  return Mesh(devices, (f'a{kind[0]}', f'b{kind[0]}')[:len(sizes)],
              axis_types=TYPES[kind])


def plain(x, y):
  del y
  return jnp.sum(jnp.sin(x) ** 2)


def of_both(x, y):
  return jnp.sum(jnp.sin(x) * y)


def through_jit(x, y):
  return jax.jit(of_both)(x, y)


def through_shard_map(mesh, names=None):
  axes = names or mesh.axis_names
  def f(x, y):
    g = lambda x, y: lax.psum(jnp.sum(jnp.sin(x) * y), axes)
    partly = {'axis_names': set(names)} if names else {}
    return shard_map(g, mesh=mesh, in_specs=(P(axes), P(axes)),
                     out_specs=P(), **partly)(x, y)
  return f


TRANSFORMS = {
    'grad': lambda f: jax.grad(f, (0, 1)),
    'value_and_grad': lambda f: jax.value_and_grad(f, (0, 1)),
    'vjp': lambda f: lambda x, y: jax.vjp(f, x, y)[1](jnp.float32(1.)),
}


# A result by two arguments, whose values it doesn't need.
UNUSED = {
    'linear': (lambda x, y: jax.grad(lambda x, y: jnp.sum(3. * x + y))(x, y),
               np.full(8, 3., np.float32)),
    'ignored': (lambda x, y: jax.grad(plain, 1)(x, y),
                np.zeros(8, np.float32)),
}


def triple(x):
  return jnp.sum(3. * x)


def described(x):
  return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)


# Pulls a number back by hand, to where the argument is.
PULLBACKS = {
    'vjp': (lambda x, ct: jax.vjp(triple, x)[1](ct),
            np.full(8, 6., np.float32)),
    'vjp_of_jit': (lambda x, ct: jax.vjp(jax.jit(triple), x)[1](ct),
                   np.full(8, 6., np.float32)),
    'of_a_square': (lambda x, ct: jax.vjp(jax.jit(lambda x: jnp.sum(x * x)),
                                          x)[1](ct), 4. * X),
    'ignored': (lambda x, ct: jax.vjp(plain, x, x)[1](ct)[1:],
                np.zeros(8, np.float32)),
    'linear_transpose': (lambda x, ct: jax.linear_transpose(triple, x)(ct),
                         np.full(8, 6., np.float32)),
    'transposed_jit': (
        lambda x, ct: jax.linear_transpose(jax.jit(triple), x)(ct),
        np.full(8, 6., np.float32)),
    'described': (
        lambda x, ct: jax.linear_transpose(triple, described(x))(ct),
        np.full(8, 6., np.float32)),
    'by_name': (
        lambda x, ct: jax.linear_transpose(triple, x)(out_cotangent=ct),
        np.full(8, 6., np.float32)),
}


class InferredMeshTest(MeshTestCase):
  devices = 8

  def arguments(self, mesh, spec=None):
    put = lambda x: jax.device_put(x, NamedSharding(
        mesh, spec or P(mesh.axis_names[0])))
    return put(X), put(Y)

  def check(self, f, oracle, transform, kind, spec=None):
    mesh = mesh_of(kind)
    x, y = self.arguments(mesh, spec)
    got = TRANSFORMS[transform](f(mesh))(x, y)
    self.check_on(mesh, got, TRANSFORMS[transform](oracle))

  def check_on(self, mesh, got, oracle):
    want = jax.jit(oracle)(X, Y)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
      np.testing.assert_allclose(np.asarray(a), b, rtol=1e-5, atol=1e-6)
      self.assertEqual(a.sharding.device_set, set(mesh.devices.flat))

  @red(ONE_DEVICE_ONLY, bases='>=0.7',
       cases={'kind': 'mixed', 'transform': ['grad', 'value_and_grad']})
  @red(ONE_DEVICE_ONLY, bases='>=0.7,<0.11', cases=['mixed'])
  @red(OTHER_DEVICE_COUNT,
       cases={'kind': ['1d', '2d'], 'transform': ['grad', 'value_and_grad']})
  @red(OTHER_DEVICE_COUNT, bases='<0.11', cases=['1d', '2d'])
  @parameterized.product(kind=list(TYPES), transform=list(TRANSFORMS))
  def test_function(self, kind, transform):
    self.check(lambda _: of_both, of_both, transform, kind)

  @red(PLATFORM_NOT_GIVEN, bases='>=0.11', cases={'transform': 'vjp'})
  @red(ONE_DEVICE_ONLY, bases='>=0.7',
       cases={'kind': 'mixed', 'transform': ['grad', 'value_and_grad']})
  @red(ONE_DEVICE_ONLY, bases='>=0.7,<0.11', cases=['mixed'])
  @red(FEWER_DEVICES, bases='<0.7', cases=['mixed'])
  @red(OTHER_DEVICE_COUNT, cases={'transform': ['grad', 'value_and_grad']})
  @red(OTHER_DEVICE_COUNT, bases='<0.11')
  @parameterized.product(kind=list(TYPES), transform=list(TRANSFORMS))
  def test_argument_that_is_ignored(self, kind, transform):
    self.check(lambda _: plain, plain, transform, kind)

  @red(ONE_DEVICE_ONLY, bases='>=0.7',
       cases={'kind': 'mixed', 'transform': ['grad', 'value_and_grad']})
  @red(OTHER_DEVICE_COUNT, bases='>=0.6.1',
       cases={'kind': ['1d', '2d'], 'transform': ['grad', 'value_and_grad']})
  @parameterized.product(kind=list(TYPES), transform=list(TRANSFORMS))
  def test_jit_inside(self, kind, transform):
    self.check(lambda _: through_jit, of_both, transform, kind)

  @red(OTHER_DEVICE_COUNT, bases='>=0.6.1',
       cases={'transform': ['grad', 'value_and_grad']})
  @parameterized.product(kind=['1d', '2d'], transform=list(TRANSFORMS))
  def test_shard_map(self, kind, transform):
    axes = mesh_of(kind).axis_names
    self.check(through_shard_map, of_both, transform, kind, P(axes))

  @red(ONE_DEVICE_ONLY, bases='>=0.7',
       cases={'kind': 'mixed', 'transform': ['grad', 'value_and_grad']})
  @red(OTHER_DEVICE_COUNT, bases='>=0.7',
       cases={'transform': ['grad', 'value_and_grad']})
  @parameterized.product(kind=['2d', 'mixed'], transform=list(TRANSFORMS))
  def test_shard_map_over_one_axis(self, kind, transform):
    if not common.RUNS_PARTLY_MANUAL:
      self.skipTest('a partly manual shard_map is refused there without jit')
    self.check(lambda mesh: through_shard_map(mesh, mesh.axis_names[:1]),
               of_both, transform, kind)

  @red(ONE_DEVICE_ONLY, bases='>=0.7', cases=['mixed'])
  @red(OTHER_DEVICE_COUNT, cases=['1d', '2d'])
  @parameterized.parameters(*TYPES)
  def test_second_derivative(self, kind):
    mesh = mesh_of(kind)
    f = lambda x, y: jnp.sum(jnp.sin(x) * y ** 2)
    product = lambda x, y: jax.jvp(jax.grad(f, (0, 1)), (x, y), (y, x))
    self.check_on(mesh, product(*self.arguments(mesh)), product)

  @red(OTHER_DEVICE_COUNT)
  @parameterized.product(at_once=[False, True], f=[of_both, plain])
  def test_gradients_over_one_mesh_and_another(self, at_once, f):
    devices = np.array(jax.devices()[:8]).reshape(2, 4)
    name = f'{f.__name__}{at_once:d}'
    make = lambda d: Mesh(d, (name,), axis_types=TYPES['1d'])
    for mesh in [make(d) for d in devices] if at_once else map(make, devices):
      x, y = self.arguments(mesh)
      step = jax.value_and_grad(f, (0, 1))
      self.check_on(mesh, step(x, y), step)

  @red(OTHER_DEVICE_COUNT)
  @parameterized.parameters(*UNUSED)
  def test_an_argument_without_a_use_names_the_mesh(self, name):
    devices = np.array(jax.devices()[:8]).reshape(2, 4)
    twins = [Mesh(d, (name,), axis_types=TYPES['1d']) for d in devices]
    f, want = UNUSED[name]
    for mesh in twins + twins:
      x, y = self.arguments(mesh)
      got = jax.jit(f)(x, y)
      self.assertEqual(got.sharding.device_set, set(mesh.devices.flat))
      np.testing.assert_allclose(got, want, rtol=1e-6)
    x, y = self.arguments(twins[0])[0], self.arguments(twins[1])[1]
    with self.assertRaises(ValueError):
      jax.jit(f)(x, y)

  @red(OTHER_DEVICE_COUNT, bases='<0.11',
       cases=['vjp', 'vjp_of_jit', 'ignored', 'linear_transpose',
              'transposed_jit', 'described', 'by_name'])
  @red(FEWER_DEVICES, bases='>=0.11',
       cases=['vjp_of_jit', 'linear_transpose', 'transposed_jit', 'described',
              'by_name'])
  @red(PLATFORM_NOT_GIVEN, bases='>=0.11', cases=['ignored'])
  @parameterized.parameters(*PULLBACKS)
  def test_pullback_by_hand_on_one_mesh_and_another(self, name):
    pull_back, want = PULLBACKS[name]
    devices = np.array(jax.devices()[:8]).reshape(2, 4)
    twins = []
    for n in 0, 1, 0, 1, 1:  # the second is made once the first was used
      if n == len(twins):
        twins.append(Mesh(devices[n], (f'p{name}',), axis_types=TYPES['1d']))
      got, = pull_back(self.arguments(twins[n])[0], np.float32(2.))
      np.testing.assert_allclose(got, want, rtol=1e-6)
      self.assertEqual(got.sharding.device_set, set(twins[n].devices.flat))

  def test_a_cotangent_names_the_mesh(self):
    devices = np.array(jax.devices()[:8]).reshape(2, 4)
    twins = [Mesh(d, ('ct',), axis_types=TYPES['1d']) for d in devices]
    _, pull_back = jax.vjp(jax.jit(triple), self.arguments(twins[0])[0])
    for mesh in twins + twins:
      ct = jax.device_put(np.float32(2.), NamedSharding(mesh, P()))
      got, = pull_back(ct)
      np.testing.assert_allclose(got, np.full(8, 6.), rtol=1e-6)
      self.assertEqual(got.sharding.device_set, set(mesh.devices.flat))

  def test_of_two_meshes_neither_is_meant(self):
    devices = np.array(jax.devices()[:8]).reshape(2, 4)
    twins = [Mesh(d, ('twin',), axis_types=TYPES['1d']) for d in devices]
    f = lambda x, y: triple(x)
    for mesh in twins:
      # It keeps no value of those that it was made of.
      pull_back = jax.jit(lambda x, y: jax.vjp(f, x, y)[1])(
          *self.arguments(mesh))
      with self.assertRaisesRegex(ValueError, 'set_mesh|use_mesh|AbstractMesh'):
        pull_back(np.float32(2.))

  def test_what_is_lowered_for_a_platform_stays_abstract(self):
    if jax.__version_info__ < (0, 8):
      self.skipTest('this release refuses it')
    mesh = mesh_of('1d')
    aval = jax.ShapeDtypeStruct((8,), np.float32, sharding=NamedSharding(
        mesh.abstract_mesh, P(mesh.axis_names[0])))
    lowered = jax.jit(jnp.sin).trace(aval).lower(lowering_platforms=('tpu',))
    self.assertIn('num_partitions = 4', lowered.as_text())
    with self.assertRaisesRegex(ValueError, 'lowering_platforms'):
      jax.jit(jnp.sin).trace(aval).lower()
