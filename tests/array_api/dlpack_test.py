# SPDX-License-Identifier: Apache-2.0
"""from_dlpack copies, shares and places as it says (jax#27606)."""

import sys

from absl.testing import parameterized
import jax
from jax._src import dtypes
from jax._src import test_util as jtu
import jax.dlpack
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from testing.red import red
from testing.sharding import columns, eight_devices

jax.config.parse_flags_with_absl()
eight_devices()

# What pristine JAX says.
SHOWS_A_WRITE = (r'^AssertionError: \s+Arrays are not equal\s+shows a '
                 r'write\s+Mismatched elements:')
OTHER_LAYOUT = ('^AssertionError: not imported: .*UNIMPLEMENTED: from_dlpack '
                'got array with non-default layout')
NOT_COMPACT = ('^AssertionError: not imported:.*: UNIMPLEMENTED: Only DLPack '
               r'tensors with trivial \(compact')
PLACED_ELSEWHERE = '^AssertionError: .*placed elsewhere'
NO_SUCH_DTYPE = ('^AssertionError: not imported: BufferError: DLPack only '
                 'supports signed/unsigned integers, float and')
UNEQUAL_ARRAYS = (r'^AssertionError: \s+Arrays are not equal\s+Mismatched '
                  'elements: ')
NOT_EXPORTED = '^AssertionError: not imported: BufferError'
COPIED = '^AssertionError: .*copied without a word'
READ_ONLY = {
    '<0.12':
        '^AssertionError: not imported: BufferError: Cannot export readonly '
        'array since signalling readonly',
    '>=0.12':
        '^AssertionError: not imported: JaxRuntimeError: UNIMPLEMENTED: Only '
        'DLPack tensors with trivial',
}
UNEQUAL_ARRAYS_BY_RELEASE = {
    '<0.7.2': UNEQUAL_ARRAYS,
    '>=0.7.2': OTHER_LAYOUT,
}


def memory(n=1024, offset=0, dtype=np.float32):
  """An array at `offset` bytes behind a multiple of 64."""
  size = np.dtype(dtype).itemsize * n
  room = np.zeros(size + 128, np.uint8)
  start = -room.ctypes.data % 64 + offset
  x = room[start:start + size].view(dtype)
  x[:] = np.arange(n)
  return x


def read_only(x):
  x.flags.writeable = False
  return x


# Runtimes from 0.6.1 to 0.7.2 know one order of dimensions in memory only.
READS_ORDERS = not (0, 6, 1) <= jax.__version_info__ < (0, 8) or None

# Name: the array, and whether memory can be shared on any base.
INPUTS = {
    'dense': (lambda: memory(), True),
    'transposed': (lambda: memory(24).reshape(2, 3, 4).transpose(2, 0, 1),
                   READS_ORDERS),
    'fortran': (lambda: memory(12).reshape(4, 3).T, READS_ORDERS),
    'scalar': (lambda: memory(1).reshape(()), True),
    'empty': (lambda: memory(8, 4)[:0], True),
    'empty_rows': (lambda: memory(8, 4)[:0].reshape(3, 0, 2), True),
    'complex': (lambda: np.multiply(np.arange(8), 1 - 2j, casting='unsafe',
                                    out=memory(8, dtype=np.complex64)), True),
    'bool': (lambda: memory(8, dtype=np.bool_), True),
    'half': (lambda: memory(8, dtype=np.float16), True),
    'offset': (lambda: memory(8, 4), False),
    'strided': (lambda: memory(16)[::2], False),
    'reversed': (lambda: memory(16)[::-1], False),
    'columns': (lambda: memory(16).reshape(4, 4)[:, 1:3], False),
    'broadcast': (lambda: np.broadcast_to(memory(3)[:, None], (3, 4)), False),
    'read_only': (lambda: read_only(memory()), None),
    'read_only_strided': (lambda: read_only(memory())[::2], False),
    'bfloat16': (lambda: np.arange(8).astype(ml_dtypes.bfloat16), False),
}


class Producer:
  """An array that another library exports."""

  def __init__(self, x):
    self.x = x

  def __dlpack__(self, **kwargs):
    return self.x.__dlpack__(**kwargs)

  def __dlpack_device__(self):
    return self.x.__dlpack_device__()


