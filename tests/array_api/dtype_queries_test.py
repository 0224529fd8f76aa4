# SPDX-License-Identifier: Apache-2.0
"""The Array API's dtype queries refuse what they do not know (jax#27606)."""
import re

from absl.testing import parameterized
import array_api_extra as xpx
import jax
from jax._src import test_util as jtu
import jax.numpy as jnp
import numpy as np
from testing.red import red

jax.config.parse_flags_with_absl()

KINDS = ('bool', 'signed integer', 'unsigned integer', 'integral',
         'real floating', 'complex floating', 'numeric')


def info():
  return jnp.__array_namespace_info__()


def enable_x64(on):
  if hasattr(jax.experimental, 'enable_x64'):
    return jax.experimental.enable_x64(on)
  return jax.enable_x64(on)


def some_devices():
  mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ('x',))
  spec = jax.sharding.PartitionSpec('x')
  return [None, jax.devices()[0],
          jax.sharding.SingleDeviceSharding(jax.devices()[0]),
          jax.sharding.NamedSharding(mesh, spec)]


class ArrayApiDtypeQueriesTest(jtu.JaxTestCase):

  @red(r"^KeyError: '.*, raised by array_api_metadata\.dtypes")
  @parameterized.parameters('decimal', 'int32', 'Bool', '')
  def test_unknown_kind_names_the_valid_ones(self, kind):
    for bad in (kind, ('bool', kind)):
      with self.assertRaises(ValueError) as caught:
        info().dtypes(kind=bad)
      message = str(caught.exception)
      self.assertIn(repr(kind), message)
      for valid in KINDS:
        self.assertIn(repr(valid), message)

  @red(r"^KeyError: <class 'numpy\.float32'>", cases=['float32'])
  @red(r'^KeyError: .*, raised by array_api_metadata\.dtypes')
  @parameterized.parameters(
      (3,), (np.float32,), (('bool', ('numeric',)),), ((None,),))
  def test_kind_of_a_wrong_type(self, kind):
    with self.assertRaisesRegex(TypeError, re.escape(repr(kind))):
      info().dtypes(kind=kind)

  @red('^AssertionError: TypeError not raised')
  @parameterized.product(
      method=['dtypes', 'default_dtypes'],
      device=['cpu', 0, object, np.zeros(2), (None,), []])
  def test_no_device(self, method, device):
    with self.assertRaisesRegex(
        TypeError, rf'{method}: expected device to be None, a jax.Device or'):
      getattr(info(), method)(device=device)

  @parameterized.parameters(False, True)
  def test_valid_queries(self, x64):
    with enable_x64(x64):
      bits = (8, 16, 32, 64) if x64 else (8, 16, 32)
      want = {
          'bool': {'bool'},
          'signed integer': {f'int{n}' for n in bits},
          'unsigned integer': {f'uint{n}' for n in bits},
          'real floating': {f'float{n}' for n in bits if n >= 32},
          'complex floating': {f'complex{2 * n}' for n in bits if n >= 32},
      }
      want['integral'] = want['signed integer'] | want['unsigned integer']
      want['numeric'] = (want['integral'] | want['real floating']
                         | want['complex floating'])
      for device in some_devices():
        for kind in KINDS:
          self.assertEqual(set(info().dtypes(device=device, kind=kind)),
                           want[kind])
        self.assertEqual(set(info().dtypes(device=device)),
                         want['numeric'] | want['bool'])
        self.assertEqual(
            set(info().dtypes(device=device, kind=('bool', 'real floating'))),
            want['bool'] | want['real floating'])
        self.assertEqual(info().dtypes(device=device, kind=()), {})

  @parameterized.parameters(False, True)
  def test_default_dtypes_are_those_of_new_arrays(self, x64):
    with enable_x64(x64):
      for device in some_devices():
        got = info().default_dtypes(device=device)
        new = {'real floating': jnp.asarray([1.], device=device),
               'complex floating': jnp.asarray([1j], device=device),
               'integral': jnp.asarray([1], device=device),
               'indexing': jnp.argmax(jnp.ones(2))}
        self.assertEqual(got, {kind: x.dtype for kind, x in new.items()})
        if hasattr(xpx, 'default_dtype'):
          self.assertEqual(xpx.default_dtype(jnp, 'integral', device=device),
                           got['integral'])
