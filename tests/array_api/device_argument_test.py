# SPDX-License-Identifier: Apache-2.0
"""What a device= argument may be (jax#26000, jax#27606)."""

import unittest

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
NO_DEVICE = '^AssertionError: .*a device that is none is not refused by name'

HOST = np.arange(8, dtype=np.float32)

# Name in jax.numpy: the call.
CALLS = {
    'arange': lambda d: jnp.arange(8, device=d),
    'array': lambda d: jnp.array(HOST, device=d),
    'asarray': lambda d: jnp.asarray(HOST, device=d),
    'astype': lambda d: jnp.astype(jnp.asarray(HOST), 'int8', device=d),
    'empty': lambda d: jnp.empty(8, device=d),
    'empty_like': lambda d: jnp.empty_like(HOST, device=d),
    'eye': lambda d: jnp.eye(8, device=d),
    'fft.fftfreq': lambda d: jnp.fft.fftfreq(8, device=d),
    'fft.rfftfreq': lambda d: jnp.fft.rfftfreq(8, device=d),
    'from_dlpack': lambda d: jnp.from_dlpack(HOST, device=d),
    'full': lambda d: jnp.full(8, 1., device=d),
    'full_like': lambda d: jnp.full_like(HOST, 1., device=d),
    'linspace': lambda d: jnp.linspace(0, 1, 8, device=d),
    'ones': lambda d: jnp.ones(8, device=d),
    'ones_like': lambda d: jnp.ones_like(HOST, device=d),
    'zeros': lambda d: jnp.zeros(8, device=d),
    'zeros_like': lambda d: jnp.zeros_like(HOST, device=d),
}


class ArrayApiDeviceArgumentTest(jtu.JaxTestCase):

  def check_refused(self, call, function):
    try:
      call()
    except Exception as e:
      said = f'{type(e).__name__}: {e}'
    else:
      said = 'nothing'
    self.assertStartsWith(
        said, f'TypeError: {function}: expected device to be None,',
        'a device that is none is not refused by name')

  @red(NO_DEVICE)
  @parameterized.parameters(*CALLS)
  def test_no_device(self, name):
    for bad in ('cpu', 0, (jax.devices()[0],), object(), HOST,
                js.PartitionSpec('x')):
      for call in (CALLS[name], lambda d: jax.jit(lambda: CALLS[name](d))()):
        self.check_refused(lambda: call(bad), f'jax.numpy.{name}')

  @red(NO_DEVICE)
  def test_no_device_to_move_to(self):
    x = jnp.asarray(HOST)
    self.check_refused(lambda: x.to_device('cpu'), 'jax.Array.to_device')

  @red(NO_DEVICE)
  def test_no_device_to_import_to(self):
    for bad in ('cpu', 0):
      self.check_refused(lambda: jax.dlpack.from_dlpack(HOST, device=bad),
                         'jax.dlpack.from_dlpack')

  @parameterized.parameters(*CALLS)
  def test_devices_stay_valid(self, name):
    mesh = js.Mesh(np.array(jax.devices()[:1]), ('x',))
    for device in (jax.devices()[3],
                   js.SingleDeviceSharding(jax.devices()[3]),
                   js.NamedSharding(mesh, js.PartitionSpec())):
      x = CALLS[name](device)
      self.assertEqual(x.devices(), {jax.devices()[3]} if not isinstance(
          device, js.NamedSharding) else {jax.devices()[0]})
      self.assertTrue(x.committed)
    self.assertEqual(CALLS[name](None).devices(), {jax.devices()[0]})

  @unittest.skipIf(jax.__version_info__ < (0, 5, 3),
                   'device_put takes no PartitionSpec there')
  def test_what_device_put_takes_passes(self):
    # eye ends in device_put, whose devices are more than the page promises.
    mesh = js.Mesh(np.array(jax.devices()), ('x',))
    # Newer releases took use_mesh away, older ones set_mesh as a context.
    use = getattr(js, 'use_mesh', None) or jax.set_mesh
    with use(mesh):
      for x in (jnp.eye(8, device=js.PartitionSpec('x')),
                jnp.ones(8).to_device(js.PartitionSpec('x'))):
        self.assertLen(x.devices(), 8)