def imported(x, **kwargs):
  try:
    return jnp.from_dlpack(x, **kwargs)
  except ValueError:
    raise
  except Exception as e:
    raise AssertionError(f'not imported: {type(e).__name__}: {e}') from e


class ArrayApiDlpackTest(jtu.JaxTestCase):

  @red(NO_SUCH_DTYPE, cases=['bfloat16'])
  @red(READ_ONLY, cases=['broadcast', 'read_only_strided'])
  @red(UNEQUAL_ARRAYS_BY_RELEASE, bases='>=0.6.1,<0.8',
       cases=['transposed', 'fortran'])
  # Moved to another device of the CPU.
  @red(UNEQUAL_ARRAYS, bases='>=0.8,<0.10', cases=['transposed', 'fortran'])
  @red(NOT_COMPACT, cases=['strided', 'reversed', 'columns'])
  @red(NOT_EXPORTED, bases='<0.12', cases=['read_only'])
  @parameterized.parameters(*INPUTS)
  def test_values(self, name):
    make, shares = INPUTS[name]
    want = make()
    for copy in (None, True):
      for device in (None, jax.devices()[0], jax.devices()[3]):
        y = imported(make(), copy=copy, device=device)
        self.assertTrue(y.committed)
        self.assertEqual(y.devices(), {device or jax.devices()[0]})
        self.assertEqual(y.shape, want.shape)
        np.testing.assert_array_equal(np.asarray(y), want)

  @red(NO_SUCH_DTYPE, cases=['bfloat16'])
  @red(READ_ONLY, cases=['broadcast', 'read_only_strided'])
  @red(UNEQUAL_ARRAYS_BY_RELEASE, bases='>=0.6.1,<0.8',
       cases=['transposed', 'fortran'])
  @red(NOT_COMPACT, cases=['strided', 'reversed', 'columns'])
  @red(NOT_EXPORTED, bases='<0.12', cases=['read_only'])
  @red('^AssertionError: .*refused what can be shared', bases='>=0.8.1',
       cases=['empty', 'empty_rows'])
  @red(COPIED, bases='<0.8.1', cases=['offset'])
  @parameterized.parameters(*INPUTS)
  def test_without_a_copy(self, name):
    make, shares = INPUTS[name]
    x = make()
    try:
      y = imported(x, copy=False)
    except ValueError as e:
      self.assertIn('requires a copy', str(e))
      self.assertIn('copy=False', str(e))
      self.assertIsNot(shares, True, 'refused what can be shared')
      return
    self.assertIsNot(shares, False, 'copied without a word')
    np.testing.assert_array_equal(np.asarray(y), x)
    if x.size:
      self.assertEqual(y.unsafe_buffer_pointer(), x.ctypes.data)

  @parameterized.parameters(np.float64, np.int64, np.uint64, np.complex128)
  def test_guard_a_dtype_that_changes_is_converted(self, dtype):
    x = memory(8, dtype=dtype)
    for copy in (None, True, False):  # upstream's testNumpyToJax has them all
      y = imported(x, copy=copy)
      self.assertEqual(y.dtype, dtypes.canonicalize_dtype(dtype))
      np.testing.assert_array_equal(np.asarray(y), x)

  @red('^AssertionError: refused what can be shared: ', bases='>=0.8.1')
  def test_without_a_copy_from_before_versions(self):
    # NumPy before 2.1 and PyTorch export capsules that have no version.
    x = memory(8, 4)[:0]
    old = Producer(x)
    old.__class__ = type('Old', (Producer,), {
        '__dlpack__': lambda self, stream=None: self.x.__dlpack__()})
    try:
      y = imported(old, copy=False)
    except ValueError as e:
      raise AssertionError(f'refused what can be shared: {e}') from e
    self.assertEqual(y.shape, (0,))

  @red({
      '<0.7.2': SHOWS_A_WRITE,
      '>=0.7.2': OTHER_LAYOUT,
  }, bases='>=0.6.1,<0.8', cases=['transposed'])
  @red(NOT_COMPACT, cases=['strided'])
  @red(SHOWS_A_WRITE, bases='>=0.8.1', cases=['dense', 'bool'])
  @parameterized.parameters('dense', 'offset', 'transposed', 'strided', 'bool')
  def test_a_later_write_does_not_show_in_a_copy(self, name):
    for device in (None, jax.devices()[0]):
      for wrap in (lambda x: x, Producer):
        x = INPUTS[name][0]()
        want = x.copy()
        y = imported(wrap(x), copy=True, device=device)
        x[...] = 1 - want
        np.testing.assert_array_equal(np.asarray(y), want, 'shows a write')

  @red(r'^AssertionError: \s*Arrays are not equal\s*shows a write')
  def test_a_write_does_not_race_with_a_copy(self):
    # Devices copy from each other while the caller goes on: on pristine a
    # write shows in most copies of this size.
    for n, megabytes in enumerate([64] * 4 + [16] * 10):
      x = memory(megabytes << 18)
      want = x.copy()
      y = imported(x, copy=(True, None)[n % 2], device=jax.devices()[3])
      x[...] = -1 - want
      np.testing.assert_array_equal(np.asarray(y), want, 'shows a write')

  @red(PLACED_ELSEWHERE, cases=[3])
  @red('^AssertionError: .*shares its memory', bases='>=0.8.1')
  @parameterized.parameters(0, 3)
  def test_own_device(self, k):
    x = jax.device_put(memory(), jax.devices()[k])
    for copy in (None, True, False):
      for device in (None, jax.devices()[k]):
        y = imported(x, copy=copy, device=device)
        self.assertEqual(y.devices(), x.devices(), 'placed elsewhere')
        self.assertEqual(
            y.unsafe_buffer_pointer() == x.unsafe_buffer_pointer(), not copy,
            'copied' if not copy else 'shares its memory')
        np.testing.assert_array_equal(y, memory())
    for copy in (None, True):
      y = imported(x, copy=copy, device=jax.devices()[5])
      self.assertEqual(y.devices(), {jax.devices()[5]})
      np.testing.assert_array_equal(y, memory())
    with self.assertRaisesRegex(ValueError, 'requires a copy'):
      imported(x, copy=False, device=jax.devices()[5])

  # The standard's error is BufferError.
  @red('^AssertionError: a RuntimeError: Unknown backend cuda',
       cases=[(2, 0), (2, 7)])
  @red('^AssertionError: a RuntimeError: .*No matching device found',
       cases=[(1, 100), (1, -1)])
  @parameterized.product(device=[(2, 0), (2, 7), (1, 100), (1, -1)])
  def test_export_to_a_device_that_is_not_there(self, device):
    for copy in (None, True):
      try:
        with self.assertRaises(BufferError):
          jnp.arange(3.).__dlpack__(dl_device=device, copy=copy)
      except RuntimeError as e:
        raise AssertionError(f'a RuntimeError: {e}') from e

  @red('^AssertionError: a ValueError: Specified .* which requires a copy')
  @parameterized.parameters((0, 1), (3, 0))
  def test_export_that_copies_without_leave(self, source, target):
    x = jax.device_put(memory(), jax.devices()[source])
    try:
      with self.assertRaisesRegex(BufferError, 'copy=True or copy=None'):
        x.__dlpack__(dl_device=(1, target), copy=False)
    except ValueError as e:
      raise AssertionError(f'a ValueError: {e}') from e
    with self.assertRaises(ValueError):  # as upstream
      x.__dlpack__(dl_device=(1, target), copy=False)
    np.testing.assert_array_equal(
        np.from_dlpack(jax.device_put(x, jax.devices()[target])), memory())

  @red(PLACED_ELSEWHERE)
  def test_old_name(self):
    x = jax.device_put(memory(), jax.devices()[3])
    self.assertEqual(jax.dlpack.from_dlpack(x).devices(), x.devices(),
                     'placed elsewhere')


