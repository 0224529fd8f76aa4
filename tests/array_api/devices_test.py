# SPDX-License-Identifier: Apache-2.0
"""Every device that the Array API's inspection offers can be used (jax#27606).

What needs its own set of backends runs in a child of this file's, started once:
it imports jax, and forks a process for each set. Those write what they saw as
JSON, and the tests judge.
"""
import contextlib
import functools
import inspect
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile

from absl.testing import absltest
from absl.testing import parameterized
import array_api_compat
import array_api_extra as xpx
import jax
from jax._src import test_util as jtu
from jax._src import xla_bridge as xb
from jax._src.lib import xla_client as xc
import jax.numpy as jnp
import numpy as np
from testing.red import red

jax.config.parse_flags_with_absl()

# What pristine JAX says.
OTHER_ORDER = "^AssertionError: .*the default backend's, then the other's"
CHILD = sys.argv[1:2] == ['child']  # which asks for its own devices
if not CHILD and hasattr(jtu, 'request_cpu_devices'):
  jtu.request_cpu_devices(8)
elif not CHILD:
  os.environ.setdefault(
      'XLA_FLAGS', '--xla_force_host_platform_device_count=8')

HOST = np.arange(6, dtype=np.float32)

# Name: the call with device=d, and what NumPy makes of it (None: no values).
CREATION = {
    'arange': (lambda d: jnp.arange(1, 9, 2, device=d), np.arange(1, 9, 2)),
    'array': (lambda d: jnp.array([1.5, 2], device=d), np.array([1.5, 2])),
    'asarray': (lambda d: jnp.asarray(HOST, device=d), HOST),
    'astype': (lambda d: jnp.astype(jnp.asarray(HOST), 'int8', device=d),
               HOST.astype('int8')),
    'empty': (lambda d: jnp.empty((2, 3), device=d), None),
    'empty_like': (lambda d: jnp.empty_like(HOST, device=d), None),
    'eye': (lambda d: jnp.eye(3, 4, k=1, device=d), np.eye(3, 4, k=1)),
    'fft.fftfreq': (lambda d: jnp.fft.fftfreq(6, device=d), np.fft.fftfreq(6)),
    'fft.rfftfreq': (lambda d: jnp.fft.rfftfreq(6, device=d),
                     np.fft.rfftfreq(6)),
    'from_dlpack': (lambda d: jnp.from_dlpack(HOST, device=d), HOST),
    'full': (lambda d: jnp.full((2, 3), 7, device=d), np.full((2, 3), 7)),
    'full_like': (lambda d: jnp.full_like(HOST, HOST[::-1], device=d),
                  HOST[::-1]),
    'linspace': (lambda d: jnp.linspace(0, 1, 5, device=d),
                 np.linspace(0, 1, 5)),
    'ones': (lambda d: jnp.ones(3, device=d), np.ones(3)),
    'ones_like': (lambda d: jnp.ones_like(HOST, device=d), np.ones(6)),
    'zeros': (lambda d: jnp.zeros(3, device=d), np.zeros(3)),
    'zeros_like': (lambda d: jnp.zeros_like(HOST, device=d), np.zeros(6)),
}


# Those that the children call, which compile for each device: what the host
# has, what is computed there, and what is like another array.
SOME = ('asarray', 'from_dlpack', 'full_like', 'linspace', 'zeros')


def info():
  return jnp.__array_namespace_info__()


def usable(device):
  """True if creation functions put on `device` what NumPy makes."""
  for call, want in map(CREATION.get, SOME):
    x = call(device)
    y = jnp.zeros(x.shape, x.dtype).to_device(device)
    if device is not None and not (x.device is device and y.device is device):
      return False
    if want is not None and not np.allclose(x, want):
      return False
  return True


