# SPDX-License-Identifier: Apache-2.0
"""What `jax.experimental.torch_xla` lowers, checked without PyTorch.

tests/parameter_map/torch_xla/call_jax_heavy.py runs it with PyTorch/XLA; the
command is in docs/parameter_map.md.
"""

import subprocess
import sys
from unittest import mock

from absl.testing import parameterized
import jax
from jax._src import compiler
from jax._src import test_util as jtu
from jax._src import xla_bridge
from jax._src.lib import xla_client as xc
from jax.experimental import io_callback
import jax.numpy as jnp
import numpy as np
from parameter_map.testing import torch_stand_in
from parameter_map.testing.torch_stand_in import Tensor
from testing.red import red

try:
  from jax.experimental import torch_xla
except ImportError:
  torch_xla = None

jax.config.parse_flags_with_absl()

# What pristine JAX says.
NONE_HAS_NO_SUCH_NAME = ("^AttributeError: 'NoneType' object has no attribute "
                         r"'_[lc]\w+'")

X = np.arange(4, dtype=np.float32)
Y = np.arange(4, dtype=np.float32) + 10


def run(computation, tensors):
  """Runs the HLO that PyTorch/XLA is given, on jaxlib's own client."""
  return run_module(computation.proto, [
      np.asarray(0 if i is None else tensors[i], dtype)
      for i, dtype in zip(computation.feeds, computation.feed_dtypes)])


def run_module(proto, arrays):
  backend = xla_bridge.get_backend('cpu')
  options = compiler.get_compile_options(num_replicas=1, num_partitions=1)
  code = xc._xla.mlir.xla_computation_to_mlir_module(
      xc.XlaComputation(proto))
  if hasattr(backend, 'compile_and_load'):
    devices = getattr(xc, 'DeviceList', None) or xc._xla.DeviceList
    executable = backend.compile_and_load(
        code, devices(tuple(backend.devices()[:1])), options)
  else:
    executable = backend.compile(code, options)
  results = executable.execute_sharded(
      [jax.device_put(a) for a in arrays])
  return [np.asarray(s) for s, in
          results.disassemble_into_single_device_arrays()]


def types(*arrays):
  return [(a.shape, a.dtype) for a in arrays]


