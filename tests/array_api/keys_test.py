# SPDX-License-Identifier: Apache-2.0
"""Arrays of PRNG keys are placed where device= says (jax#27606)."""

from absl.testing import parameterized
import jax
from jax import sharding as js
from jax._src import test_util as jtu
import jax.numpy as jnp
import numpy as np
from testing.red import red
from testing.sharding import AxisType
from testing.sharding import CHECK
from testing.sharding import eight_devices
from testing.sharding import shard_map
from testing.sharding import typed_mesh

jax.config.parse_flags_with_absl()
eight_devices()

# What pristine JAX says.
MORE_DEVICES = '^AssertionError: Items in the first set but not the second:'
NO_TO_DEVICE = '^NotImplementedError: Cannot call abstract method to_device'

P = js.PartitionSpec

# What makes keys of keys, and whether it keeps their values.
CALLS = {
    'array': (lambda k, d: jnp.array(k, device=d), True),
    'asarray': (lambda k, d: jnp.asarray(k, device=d), True),
    'asarray_copy': (lambda k, d: jnp.asarray(k, device=d, copy=True), True),
    'astype': (lambda k, d: jnp.astype(k, k.dtype, device=d), True),
    'to_device': (lambda k, d: k.to_device(d), True),
    'full_like': (lambda k, d: jnp.full_like(k, k[0], device=d), False),
    'zeros_like': (lambda k, d: jnp.zeros_like(k, device=d), False),
    'ones_like': (lambda k, d: jnp.ones_like(k, device=d), False),
    'zeros': (lambda k, d: jnp.zeros(k.shape, k.dtype, device=d), False),
}
TRACED = ('array', 'asarray', 'asarray_copy', 'astype')


def keys():
  return jax.random.split(jax.random.key(7), 8)


def places():
  mesh = js.Mesh(np.array(jax.devices()), ('x',))
  mesh2 = js.Mesh(np.array(jax.devices()).reshape(2, 4), ('x', 'y'))
  return [jax.devices()[3], js.SingleDeviceSharding(jax.devices()[3]),
          js.NamedSharding(mesh, P('x')), js.NamedSharding(mesh, P()),
          js.NamedSharding(mesh2, P('y'))]


@red(r'^NotImplementedError: raised by lax\._convert_element_type')
class ArrayApiKeysTest(jtu.JaxTestCase):

  def check(self, k, want, device):
    data = jax.random.key_data(k)
    if isinstance(device, js.NamedSharding):
      self.assertTrue(data.sharding.is_equivalent_to(device, data.ndim),
                      f'placed elsewhere: {data.sharding}')
    else:
      self.assertEqual(k.devices(), {jax.devices()[3]}, 'placed elsewhere')
    self.assertTrue(k.committed, 'placed elsewhere')
    if want is not None:
      np.testing.assert_array_equal(data, want)

  @red(NO_TO_DEVICE, cases=['to_device'])
  @red(MORE_DEVICES, cases=['full_like', 'zeros_like', 'ones_like', 'zeros'])
  @parameterized.parameters(*CALLS)
  def test_places(self, name):
    call, keeps = CALLS[name]
    want = np.asarray(jax.random.key_data(keys())) if keeps else None
    if name == 'full_like':
      want = np.broadcast_to(np.asarray(jax.random.key_data(keys()))[0], (8, 2))
    for k in (keys(), jax.device_put(keys(), jax.devices()[5])):
      for device in places():
        self.check(call(k, device), want, device)

  @parameterized.parameters(*TRACED)
  def test_places_under_jit(self, name):
    want = np.asarray(jax.random.key_data(keys()))
    for device in places():
      k = jax.jit(lambda k, device=device: CALLS[name][0](k, device))(keys())
      self.check(k, want, device)

  @red(NO_TO_DEVICE)
  def test_to_device_without_a_device_stays(self):
    for k in (keys(), jax.device_put(keys(), jax.devices()[5])):
      self.assertEqual(k.to_device(None).devices(), k.devices())
      self.assertEqual(k.to_device(None).committed, k.committed)

  @red(NO_TO_DEVICE)
  def test_keys_draw_the_same_afterwards(self):
    k = keys().to_device(jax.devices()[3])
    draw = jax.vmap(lambda k: jax.random.uniform(k, (3,)))
    np.testing.assert_array_equal(draw(k), draw(keys()))

  @red(MORE_DEVICES)
  @parameterized.parameters('zeros_like', 'ones_like')
  def test_committed_keys_are_followed(self, name):
    k = jax.device_put(keys(), jax.devices()[3])
    self.check(CALLS[name][0](k, None), None, jax.devices()[3])
    self.assertFalse(CALLS[name][0](keys(), None).committed)


SPREAD = {
    'one': (((2, 4), ('x', 'y'), False), (), P()),
    'whole': (((2, 4), ('x', 'y'), False), (8,), P()),
    'vector': (((8,), ('x',), False), (8,), P('x')),
    'both axes': (((2, 4), ('x', 'y'), False), (8,), P(('x', 'y'))),
    'matrix': (((2, 4), ('x', 'y'), False), (8, 4), P('y', 'x')),
    'mesh of one': (((1,), ('x',), False), (8,), P('x')),
    'explicit': (((2, 2), ('x', 'y'), True), (8,), P('x')),
}

