# SPDX-License-Identifier: Apache-2.0
"""Each function, input and device: what docs/array_api.md says (jax#27606).

The functions are in two groups, and the page has a sentence for each: those
that make an array of another follow it where no device is given, the others go
to the default device.
"""

from absl.testing import parameterized
import jax
from jax import sharding as js
from jax._src import test_util as jtu
import jax.numpy as jnp
import numpy as np
from testing.red import red
from testing.sharding import eight_devices

jax.config.parse_flags_with_absl()
eight_devices()

# What pristine JAX says.
INDEX_ERROR = '^AssertionError: refused with IndexError'

HOST = np.arange(8, dtype=np.float32)
P = js.PartitionSpec

# Name: the call, and its values (None: any).
MOVING = {
    'array': (lambda x, d: jnp.array(x, device=d), HOST),
    'asarray': (lambda x, d: jnp.asarray(x, device=d), HOST),
    'asarray_copy': (lambda x, d: jnp.asarray(x, device=d, copy=True), HOST),
    'astype': (lambda x, d: jnp.astype(jnp.asarray(x), 'float32', device=d),
               HOST),
    'astype_copy': (lambda x, d: jnp.astype(
        jnp.asarray(x), 'float32', copy=True, device=d), HOST),
    'astype_other': (lambda x, d: jnp.astype(
        jnp.asarray(x), 'int32', device=d), HOST),
    'astype_other_copy': (lambda x, d: jnp.astype(
        jnp.asarray(x), 'int32', copy=True, device=d), HOST),
    'to_device': (lambda x, d: jnp.asarray(x).to_device(d), HOST),
    'empty_like': (lambda x, d: jnp.empty_like(x, device=d), None),
    'full_like': (lambda x, d: jnp.full_like(x, 2, device=d), 0 * HOST + 2),
    'full_like_values': (lambda x, d: jnp.full_like(x, x, device=d), HOST),
    'ones_like': (lambda x, d: jnp.ones_like(x, device=d), 0 * HOST + 1),
    'zeros_like': (lambda x, d: jnp.zeros_like(x, device=d), 0 * HOST),
    'full_values': (lambda x, d: jnp.full((8,), x, device=d), HOST),
}
MAKING = {
    'arange': (lambda d: jnp.arange(8, device=d), HOST),
    'arange_step': (lambda d: jnp.arange(0, 16, 2, device=d), 2 * HOST),
    'array_of_list': (lambda d: jnp.array(list(range(8)), device=d), HOST),
    'empty': (lambda d: jnp.empty(8, device=d), None),
    'eye': (lambda d: jnp.eye(8, device=d), np.eye(8)),
    'fftfreq': (lambda d: jnp.fft.fftfreq(8, device=d), np.fft.fftfreq(8)),
    'full': (lambda d: jnp.full(8, 2., device=d), 0 * HOST + 2),
    'linspace': (lambda d: jnp.linspace(0, 7, 8, device=d), HOST),
    'ones': (lambda d: jnp.ones(8, device=d), 0 * HOST + 1),
    'rfftfreq': (lambda d: jnp.fft.rfftfreq(14, device=d),
                 np.fft.rfftfreq(14)),
    'zeros': (lambda d: jnp.zeros(8, device=d), 0 * HOST),
}
PLACED_UNDER_JIT = ('arange', 'arange_step', 'array_of_list', 'linspace',
                    'fftfreq')
LEFT_TO_JIT = ('zeros', 'ones', 'full', 'eye')


def mesh():
  return js.Mesh(np.array(jax.devices()), ('x',))


def inputs():
  """Name: an array of HOST, and where it is committed to."""
  device = jax.devices()[3]
  split = js.NamedSharding(mesh(), P('x'))
  with jax.default_device(device):
    there = jnp.asarray(HOST) * 1
  return {'numpy': (HOST, None), 'uncommitted': (jnp.asarray(HOST), None),
          'uncommitted_there': (there, None),
          'committed': (jax.device_put(HOST, jax.devices()[5]),
                        jax.devices()[5]),
          'split': (jax.device_put(HOST, split), split)}


def devices():
  return (jax.devices()[3], js.SingleDeviceSharding(jax.devices()[3]),
          js.NamedSharding(mesh(), P('x')), js.NamedSharding(mesh(), P()))