@red(NONE_HAS_NO_SUCH_NAME, api_missing=True)
class CallJaxTest(jtu.JaxTestCase):

  def lower(self, *args):
    return torch_xla._lower(*args)

  @parameterized.named_parameters(
      ('some', lambda a, b, c: jnp.sum(a + c ** 2), (0, 2)),
      ('gradient', jax.grad(lambda a, b, c: jnp.sum(a + c ** 2), 2), (2,)),
      ('all', lambda a, b, c: a + b * c, (0, 1, 2)),
      ('none', lambda a, b, c: jnp.ones(3), (None,)),
      ('pytree', lambda a, b, c: {'p': c, 'q': (c + 1, None)}, (2,)),
      ('closed_over', lambda a, b, c: b * Y, (1,)))
  def test_lower(self, f, feeds):
    found = self.lower(f, types(X, X, Y))
    self.assertEqual(found.feeds, feeds)
    expected = f(X, X, Y)
    got = jax.tree.unflatten(found.out_tree, run(found, [X, X, Y]))
    self.assertEqual(jax.tree.structure(got), jax.tree.structure(expected))
    self.assertAllClose(got, expected, check_dtypes=False)

  def test_64_bits(self):
    i = np.arange(3)
    found = self.lower(lambda a, b: b + 1, types(i, i))
    self.assertEqual(found.feed_dtypes, (np.dtype(np.int32),))
    with jax._src.config.enable_x64(True):
      found = self.lower(lambda a, b: b + 1, types(i, i))
      self.assertEqual(found.feed_dtypes, (np.dtype(np.int64),))

  def test_effects_are_refused(self):
    def f(a):
      io_callback(lambda v: None, None, a, ordered=True)
      return a
    call = self.lower
    with self.assertRaisesRegex(ValueError, 'call_jax: .*takes a token'):
      call(f, types(X))

  @red("^AssertionError: Regex didn't match: "
       r"'\(\?s\)\^imported\\\\njax\\\\\.experimental\\\\\.torch_xla\\\\\.cal"
       'l_jax:', api_missing=True)
  def test_torch_is_imported_only_when_called(self):
    # In a process of its own, with a PyTorch that can't be imported.
    code = """if True:
      import sys
      class Refuse:
        def find_spec(self, name, path=None, target=None):
          if name.split(".")[0] in ("torch", "torch_xla", "torchax"):
            raise ImportError("refused " + name)
      sys.meta_path.insert(0, Refuse())
      from jax.experimental import torch_xla
      print("imported")
      try:
        torch_xla.call_jax(lambda a: a, (1,))
      except ImportError as e:
        print(e)
      """
    done = subprocess.run([sys.executable, '-c', code], text=True, check=False,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    self.assertRegex(done.stdout, r'(?s)^imported\njax\.experimental\.torch_xla'
                     r'\.call_jax: expected PyTorch.*refused torch.*Install')


@red(NONE_HAS_NO_SUCH_NAME, api_missing=True)
class StandInTest(jtu.JaxTestCase):
  """`call_jax` itself, on what stands in for PyTorch and PyTorch/XLA."""

  def setUp(self):
    super().setUp()
    found, self.calls = torch_stand_in.modules(run_module)
    self.enterContext(mock.patch.dict(sys.modules, found))
    torch_xla._cache.clear()

  def enterContext(self, context):  # Python 3.10 has none
    value = context.__enter__()
    self.addCleanup(context.__exit__, None, None, None)
    return value

  def call(self, f, *arrays, **kwargs):
    return torch_xla.call_jax(f, tuple(map(Tensor, arrays)), **kwargs)

  def test_only_what_is_used_is_passed(self):
    out = self.call(lambda a, b, c: a + c ** 2, X, X, Y)
    self.assertAllClose(out.array, X + Y ** 2)
    passed, = self.calls
    self.assertLen(passed, 2)
    self.call(jax.grad(lambda a, b, c: jnp.sum(a + c ** 2), 2), X, X, Y)
    self.assertAllClose(self.calls[-1], [Y])

  def test_traced_once_for_each_shape_and_dtype(self):
    traced = []
    def f(a, b):
      traced.append(a.shape)
      return b * 2
    for _ in range(2):
      self.call(f, X, Y)
    self.assertLen(traced, 1)
    self.call(f, X, Y[:2])
    self.call(f, X, Y.astype(np.int32))
    self.assertLen(traced, 3)
    torch_xla.call_jax(f, (), {'a': Tensor(X), 'b': Tensor(Y)})
    self.assertLen(traced, 4)
    self.assertLen(self.calls, 5)

  def test_one_name_for_functions_made_anew(self):
    for n in (1., 2.):
      out = self.call(lambda a, n=n: a + n, X, override_hash='mine')
      self.assertAllClose(out.array, X + 1.)

  def test_a_tensor_elsewhere_is_refused(self):
    with self.assertRaisesRegex(
        ValueError, r'call_jax: expected tensors on an XLA device, got .*1.* '
        r'on cpu:0\. Move it there'):
      torch_xla.call_jax(jnp.add, (Tensor(X), Tensor(Y, 'cpu')))
    self.assertEmpty(self.calls)

  def test_what_cannot_be_hashed_is_refused(self):
    with self.assertRaisesRegex(TypeError, 'hashable values, got .* of type '
                                'ndarray'):
      torch_xla.call_jax(jnp.add, (Tensor(X), Y))

  def test_64_bits_are_cast(self):
    out = self.call(lambda a: a + 1, np.arange(3))
    self.assertEqual(self.calls[-1][0].dtype, np.int32)
    self.assertAllClose(out.array, np.arange(1, 4, dtype=np.int32))

  def test_no_tensor(self):
    self.assertAllClose(torch_xla.call_jax(lambda: jnp.ones(2), ()).array,
                        np.ones(2, np.float32))
    self.assertLen(self.calls[-1], 1)  # PyTorch/XLA wants one at least
