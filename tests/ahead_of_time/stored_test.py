# SPDX-License-Identifier: Apache-2.0
"""What a stored executable calls and runs on (jax#28908, jax#24982)."""

import contextlib
import json
import os
import pickle
import subprocess
import sys

from absl.testing import parameterized
import jax
from jax import export
from jax._src import compilation_cache
from jax._src import config
from jax._src import test_util as jtu
from jax.experimental import io_callback
from jax.experimental import serialize_executable
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from jaxlib import lapack as jaxlib_lapack
import numpy as np
from testing.red import red
from testing.sharding import eight_devices

config.parse_flags_with_absl()
# Pristine jax writes what was read back from the cache without its code.
config.update('jax_enable_compilation_cache', False)
eight_devices()

# What pristine JAX says.
FUNCTION_NOT_FOUND = '^AssertionError: .*Function .* not found'
NOT_8_SHARDS = ('^AssertionError: .*JaxRuntimeError: .*to have 8 shards, got: '
                '.1.')
ABORTED = '^AssertionError: .*the process that loads died: -6'
CRASHED = '^AssertionError: .*the process that loads died: -11'
FUNCTION_NOT_FOUND_BY_RELEASE = {
    '<0.8.2': FUNCTION_NOT_FOUND,
    '>=0.8.2,<0.10': NOT_8_SHARDS,
    '>=0.10': FUNCTION_NOT_FOUND,
}

# Newer releases are told the devices.
TOLD_DEVICES = jax.__version_info__ >= (0, 10)
GIVEN = [0] if TOLD_DEVICES else None

A = np.array([[4., 1., 0.], [1., 3., 1.], [0., 1., 2.]], np.float32)
LINALG = {
    'inv': (jnp.linalg.inv, np.linalg.inv),
    'cholesky': (jnp.linalg.cholesky, np.linalg.cholesky),
    'svd': (lambda a: jnp.linalg.svd(a)[1], lambda a: np.linalg.svd(a)[1]),
    'eigh': (lambda a: jnp.linalg.eigh(a)[0], lambda a: np.linalg.eigh(a)[0]),
    'eig': (lambda a: jnp.sort(jnp.linalg.eig(a)[0].real),
            lambda a: np.sort(np.linalg.eig(a)[0].real)),
    'qr': (lambda a: jnp.abs(jnp.linalg.qr(a)[1]),
           lambda a: np.abs(np.linalg.qr(a)[1])),
    'solve': (lambda a: jnp.linalg.solve(a, a[0]),
              lambda a: np.linalg.solve(a, a[0])),
    'triangular': (
        lambda a: jax.scipy.linalg.solve_triangular(a, a[0], lower=True),
        lambda a: np.linalg.solve(np.tril(a), a[0])),
    'fft': (lambda a: jnp.abs(jnp.fft.fft(a)), lambda a: np.abs(np.fft.fft(a))),
}

