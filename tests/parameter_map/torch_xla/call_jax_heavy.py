# SPDX-License-Identifier: Apache-2.0
"""`jax.experimental.torch_xla.call_jax` with the real PyTorch/XLA, on a CPU.

Not collected by itself: make_environment.py says how to run it.

The oracle is PyTorch on the CPU or NumPy, and torch_xla's own call_jax for what
the two pass. What reaches PyTorch/XLA is read off the HLO that it is given.
"""

import contextlib
import functools
import os
import sys
import types
from unittest import mock

os.environ['PJRT_DEVICE'] = 'CPU'
os.environ['JAX_PLATFORMS'] = 'cpu'

from absl.testing import absltest
from absl.testing import parameterized
import torch
import torch_xla
from torch_xla.core import xla_builder

import jax
from jax.experimental import io_callback
from jax.experimental import torch_xla as jax_torch_xla
import jax.numpy as jnp
import numpy as np

# torchax, which torch_xla's own call_jax needs and ours doesn't, imports flax
# to save checkpoints: left out here.
_checkpoint = types.ModuleType('torchax.checkpoint')
_checkpoint.save_checkpoint = _checkpoint.load_checkpoint = None
sys.modules.setdefault('torchax.checkpoint', _checkpoint)

call_jax = jax_torch_xla.call_jax


def xla(*values, dtype=torch.float32):
  return torch.tensor(values, dtype=dtype, device='xla')


@contextlib.contextmanager
def passed():
  """Collects the number of tensors of each call to a computation."""
  calls = []
  real = torch_xla._XLAC._xla_user_computation
  def spy(name, tensors, computation):
    calls.append(len(tensors))
    return real(name, tensors, computation)
  with mock.patch.object(torch_xla._XLAC, '_xla_user_computation', spy):
    yield calls


@contextlib.contextmanager
def given():
  """Collects the entry parameters of the computations that are made."""
  types_ = []
  real = xla_builder.computation_from_module_proto
  def spy(name, proto):
    made = real(name, proto)
    layout = xla_builder.get_computation_hlo(made).split('layout={(', 1)[1]
    types_.append(layout.split(')->', 1)[0])
    return made
  with mock.patch.object(xla_builder, 'computation_from_module_proto', spy):
    yield types_


class Traced:
  """Wraps a function and counts how often it is traced."""

  def __init__(self, f):
    self.f, self.count = f, 0

  def __call__(self, *args, **kwargs):
    self.count += 1
    return self.f(*args, **kwargs)


def f(a, b, c):
  return jnp.sum(a + c ** 2)