def seen():
  """devices(), in terms that another process can read."""
  out = []
  for d in info().devices():
    row = {'usable': False}
    with contextlib.suppress(Exception):
      row['usable'] = usable(d)
    if d is not None:
      name, = (name for name, c in xb.backends().items() if c is d.client)
      row.update(backend=name, id=d.id, process=d.process_index)
    out.append(row)
  return out


def in_one_backend(backend, ids, process=0):
  return [dict(usable=True, backend=backend, id=i, process=process)
          for i in ids]


def see_two_backends(priority):
  """A second CPU client named other, and a third that cannot start."""
  def broken():
    raise RuntimeError('no such hardware')
  xb.register_backend_factory('other', xc.make_cpu_client, priority=priority,
                              fail_quietly=True)
  xb.register_backend_factory('broken', broken, priority=500,
                              fail_quietly=True)
  return seen()


def see_job(address, process):
  """One of two processes with two devices each."""
  jax.config.update('jax_platforms', 'cpu')
  jax.distributed.initialize(address, num_processes=2, process_id=process)
  return seen()


def run_children(folder, address):
  """Forks a process for each set of backends, and waits for all."""
  for name, see, *args in (('registered first', see_two_backends, -10),
                           ('registered last', see_two_backends, 10),
                           ('process 0', see_job, address, 0),
                           ('process 1', see_job, address, 1)):
    if not os.fork():
      signal.alarm(50)  # ends one that waits forever
      saw = json.dumps(see(*args))
      pathlib.Path(folder, name).write_text(saw, encoding='utf-8')
      return
  with contextlib.suppress(ChildProcessError):
    while True:
      os.wait()


@functools.cache
def children():
  """The devices that each child saw, by name, and its words for errors."""
  with socket.socket() as s:
    s.bind(('localhost', 0))
    address = f'localhost:{s.getsockname()[1]}'
  env = dict(os.environ, JAX_PLATFORMS='', TF_CPP_MIN_LOG_LEVEL='3',
             XLA_FLAGS='--xla_force_host_platform_device_count=2')
  with tempfile.TemporaryDirectory() as folder:
    child = subprocess.run(
        [sys.executable, os.path.abspath(__file__), 'child', folder, address],
        env=env, capture_output=True, text=True, check=False)
    return {path.name: json.loads(path.read_text(encoding='utf-8'))
            for path in pathlib.Path(folder).iterdir()}, child.stderr


def seen_by(child):
  saw, errors = children()
  if child not in saw:
    raise RuntimeError(f'{child} said nothing:\n{errors[-3000:]}')
  return saw[child]