MESHES = ['one', 'whole', 'vector', 'both axes', 'matrix', 'explicit']
AUTO = [name for name in SPREAD if name != 'explicit']
SPLIT = ['one', 'vector', 'both axes', 'matrix', 'explicit']


class ArrayApiKeysDeviceTest(jtu.JaxTestCase):
  """``keys.device`` is where arrays of the keys' shape go (jax#22597)."""

  def spread(self, name, impl='threefry2x32'):
    (sizes, names, explicit), shape, spec = SPREAD[name]
    kind = AxisType.Explicit if explicit else AxisType.Auto
    mesh = typed_mesh(sizes, names, (kind,) * len(sizes))
    k = jax.random.key(7, impl=impl)
    return (jax.device_put(jax.random.split(k, shape) if shape else k,
                           js.NamedSharding(mesh, spec)),
            js.NamedSharding(mesh, spec))

  @red("^AssertionError: False is not true : the integers'")
  @parameterized.product(name=SPLIT, impl=['threefry2x32', 'rbg'])
  def test_it_is_their_sharding(self, name, impl):
    k, sharding = self.spread(name, impl)
    self.assertTrue(k.device == k.sharding, "the integers'")
    self.assertTrue(k.device.is_equivalent_to(sharding, k.ndim))

  @red('^ValueError: .*incompatible with its sharding annotation',
       cases=['one', 'vector', 'both axes', 'matrix'])
  @parameterized.parameters(*AUTO)
  def test_numbers_are_put_there(self, name):
    k, sharding = self.spread(name)
    x = np.arange(k.size, dtype=np.float32).reshape(k.shape)
    for y in (jax.device_put(x, k.device), jnp.asarray(x, device=k.device)):
      self.assertTrue(y.sharding.is_equivalent_to(sharding, y.ndim))
      np.testing.assert_array_equal(y, x)

  @parameterized.parameters(*AUTO)
  def test_zeros_are_made_there(self, name):
    k, sharding = self.spread(name)
    for fill in (jnp.zeros, jnp.ones):
      y = fill(k.shape, device=k.device)
      self.assertTrue(y.sharding.is_equivalent_to(sharding, y.ndim))

  @red(NO_TO_DEVICE)
  @parameterized.parameters(*SPREAD)
  def test_keys_are_put_there(self, name):
    k, sharding = self.spread(name)
    data = np.asarray(jax.random.key_data(k))
    for new in (k.to_device(k.device),
                jax.random.wrap_key_data(data).to_device(k.device)):
      self.assertTrue(new.sharding.is_equivalent_to(sharding, k.ndim))
      np.testing.assert_array_equal(jax.random.key_data(new), data)

  @red('^AssertionError: Items in the second set but not the first:')
  @parameterized.product(name=MESHES, asked=[True, False])
  def test_keys_like_them_are_made_there(self, name, asked):
    k, sharding = self.spread(name)
    for like in (jnp.zeros_like, jnp.ones_like):
      new = like(k, device=k.device if asked else None)
      self.assertEqual(new.devices(), k.devices(), 'placed elsewhere')
      self.assertTrue(new.sharding.is_equivalent_to(sharding, k.ndim))

  def test_on_one_device_it_is_the_device(self):
    for device in jax.devices()[:2]:
      k = jax.device_put(keys(), device)
      self.assertEqual(k.device, device)
      self.assertEqual(jnp.zeros(8, device=k.device).devices(), {device})


class ArrayApiKeysUnchangedTest(jtu.JaxTestCase):

  def test_without_a_device(self):
    for name in ('array', 'asarray', 'zeros', 'full_like'):
      for call in (CALLS[name][0], lambda k, d: jax.jit(
          lambda k: CALLS[name][0](k, None))(k)):
        self.assertFalse(call(keys(), None).committed)

  def test_under_jit_filling_is_left_to_jit(self):
    for name in ('zeros_like', 'zeros'):
      text = str(jax.make_jaxpr(lambda k: CALLS[name][0](
          k, jax.devices()[3]))(keys()))
      self.assertNotIn('device_put', text)

  @parameterized.parameters((jnp.asarray,), (jnp.array,))
  def test_the_own_sharding_of_a_traced_array_asks_for_nothing(self, copy):
    # From 0.6.1 to 0.11 it is handed on as if somebody had given it, and a
    # constraint to it, mapped by vmap in a loop, was refused when lowered.
    mesh = js.Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ('x', 'y'))

    def drawn(x):
      def step(_, key):
        return copy(jax.random.fold_in(key, jnp.argmax(x)))
      key = jax.lax.fori_loop(0, 2, step, jax.random.fold_in(
          jax.random.key(0), jnp.argmax(x)))
      return jax.random.uniform(key, x.shape)

    mapped = shard_map(drawn, mesh=mesh, in_specs=P(('x', 'y')),
                       out_specs=P(('x', 'y')), **{CHECK: False})
    xs = np.random.RandomState(0).rand(3, 8).astype(np.float32)
    want = [np.concatenate([drawn(part) for part in np.split(x, 4)])
            for x in xs]
    self.assertNotIn('sharding_constraint', str(
        jax.make_jaxpr(jax.vmap(mapped))(xs)))
    for run in (jax.vmap(mapped), jax.jit(jax.vmap(mapped))):
      self.assertAllClose(np.stack(want), np.asarray(run(xs)))