class ArrayApiDeviceTableTest(jtu.JaxTestCase):

  def check(self, y, want, device, said):
    if device is None:
      self.assertFalse(y.committed, said)
    else:
      self.assertTrue(y.committed, f'not committed: {said}')
      sharding = (device if isinstance(device, js.Sharding)
                  else js.SingleDeviceSharding(device))
      self.assertTrue(y.sharding.is_equivalent_to(sharding, y.ndim),
                      f'placed elsewhere: {said}')
    if want is not None:
      np.testing.assert_allclose(np.asarray(y), want, rtol=1e-6)

  @red('^AssertionError: False is not true : not committed:',
       cases=['asarray', 'astype', 'astype_copy'])
  @red('^ValueError: Received incompatible devices for jitted computation',
       cases=['array', 'asarray_copy', 'astype_other', 'astype_other_copy'])
  @red('^ValueError: PartitionSpec passed to jnp.broadcast_to cannot contain',
       bases='>=0.10.2', cases=['full_like_values', 'full_values'])
  @parameterized.parameters(*MOVING)
  def test_of_an_array(self, name):
    call, want = MOVING[name]
    for home, (x, place) in inputs().items():
      for default in (None, jax.devices()[6]):
        with jax.default_device(default):
          for device in devices():
            self.check(call(x, device), want, device,
                       f'{name} of {home} to {device}, default {default}')
          self.check(call(x, None), want, place,
                     f'{name} of {home}, default {default}')

  @red('^ValueError: .*only valid for values of rank at least 1',
       cases=['fftfreq'])
  @parameterized.parameters(*MAKING)
  def test_of_nothing(self, name):
    call, want = MAKING[name]
    for default in (None, jax.devices()[6]):
      with jax.default_device(default):
        for device in devices():
          self.check(call(device), want, device,
                     f'{name} to {device}, default {default}')
        y = call(None)
        self.check(y, want, None, name)
        self.assertEqual(y.devices(), {default or jax.devices()[0]})

  @red('^AssertionError: ValueError not raised')
  def test_without_a_copy(self):
    for home, (x, _) in inputs().items():
      if home == 'numpy':
        continue
      for device in devices():
        target = (device if isinstance(device, js.Sharding)
                  else js.SingleDeviceSharding(device))
        if x.sharding.is_equivalent_to(target, 1):
          y = jnp.asarray(x, device=device, copy=False)
          self.check(y, HOST, device, home)
        else:
          with self.assertRaisesRegex(ValueError, 'copy=False forbids one'):
            jnp.asarray(x, device=device, copy=False)

  @red('^AssertionError: .*not committed: arange', bases='<0.7',
       cases=['arange', 'arange_step'])
  @parameterized.parameters(*PLACED_UNDER_JIT)
  def test_placed_under_jit(self, name):
    call, want = MAKING[name]
    y = jax.jit(lambda: call(jax.devices()[3]))()
    self.check(y, want, jax.devices()[3], name)

  @parameterized.parameters(*LEFT_TO_JIT)
  def test_left_to_jit(self, name):
    call, want = MAKING[name]
    y = jax.jit(lambda: call(jax.devices()[3]))()
    self.check(y, want, None, name)

  @red("^AssertionError: not mapped: '.*SingleDeviceSharding' object has no "
       "attribute 'spec'", bases='>=0.6.1')
  def test_vmap_of_moves(self):
    rows = np.arange(12, dtype=np.float32).reshape(3, 4)
    d = jax.devices()[3]
    for call in (lambda x: jnp.asarray(x, device=d),
                 lambda x: jnp.astype(x, 'int32', device=d)):
      for f in (jax.vmap(call), jax.jit(jax.vmap(call)),
                jax.vmap(jax.jit(call))):
        try:
          y = f(jnp.asarray(rows))
        except AttributeError as e:
          raise AssertionError(f'not mapped: {e}') from e
        self.check(y, rows, d, 'vmap')

  @red(INDEX_ERROR,
       cases=['zeros', 'ones', 'full', 'zeros_like', 'full_like', 'empty_like'])
  @red(INDEX_ERROR, bases='<0.11', cases=['empty'])
  @red('^AssertionError: not refused', cases=['linspace'])
  @parameterized.parameters(
      'zeros', 'ones', 'empty', 'full', 'zeros_like', 'full_like', 'linspace',
      'arange', 'asarray', 'empty_like')
  def test_shapes_that_do_not_fit(self, name):
    split = js.NamedSharding(mesh(), P('x'))
    calls = {'zeros': lambda s: jnp.zeros(s, device=split),
             'ones': lambda s: jnp.ones(s, device=split),
             'empty': lambda s: jnp.empty(s, device=split),
             'full': lambda s: jnp.full(s, 1., device=split),
             'zeros_like': lambda s: jnp.zeros_like(np.ones(s), device=split),
             'full_like': lambda s: jnp.full_like(np.ones(s), 1, device=split),
             'linspace': lambda s: jnp.linspace(0, 1, 9, device=split),
             'arange': lambda s: jnp.arange(9, device=split),
             'asarray': lambda s: jnp.asarray(np.ones(s), device=split),
             'empty_like': lambda s: jnp.empty_like(np.ones(s), device=split)}
    for shape in ((), (9,)):
      try:
        calls[name](shape)
      except ValueError:
        pass
      except Exception as e:
        raise AssertionError(f'refused with {type(e).__name__}') from e
      else:
        raise AssertionError('not refused')