class ArrayApiDevicesTest(jtu.JaxTestCase):

  @red(r'^AssertionError: Lists differ: \[CpuDevice', bases='<0.6')
  def test_one_backend(self):
    devices = info().devices()
    self.assertEqual(list(devices), [None, *jax.local_devices()])
    newer = jax.__version_info__ >= (0, 11)
    self.assertIsInstance(devices, tuple if newer else list)

  @red(r'^AssertionError: .*devices\(\) lacks the default device', bases='<0.6')
  def test_default_device_is_listed(self):
    self.assertIsNone(info().default_device())
    self.assertIn(None, info().devices(), 'devices() lacks the default device')

  @red("^AssertionError: '``None``' not found in 'no docstring'")
  def test_docstrings_say_what_none_means(self):
    for method in (info().devices, info().default_device):
      doc = method.__doc__ or 'no docstring'
      self.assertIn('``None``', doc)
      self.assertIn(':func:`jax.default_device`', doc)

  def check_two_backends(self, child, first, second):
    self.assertEqual(
        seen_by(child),
        [{'usable': True}, *in_one_backend(first, range(2)),
         *in_one_backend(second, range(2))],
        "devices() is not None, then the default backend's, then the other's")

  @red(OTHER_ORDER, bases='<0.6')
  def test_two_backends_default_registered_first(self):
    self.check_two_backends('registered first', 'cpu', 'other')

  @red(OTHER_ORDER)
  def test_two_backends_default_registered_last(self):
    self.check_two_backends('registered last', 'other', 'cpu')

  @red('^AssertionError: .*is not None and its own two')
  def test_two_processes(self):
    results = [seen_by(f'process {p}') for p in range(2)]
    for process, rows in enumerate(results):
      self.assertEqual(
          [row.get('process') for row in rows], [None, process, process],
          f'devices() in process {process} is not None and its own two')
      self.assertEqual(rows, [{'usable': True}, *in_one_backend(
          'cpu', [row['id'] for row in rows[1:]], process)])

  def test_default_device_setting_moves_nothing_in_the_list(self):
    before = info().devices()
    with jax.default_device(jax.devices()[3]):
      self.assertEqual(info().devices(), before)
      self.assertIsNone(info().default_device())
      self.assertIs(jnp.zeros(3, device=None).device, jax.devices()[3])
      self.assertIs(jnp.zeros(3, device=jax.devices()[1]).device,
                    jax.devices()[1])

  def test_no_device_argument_is_forgotten_here(self):
    taking = set()
    for prefix, module in ('', jnp), ('fft.', jnp.fft):
      for name in dir(module):
        with contextlib.suppress(TypeError, ValueError):
          if 'device' in inspect.signature(getattr(module, name)).parameters:
            taking.add(prefix + name)
    self.assertEqual(taking, set(CREATION))

  @parameterized.product(name=sorted(CREATION), x64=[False, True])
  def test_creation(self, name, x64):
    call, want = CREATION[name]
    with jax.experimental.enable_x64(x64) if hasattr(
        jax.experimental, 'enable_x64') else jax.enable_x64(x64):
      free = call(None)
      self.assertIs(free.device, jax.devices()[0])
      if want is not None:
        np.testing.assert_allclose(free, want, rtol=1e-6)
      for d in jax.devices()[::3]:  # each compiles for itself
        x = call(d)
        self.assertIs(x.device, d)
        self.assertEqual(x.aval.dtype, free.aval.dtype)
        if want is not None:
          np.testing.assert_array_equal(x, free)
        self.assertIs(free.to_device(d).device, d)
        self.assertIs(x.to_device(None).device, d)

  @parameterized.parameters(False, True)
  def test_array_api_compat_helpers(self, jit):
    x = jnp.arange(4.)
    for d in [None, *jax.devices()]:
      y = array_api_compat.to_device(x, d)
      self.assertIs(array_api_compat.device(y), d or jax.devices()[0])
      self.assertIs(array_api_compat.get_namespace(y), jnp)

    def double(x):
      xp = array_api_compat.array_namespace(x)
      return x + xp.asarray(HOST[:4], device=array_api_compat.device(x))

    # Under jit compat's device() is None: jit decides.
    y = (jax.jit(double) if jit else double)(x.to_device(jax.devices()[2]))
    self.assertIs(y.device, jax.devices()[2])
    np.testing.assert_array_equal(y, 2 * HOST[:4])

  def test_array_api_extra(self):
    for d in [None, *jax.devices()[::3]]:
      x = jnp.linspace(-1., 1., 4, device=d)
      at = d or jax.devices()[0]
      self.assertEqual(xpx.default_dtype(jnp, device=d)
                       if hasattr(xpx, 'default_dtype') else x.dtype, x.dtype)
      for y, want in (
          (xpx.create_diagonal(x), np.diag(np.asarray(x))),
          (xpx.sinc(x), np.sinc(np.asarray(x))),
          (xpx.pad(x, 1), np.pad(np.asarray(x), 1)),
          (xpx.at(x, 1).set(9.), np.where(np.arange(4) == 1, 9., x))):
        self.assertIs(array_api_compat.device(y), at)
        np.testing.assert_allclose(y, want, rtol=1e-6, atol=1e-6)


if __name__ == '__main__':
  if CHILD:
    run_children(*sys.argv[2:])
  else:
    absltest.main(testLoader=jtu.JaxTestLoader())