class ArrayApiDlpackUnchangedTest(jtu.JaxTestCase):

  def test_numpy_memory_is_shared(self):
    for copy in (None, False):
      x = memory()
      y = jnp.from_dlpack(x, copy=copy)
      self.assertEqual(y.unsafe_buffer_pointer(), x.ctypes.data)

  def test_asarray_and_array_do_not_alias(self):
    for x in (memory(), memory(8, 4), memory(64)[::2]):
      for make in (jnp.array, lambda x: jnp.array(x, device=jax.devices()[0]),
                   lambda x: jnp.array(x, 'float32'),
                   lambda x: jnp.array(memoryview(x)),
                   lambda x: jnp.asarray(x, copy=True),
                   lambda x: jnp.asarray(x, 'float32', copy=True)):
        want = x.copy()
        y = make(x)
        x[...] = -1
        np.testing.assert_array_equal(y, want)
        x[...] = want
    x = jnp.arange(64.)
    for y in (jnp.array(x), jnp.asarray(x, copy=True)):
      self.assertNotEqual(y.unsafe_buffer_pointer(), x.unsafe_buffer_pointer())

  def test_donation_keeps_what_is_shared(self):
    step = jax.jit(lambda y: y + 1, donate_argnums=0)
    x = memory()
    want = x.copy()
    np.testing.assert_array_equal(step(jnp.from_dlpack(x)), want + 1)
    np.testing.assert_array_equal(x, want)
    for k in (0, 3):
      x = jax.device_put(want, jax.devices()[k]) + 0
      y = jnp.from_dlpack(x)
      np.testing.assert_array_equal(step(y), want + 1)
      np.testing.assert_array_equal(x, want)
      z = np.from_dlpack(x)
      np.testing.assert_array_equal(step(x), want + 1)
      np.testing.assert_array_equal(z, want)

  def test_moves_under_jit(self):
    for device in (None, jax.devices()[0], jax.devices()[3]):
      for f in (jnp.from_dlpack, jax.dlpack.from_dlpack):
        for x in (memory(), memory(8, 4)):
          y = jax.jit(lambda f=f, d=device, x=x: f(x, device=d) + 1)()
          np.testing.assert_array_equal(y, x + 1)

  def test_copies_under_jit(self):
    for f in (jnp.from_dlpack, jax.dlpack.from_dlpack):
      for x in (memory(), memory(8, 4)):
        y = jax.jit(lambda y, f=f, x=x: f(x, copy=True) + y)(np.float32(1))
        np.testing.assert_array_equal(y, x + 1)

  @red({
      '<0.7.2': UNEQUAL_ARRAYS,
      '>=0.7.2':
          '^XlaRuntimeError: UNIMPLEMENTED: from_dlpack got array with '
          'non-default layout',
  }, bases='>=0.6.1,<0.8')
  def test_first_asked_under_jit(self):
    # What the runtime does with orders is found out by whoever asks first.
    ours = sys.modules.get('jax._src.array_api.dlpack')
    x = INPUTS['fortran'][0]()
    for under in (jax.jit, lambda f: lambda y: jax.vmap(f)(y[None])[0]):
      if ours is not None:  # mended
        ours._reads_strides.cache_clear()
        ours._moves_strides.cache_clear()
      y = under(lambda y: y + jnp.from_dlpack(x))(jnp.float32(1))
      np.testing.assert_array_equal(y, x + 1)

  if READS_ORDERS:  # else such an array can't be read

    @parameterized.parameters(
        'bfloat16', 'float32',  # the runtime exports the third from 0.5.3 on
        *['float8_e4m3fn'] * (jax.__version_info__ >= (0, 5, 3)))
    def test_columns_of_a_dtype_that_numpy_may_lack(self, dtype):
      x = jnp.arange(6, dtype=dtype).reshape(2, 3)
      x = jax.device_put(x, columns(2, jax.sharding.SingleDeviceSharding(
          jax.devices()[0])))
      for y in (jnp.from_dlpack(x), jnp.from_dlpack(x, copy=True)):
        self.assertEqual(y.dtype, x.dtype)
        np.testing.assert_array_equal(np.asarray(y), np.asarray(x))

  def test_export_to_a_device(self):
    x = jax.device_put(memory(), jax.devices()[3])
    for device in (None, (1, 0), (1, 3)):
      capsule = Producer(x).__dlpack__(dl_device=device)
      self.assertIn('dltensor', repr(capsule))
    with self.assertRaises(BufferError):
      x.__dlpack__(dl_device=(99, 0))

  def test_export(self):
    for dtype in (np.bool_, np.int8, np.float32, np.complex64, np.float16):
      x = jax.device_put(memory(8, dtype=dtype), jax.devices()[3])
      np.testing.assert_array_equal(np.from_dlpack(x), memory(8, dtype=dtype))
    x = jnp.arange(8, dtype=jnp.bfloat16)
    np.testing.assert_array_equal(np.asarray(jnp.from_dlpack(x)),
                                  np.asarray(x))
