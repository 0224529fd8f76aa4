# SPDX-License-Identifier: Apache-2.0
"""jit of arrays over differently shaped meshes of the same devices."""
import jax
from jax._src import config
from jax._src import test_util as jtu
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
import numpy as np
from testing.red import red
from testing.sharding import eight_devices, shard_map

config.parse_flags_with_absl()
eight_devices()

# What pristine JAX says.
INDIVISIBLE = (r'^IndivisibleError: shape=\[4, 1, 2\] is incompatible with '
               r'mesh_shape=OrderedDict\(')

X = np.arange(24., dtype=np.float32).reshape(4, 6)
Y = np.arange(8., dtype=np.float32)


def meshes():
  devices = np.array(jax.devices()[:8])
  auto = lambda n: (AxisType.Auto,) * n
  return (Mesh(devices, ('x',), axis_types=auto(1)),
          Mesh(devices.reshape(4, 2), ('p', 'q'), axis_types=auto(2)))


class ResultLayoutsTest(jtu.JaxTestCase):

  def setUp(self):
    super().setUp()
    self.flat, self.square = meshes()
    self.turned = Mesh(np.array(jax.devices()[:8]).reshape(2, 4), ('p', 'q'),
                       axis_types=(AxisType.Auto,) * 2)
    self.x = jax.device_put(X, NamedSharding(self.square, P('p')))
    self.y = jax.device_put(Y, NamedSharding(self.flat, P('x')))

  def check(self, got, want, sharding=None):
    self.assertAllClose(np.asarray(got), want)
    if sharding is not None:
      self.assertIsInstance(got.sharding, NamedSharding)
      self.assertTrue(got.sharding.is_equivalent_to(sharding, got.ndim))

  @red(INDIVISIBLE)
  def test_operation(self):
    with jax.set_mesh(self.flat):
      self.check(self.x * 2, X * 2, self.x.sharding)

  @red(INDIVISIBLE)
  @jtu.sample_product(first=['x', 'y'])
  def test_jit_of_two(self, first):
    def f(a, b):
      return a * 2, b * 2
    args = (self.x, self.y) if first == 'x' else (self.y, self.x)
    with jax.set_mesh(self.flat):
      out = jax.jit(f)(*args)
    out = out if first == 'x' else out[::-1]
    self.check(out[0], X * 2, self.x.sharding)
    self.check(out[1], Y * 2, self.y.sharding)

  @red(r'^IndivisibleError: shape=\[4, 2\] is incompatible with '
       r"mesh_shape=OrderedDict\(\{'x': 8\}\): dim_size=4 is", bases='>=0.11')
  def test_jit_gradient(self):
    x = jax.device_put(X, NamedSharding(self.square, P('p', 'q')))
    with jax.set_mesh(self.flat):
      out = jax.jit(jax.grad(lambda x, y: jnp.sum(x * x) * jnp.sum(y)))(
          x, self.y)
    self.check(out, 2 * X * Y.sum(), x.sharding)

  @red(INDIVISIBLE)
  def test_compiled(self):
    with jax.set_mesh(self.flat):
      out = jax.jit(lambda x: x * 2).lower(self.x).compile()(self.x)
    self.check(out, X * 2, self.x.sharding)

  @red(INDIVISIBLE)
  def test_partly_manual_beside_another_mesh(self):
    # One jit over both meshes, of arrays that aren't laid out yet.
    def f(y, x):
      y = shard_map(lambda y: y * 2, mesh=self.flat, in_specs=P('x'),
                    out_specs=P('x'))(y)
      return shard_map(lambda x: x * 2, mesh=self.square, in_specs=P('p'),
                       out_specs=P('p'), axis_names={'p'})(x + jnp.sum(y))
    self.check(jax.jit(f)(Y, X), 2 * (X + 2 * Y.sum()), self.x.sharding)

  def test_fitting_mesh_stays(self):
    with jax.set_mesh(self.square):
      out = jax.jit(lambda x: x * 2)(self.x)
    self.check(out, X * 2)
    self.assertEqual(out.sharding, self.x.sharding)

  @red(INDIVISIBLE)
  def test_axes_that_are_no_part_of_types_first(self):
    explicit = Mesh(np.array(jax.devices()[:8]).reshape(2, 2, 2),
                    ('a', 'b', 'c'), axis_types=(AxisType.Explicit,) * 3)
    z = jax.device_put(np.float32(3), NamedSharding(explicit, P()))
    with jax.set_mesh(self.flat):
      out, _ = jax.jit(lambda z, x: (x * 2, z))(z, self.x)
    self.check(out, X * 2, self.x.sharding)
    self.assertEqual(out.sharding.mesh, self.square)

  @jtu.sample_product(constrain_first=[True, False])
  def test_callback_beside_a_constraint(self, constrain_first):
    # A callback's result lies on one device, which no spec says.
    def double(v):
      return jax.pure_callback(lambda v: np.asarray(v) * 2,
                               jax.ShapeDtypeStruct(v.shape, v.dtype), v)
    def constrained(v):
      return jax.lax.with_sharding_constraint(v, P('p'))
    f = ((lambda v: (double(constrained(v)), v + 1)) if constrain_first else
         (lambda v: (constrained(double(v)), v + 1)))
    for mesh in (self.square, self.turned):
      with jax.set_mesh(mesh):
        for run in (jax.jit(f), jax.jit(f).lower(self.y).compile()):
          for got, want in zip(run(self.y), (Y * 2, Y + 1)):
            self.check(got, want)