class CallJaxTest(parameterized.TestCase):

  def close(self, got, expected, dtype=torch.float32):
    self.assertEqual(got.device.type, 'xla')
    self.assertEqual(got.dtype, dtype)
    torch.testing.assert_close(
        got.cpu(), torch.as_tensor(expected, dtype=dtype))

  def test_documented_example(self):
    def g(a, b):
      return a + jnp.sin(b)
    a = torch.ones((3, 3), device='xla')
    self.close(call_jax(g, (a, a)), torch.sin(torch.ones(3, 3)) + 1)

  @parameterized.parameters((f, 2, 3, 11.), (jax.grad(f, 2), 1, 3, (2., 4.)))
  def test_fewer_parameters_than_theirs(self, fun, ours, theirs, expected):
    args = xla(1., 5.), xla(9., 9.), xla(1., 2.)
    for call, number in ((call_jax, ours), (xla_builder.call_jax, theirs)):
      with passed() as calls, given() as types_:
        got = call(fun, args)
      self.assertEqual(calls, [number])
      self.assertEqual(types_[0].count('f32[2]'), number)
      self.close(got, expected)

  def test_pytrees_and_keywords(self):
    def g(params, *, batch, unused):
      return {'out': params['w'] * batch[0], 'same': (batch[1], None)}
    w, x, y = xla(2., 3.), xla(4., 5.), xla(6., 7.)
    with passed() as calls:
      got = call_jax(g, ({'w': w, 'v': x},),
                     {'batch': [x, y], 'unused': {'z': w}})
    self.assertEqual(calls, [3])
    self.close(got['out'], (8., 15.))
    self.close(got['same'][0], (6., 7.))
    self.assertIsNone(got['same'][1])

  @parameterized.parameters(torch.bfloat16, torch.float16, torch.int32,
                            torch.uint8, torch.bool, torch.complex64)
  def test_dtypes(self, dtype):
    a = torch.tensor([1, 0, 1], dtype=dtype)
    got = call_jax(lambda u, x: jnp.where(x != 0, x, x),
                   (a.to('xla'), a.to('xla')))
    self.close(got, a, dtype)

  def test_64_bits_are_taken_as_32(self):
    got = call_jax(lambda i: i + 1, (xla(1, 2, dtype=torch.int64),))
    self.close(got, (2, 3), torch.int32)

  def test_x64(self):
    with mock.patch.dict(os.environ), jax._src.config.enable_x64(True):
      got = call_jax(lambda i: i + 1, (xla(1, 2 ** 40, dtype=torch.int64),))
      self.close(got, (2, 2 ** 40 + 1), torch.int64)

  def test_non_tensor_arguments(self):
    def g(a, n, scale, mode, dtype, nothing):
      assert nothing is None
      out = a * n if mode == 'times' else a + n
      return (out * scale).astype(dtype)
    a = xla(1., 2.)
    self.close(call_jax(g, (a, 3, 2., 'times', torch.int32, None)), (6, 12),
               torch.int32)
    self.close(call_jax(g, (a, 3, 2., 'plus', torch.float32, None)), (8., 10.))

  def test_equal_but_different_values(self):
    def g(a, n):
      return a + 1 if n is True else a + n / 2 if isinstance(n, float) else a
    a = xla(1.)
    self.close(call_jax(g, (a, 1)), (1.,))
    self.close(call_jax(g, (a, True)), (2.,))
    self.close(call_jax(g, (a, 1.)), (1.5,))

  def test_traced_once(self):
    g = Traced(lambda a, b, n: b * n)
    for i in range(4):
      a, b = xla(1., 2.), xla(float(i), 1.)
      self.close(call_jax(g, (a, b, 3)), (3. * i, 3.))
    self.assertEqual(g.count, 1)
    call_jax(g, (a, b, 4))  # another value
    self.assertEqual(g.count, 2)
    call_jax(g, (xla(1.), xla(2.), 3))  # another shape
    self.assertEqual(g.count, 3)
    call_jax(g, (a, b), {'n': 3})  # another structure
    self.assertEqual(g.count, 4)
    call_jax(g, (a, b, 3))  # the first again
    self.assertEqual(g.count, 4)

  def test_override_hash(self):
    g = Traced(lambda a, b: b + 1)
    a = xla(1., 2.)
    for _ in range(3):
      got = call_jax(functools.partial(g), (a, a), override_hash='mine')
      self.close(got, (2., 3.))
    self.assertEqual(g.count, 1)

  def test_result_structure_by_shape(self):
    # torch_xla's own keeps the structure of the last trace only.
    def g(x):
      return {'a': x} if x.shape[0] == 3 else (x, x + 1)
    for _ in range(2):
      self.assertIsInstance(call_jax(g, (xla(1., 2., 3.),)), dict)
      self.assertIsInstance(call_jax(g, (xla(1., 2.),)), tuple)

  def test_no_tensor_is_read(self):
    with given() as types_:
      got = call_jax(lambda a, b: jnp.arange(3.), (xla(*range(99)), xla(1.)))
    self.close(got, (0., 1., 2.))
    self.assertEqual(types_, ['f32[]'])

  def test_no_tensor_at_all(self):
    self.close(call_jax(lambda n: jnp.full(2, n), (5.,)), (5., 5.))

  def test_name(self):
    a = xla(1.)
    got = call_jax(lambda x: x + 1, (a,), name='my_computation')
    text = torch_xla._XLAC._get_xla_tensors_text([got])
    self.assertIn('xla::my_computation', text)

  def test_closed_over_array(self):
    constant = jnp.arange(2.)
    self.close(call_jax(lambda a, b: b * constant, (xla(9., 9.), xla(3., 4.))),
               (0., 4.))

  def test_custom_op(self):
    # As torch_xla documents it for kernels, with plain JAX in place of Pallas.
    library = torch.library.Library('mend_test', 'FRAGMENT')
    library.define('scale_by_norm(Tensor x, Tensor unused, float s) -> Tensor')
    def in_jax(x, unused, s):
      return x * s / jnp.linalg.norm(x)
    def on_xla(x, unused, s):
      return call_jax(in_jax, (x, unused, s))
    def elsewhere(x, unused, s):
      return x * s / torch.linalg.norm(x)
    library.impl('scale_by_norm', on_xla, 'XLA')
    library.impl('scale_by_norm', elsewhere, 'CompositeExplicitAutograd')
    x = torch.tensor([3., 4.])
    with passed() as calls:
      got = torch.ops.mend_test.scale_by_norm(x.to('xla'), x.to('xla'), 2.)
    self.assertEqual(calls, [1])
    self.close(got, torch.ops.mend_test.scale_by_norm(x, x, 2.))

  def test_autograd_function(self):
    def forward(x, w, unused):
      return jnp.sin(x) * w
    def backward(x, w, unused, g):
      return jax.vjp(forward, x, w, unused)[1](g)[:2]
    class Function(torch.autograd.Function):
      @staticmethod
      def forward(ctx, x, w, unused):
        ctx.save_for_backward(x, w, unused)
        return call_jax(forward, (x, w, unused))
      @staticmethod
      def backward(ctx, g):
        return *call_jax(backward, (*ctx.saved_tensors, g)), None
    x, w = torch.tensor([1., 2.]), torch.tensor([3., 4.])
    grads = []
    for run, device in ((Function.apply, 'xla'),
                        (lambda x, w, u: torch.sin(x) * w, 'cpu')):
      a = x.to(device).requires_grad_()
      b = w.to(device).requires_grad_()
      run(a, b, x.to(device)).sum().backward()
      grads.append((a.grad.cpu(), b.grad.cpu()))
    torch.testing.assert_close(*grads)

  def test_assume_pure(self):
    # torch_xla.experimental.assume_pure, whose two calls for the forward and
    # the backward pass hand JAX's vjp functions over: ours in place of theirs.
    from torch_xla.experimental import assume_pure
    def g(x, w):
      return torch.sin(x @ w).sum()
    x, w = torch.randn(2, 3), torch.randn(3, 4)
    results = []
    with mock.patch.object(xla_builder, 'call_jax', call_jax):
      for run, device in ((assume_pure.assume_pure(g), 'xla'), (g, 'cpu')):
        a = x.to(device).requires_grad_()
        b = w.to(device).requires_grad_()
        out = run(a, b)
        out.backward()
        results.append((out.detach().cpu(), a.grad.cpu(), b.grad.cpu()))
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)

  def test_training_loop(self):
    def step(params, batch, epoch):
      def loss(p):
        return jnp.mean((batch['x'] @ p['w'] - batch['y']) ** 2)
      value, grads = jax.value_and_grad(loss)(params)
      return value, jax.tree.map(lambda p, g: p - .1 * g, params, grads)
    step = Traced(step)
    rng = np.random.RandomState(0)
    x = rng.randn(16, 3).astype(np.float32)
    w = np.float32([[1.], [-2.], [3.]])
    batch = {k: torch.from_numpy(v).to('xla')
             for k, v in dict(x=x, y=x @ w, mask=x).items()}
    params = {'w': torch.zeros(3, 1, device='xla')}
    for i in range(60):
      loss, params = call_jax(
          step, (params, batch, torch.tensor(i, device='xla')))
      torch_xla.sync()
    self.assertEqual(step.count, 1)
    self.assertLess(loss.item(), 1e-2)
    np.testing.assert_allclose(params['w'].cpu().numpy(), w, atol=.2)

  def test_tensor_elsewhere(self):
    with self.assertRaisesRegex(ValueError, r'call_jax: .*args\[1\] on cpu'):
      call_jax(f, (xla(1.), torch.ones(1), xla(1.)))

  def test_unhashable(self):
    with self.assertRaisesRegex(TypeError, r"kwargs\['n'\] of type ndarray"):
      call_jax(lambda a, n: a, (xla(1.),), {'n': np.ones(3)})

  def test_effects(self):
    def g(a):
      io_callback(lambda v: None, None, a, ordered=True)
      return a
    with self.assertRaisesRegex(ValueError, 'call_jax: .*takes a token'):
      call_jax(g, (xla(1.),))


if __name__ == '__main__':
  absltest.main()