# Imports jax once, and forks a process for each line: a file of stored programs
# and XLA's flags. What that one says is in a file beside it.
_LOADER = """
import json, os, pickle, sys
import jax, numpy as np
from jax import export
from jax.experimental import serialize_executable

def load(programs):
  for name, (stored, arg, given) in programs.items():
    try:
      if isinstance(stored, tuple):
        options = {}
        if given is not None:
          options['execution_devices'] = [jax.devices()[i] for i in given]
        out = serialize_executable.deserialize_and_load(*stored, **options)(arg)
      else:
        out = export.deserialize(bytearray(stored)).call(arg)
      said = np.asarray(out).tolist(), sorted(d.id for d in out.devices())
    except Exception as e:
      said = f'{type(e).__name__}: {e}'
    print('SAID', json.dumps([name, said]), flush=True)

for line in sys.stdin:
  path, os.environ['XLA_FLAGS'] = json.loads(line)
  if not (child := os.fork()):
    said = os.open(path + '.said', os.O_WRONLY | os.O_CREAT)
    os.dup2(said, 1)
    os.dup2(said, 2)
    with open(path, 'rb') as f:
      sys.exit(load(pickle.load(f)))
  print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def noted(x):
  return x


def stored(f, *args, **options):
  compiled = jax.jit(f, **options).lower(*args).compile()
  return serialize_executable.serialize(compiled)


def over(numbers):
  devices = np.array([jax.devices()[i] for i in numbers])
  return NamedSharding(Mesh(devices, ('x',)), P('x'))


class StoredExecutableTest(jtu.JaxTestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.loader = subprocess.Popen(
        [sys.executable, '-c', _LOADER], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True,
        env={**os.environ, 'JAX_PLATFORMS': 'cpu'})
    cls.addClassCleanup(cls.loader.communicate)

  def load(self, programs, devices=8):
    """Loads and calls stored programs in a new process.

    Args:
      programs: by name, what was stored, the argument, and the numbers of the
        devices given, or None.
      devices: how many the process has.

    Returns:
      By name: the result and the numbers of its devices, or the error.
    """
    path = self.create_tempfile().full_path
    with open(path, 'wb') as f:
      pickle.dump(programs, f)
    flag = f'--xla_force_host_platform_device_count={devices}'
    print(json.dumps([path, flag]), file=self.loader.stdin, flush=True)
    code = self.loader.stdout.readline().strip()
    with open(path + '.said', encoding='utf-8') as f:
      said = f.read()
    self.assertEqual(code, '0', 'the process that loads died: '
                     f'{code}\n{said[-2000:]}')
    said = dict(json.loads(line.removeprefix('SAID '))
                for line in said.splitlines() if line.startswith('SAID '))
    self.assertEqual(set(said), set(programs))
    return said

  def assertSays(self, said, expected, devices):
    """Asserts the result and the numbers of its devices."""
    self.assertIsInstance(said, list, said)
    self.assertAllClose(np.array(said[0]), np.asarray(expected),
                        check_dtypes=False, rtol=1e-4, atol=1e-4)
    self.assertEqual(said[1], devices)

  @red({
      '<0.8.2': CRASHED,
      '>=0.8.2,<0.10': NOT_8_SHARDS,
      '>=0.10': CRASHED,
  })
  def test_linear_algebra(self):
    said = self.load({
        name: (stored(f, A), A, GIVEN) for name, (f, _) in LINALG.items()})
    for name, (_, oracle) in LINALG.items():
      self.assertSays(said[name], oracle(A), [0])

  @red(CRASHED, bases='<0.10')
  def test_linear_algebra_exported(self):
    names = ('inv', 'cholesky')
    said = self.load({
        name: (bytes(export.export(jax.jit(LINALG[name][0]))(A).serialize()), A,
               None) for name in names})
    for name in names:
      self.assertSays(said[name], LINALG[name][1](A), [0])

  @red('^AssertionError: .*No FFI handler registered for '
       'cpu_csr_sparse_dense_ffi', bases='>=0.10')
  def test_sparse(self):
    if not TOLD_DEVICES:
      self.skipTest('this release has no sparse kernel on the CPU')
    # pylint: disable-next=g-import-not-at-top
    import jax.experimental.sparse._lowerings  # registers the kernel
    rows, columns = np.nonzero(A)
    starts = np.searchsorted(rows, range(4)).astype(np.int32)
    def multiply(x):
      kernel = jax.ffi.ffi_call('cpu_csr_sparse_dense_ffi',
                                jax.ShapeDtypeStruct(A.shape, A.dtype))
      return kernel(A[rows, columns], starts, columns.astype(np.int32), x)
    said = self.load({'sparse': (stored(multiply, A), A, GIVEN)})
    self.assertSays(said['sparse'], A @ A, [0])

  @red('^AssertionError: .*not found in .*stored_test_kernel')
  def test_unknown_kernel(self):
    # A name that the storing process alone knows; it is never called here.
    if hasattr(jaxlib_lapack, 'registrations'):
      kernels = jaxlib_lapack.registrations()['cpu']
    else:  # 0.5.1
      kernels = jaxlib_lapack._lapack.registrations().items()
    potrf, = [t[1] for t in kernels if t[0] == 'lapack_spotrf_ffi']
    jax.ffi.register_ffi_target('stored_test_kernel', potrf, platform='cpu')
    result = jax.ShapeDtypeStruct(A.shape, A.dtype)
    def call(x):
      return jax.ffi.ffi_call(
          'stored_test_kernel', (result, jax.ShapeDtypeStruct((), np.int32)))(
              x, uplo=np.uint8(ord('L')))[0]
    said = self.load({'kernel': (stored(call, A), A, GIVEN)})
    self.assertRegex(str(said['kernel']), '(?s)stored_test_kernel.*'
                     'deserialize_and_load.*jax.ffi.register_ffi_target')

  @red(NOT_8_SHARDS, bases='>=0.8.2')
  @red('^AssertionError: the process that loads died: -6.*device and buffer '
       'counts mismatch', bases='>=0.6.1,<0.8.2')
  def test_one_device_of_eight(self):
    said = self.load({
        n: (stored(jnp.sin, jax.device_put(A, jax.devices()[n])), A, None)
        for n in (0, 3)})
    for n in (0, 3):
      self.assertSays(said[n], np.sin(A), [n])

  @red({
      '>=0.6.1,<0.8.2': ABORTED,
      '>=0.8.2,<0.10.1':
          '^AssertionError: .*JaxRuntimeError: .*to have 8 shards, got: .4.',
      '>=0.10.1': ABORTED,
  })
  def test_some_of_the_devices(self):
    x = np.arange(16, dtype=np.float32).reshape(8, 2)
    programs = {}
    for numbers in ((0, 1, 2, 3), (4, 5, 6, 7), (3, 1, 2, 0), tuple(range(8))):
      parts = stored(lambda x: jnp.cumsum(x, 0), x, in_shardings=over(numbers),
                     out_shardings=over(numbers))
      programs[str(numbers)] = (parts, x, None)
    for name, said in self.load(programs).items():
      self.assertSays(said, np.cumsum(x, 0), sorted(json.loads(
          f'[{name[1:-1]}]')))

  @red(ABORTED, bases='>=0.10')
  def test_given_devices(self):
    if not TOLD_DEVICES:
      self.skipTest('this release takes no execution_devices')
    x = np.arange(16, dtype=np.float32).reshape(8, 2)
    def four(numbers):
      return stored(lambda x: jnp.cumsum(x, 0), x, in_shardings=over(numbers),
                    out_shardings=over(numbers))
    said = self.load({
        'one': (stored(jnp.sin, A), A, [5]),
        'same': (stored(jnp.sin, A), A, [0]),
        'linear algebra': (stored(LINALG['inv'][0], A), A, [2]),
        'four': (four((0, 1, 2, 3)), x, [4, 5, 6, 7]),
        'reordered': (four((0, 1, 2, 3)), x, [3, 0, 2, 1]),
        'permuted': (four((3, 1, 2, 0)), x, [0, 1, 2, 3]),
        'too few': (four((0, 1, 2, 3)), x, [6, 7]),
        'too many': (stored(jnp.sin, A), A, list(range(8))),
    })
    self.assertSays(said['one'], np.sin(A), [5])
    self.assertSays(said['same'], np.sin(A), [0])
    self.assertSays(said['linear algebra'], np.linalg.inv(A), [2])
    self.assertSays(said['four'], np.cumsum(x, 0), [4, 5, 6, 7])
    self.assertSays(said['reordered'], np.cumsum(x, 0), [0, 1, 2, 3])
    self.assertSays(said['permuted'], np.cumsum(x, 0), [0, 1, 2, 3])
    self.assertRegex(said['too few'], 'expected 4 execution_devices.*got 2')
    self.assertRegex(said['too many'], 'expected 1 execution_devices.*got 8')

  @contextlib.contextmanager
  def cache(self):
    """Yields a folder; what is compiled within is cached there."""
    folder = self.create_tempdir().full_path
    names = ('jax_enable_compilation_cache', 'jax_compilation_cache_dir',
             'jax_persistent_cache_min_compile_time_secs',
             'jax_persistent_cache_min_entry_size_bytes')
    before = {name: getattr(jax.config, name) for name in names}
    kept = {name: value for name, value in vars(compilation_cache).items()
            if name.startswith('_cache')}
    try:
      for name, value in zip(names, (True, folder, 0, -1)):
        jax.config.update(name, value)
      compilation_cache.reset_cache()
      jax.clear_caches()
      yield folder
    finally:
      for name, value in before.items():
        jax.config.update(name, value)
      vars(compilation_cache).update(kept)
      jax.clear_caches()  # what was read from there has gone with it

  @red(FUNCTION_NOT_FOUND_BY_RELEASE)
  def test_from_the_cache(self):
    x = np.arange(16, dtype=np.float32).reshape(8, 2)
    over_eight = over(range(8))
    calls = {
        'computes': ((jnp.sin, A), np.sin(A), [0]),
        'linear algebra': ((LINALG['inv'][0], A), np.linalg.inv(A), [0]),
        'does nothing': ((lambda x: x, A), A, [0]),
    }
    if TOLD_DEVICES:  # before, the cache itself gives wrong numbers at times
      calls['eight'] = ((lambda x: jnp.cumsum(x, 0), x), np.cumsum(x, 0),
                        list(range(8)))
    programs = {}
    with self.cache() as folder:
      for name, (call, _, devices) in calls.items():
        options = {} if devices == [0] else dict(
            in_shardings=over_eight, out_shardings=over_eight)
        stored(*call, **options)
        jax.clear_caches()
        entries = os.listdir(folder)
        programs[name] = (stored(*call, **options), call[1],
                          devices if TOLD_DEVICES else None)
        self.assertEqual([e for e in os.listdir(folder) if e not in entries
                          and not e.endswith('atime')], [])
    for name, said in self.load(programs).items():
      self.assertSays(said, calls[name][1], calls[name][2])

  def again(self, parts, numbers=(0,)):
    """Stores once more what was loaded on these devices."""
    options = {} if not TOLD_DEVICES else {
        'execution_devices': [jax.devices()[i] for i in numbers]}
    return serialize_executable.serialize(
        serialize_executable.deserialize_and_load(*parts, **options))

  @red(FUNCTION_NOT_FOUND_BY_RELEASE)
  def test_loaded_and_stored_again(self):
    twice = self.again(self.again(stored(jnp.sin, A)))
    said = self.load({'twice': (twice, A, GIVEN)})
    self.assertSays(said['twice'], np.sin(A), [0])

  @red(r'^KeyError: 0, raised by serialize_executable\.persistent_load',
       bases='>=0.10')
  def test_loaded_elsewhere_and_stored_again(self):
    if not TOLD_DEVICES:
      self.skipTest('this release takes no execution_devices')
    x = np.arange(16, dtype=np.float32).reshape(8, 2)
    pair = stored(lambda x: jnp.cumsum(x, 0), x, in_shardings=over((0, 1)),
                  out_shardings=over((0, 1)))
    moved = self.again(self.again(pair, (5, 4)), (6, 7))
    one = self.again(stored(jnp.sin, A), (5,))
    said = self.load({'stays': (moved, x, None), 'back': (moved, x, [0, 1]),
                      'one': (one, A, [2])})
    self.assertSays(said['stays'], np.cumsum(x, 0), [6, 7])
    self.assertSays(said['back'], np.cumsum(x, 0), [0, 1])
    self.assertSays(said['one'], np.sin(A), [2])

  @red('^AssertionError: ValueError not raised')
  def test_entry_of_the_cache_is_gone(self):
    with self.cache() as folder:
      stored(jnp.sin, A)
      jax.clear_caches()
      compiled = jax.jit(jnp.sin).lower(A).compile()
      for name in os.listdir(folder):
        os.remove(os.path.join(folder, name))
      with self.assertRaisesRegex(ValueError, 'cache that is gone. Compile it'):
        serialize_executable.serialize(compiled)

  @red("^AssertionError: .*serialize: expected an executable that hasn't "
       'been called.*does not match .*LessThan')
  @parameterized.parameters('sort', 'argsort', 'median')
  def test_called_and_then_stored(self, name):
    compiled = jax.jit(getattr(jnp, name)).lower(A).compile()
    compiled(A)
    with self.assertRaisesRegex(
        RuntimeError, "serialize: expected an executable that hasn't been "
        r'called.*or call jax.clear_caches\(\), then lower'):
      serialize_executable.serialize(compiled)

  def test_stored_before_a_call_or_anew(self):
    # Elsewhere the tests compile equal programs once, and have called this one.
    before = jax.config.jax_compilation_cache_dir
    self.addCleanup(jax.config.update, 'jax_compilation_cache_dir', before)
    jax.config.update('jax_compilation_cache_dir',
                      self.create_tempdir().full_path)
    sorts = lambda a: jnp.sort(a)
    compiled = jax.jit(sorts).lower(A).compile()
    before = serialize_executable.serialize(compiled)
    compiled(A)
    jax.clear_caches()
    anew = stored(sorts, A)
    for parts in before, anew:
      self.assertIn(b'sort', parts[0])
      if TOLD_DEVICES:  # before, a release may run it on all devices
        loaded = serialize_executable.deserialize_and_load(
            *parts, execution_devices=jax.devices()[:1])
        self.assertArraysEqual(loaded(A), np.sort(A))

  @red("^AssertionError: Regex didn't match: 'the 4 "
       r'device\\\\\(s\\\\\)\.\*\\\\\[0, 1, 2, 3\\\\\]\.\*process with 2')
  def test_too_few_devices(self):
    x = np.arange(16, dtype=np.float32).reshape(8, 2)
    four = stored(jnp.sin, x, in_shardings=over(range(4)))
    said = self.load({'four': (four, x, None)}, devices=2)
    self.assertRegex(
        said['four'], r'the 4 device\(s\).*\[0, 1, 2, 3\].*process with '
        r'2 device\(s\), without \[2, 3\]')

  @red(r"^AssertionError: Regex didn't match: 'ValueError: \.\*serialize: "
       'expected an executable that calls no')
  @parameterized.named_parameters(
      ('_print', lambda x: jax.debug.print('{}', x), 'jax.debug.print'),
      ('_debug', lambda x: jax.debug.callback(noted, x), 'noted'),
      ('_pure', lambda x: jax.pure_callback(noted, x, x), 'noted'),
      ('_io', lambda x: io_callback(noted, x, x), 'noted'))
  def test_callbacks_are_named(self, call, name):
    def f(x):
      out = call(x)
      return x if out is None else out
    name = name if jax.__version_info__ >= (0, 6) else 'callback in .*_test.py'
    try:
      stored(f, A)
      said = 'stored'
    except Exception as e:  # pylint: disable=broad-except
      said = f'{type(e).__name__}: {e}'
    self.assertRegex(
        said, 'ValueError: .*serialize: expected an executable that calls no '
        rf'Python, got one with 1 callback\(s\), to .*{name}')
