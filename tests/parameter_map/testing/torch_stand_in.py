# SPDX-License-Identifier: Apache-2.0
"""As much of PyTorch and PyTorch/XLA as `call_jax` uses, over NumPy arrays.

For machines without them. A computation is run by a function that is given, and
what it is called with is kept, to be counted.
"""
import contextlib
import types

import numpy as np


class DType:
  """A `torch.dtype`: known by its name."""

  def __init__(self, name):
    self.name = name

  def __str__(self):
    return f'torch.{self.name}'


class Device:

  def __init__(self, kind):
    self.type = kind

  def __str__(self):
    return f'{self.type}:0'


DTYPES = {name: DType(name) for name in ('float32', 'int32', 'int64',
                                         'float64', 'bool')}


class Tensor:
  """A tensor of a NumPy array, on a device that there needn't be."""

  def __init__(self, array, device='xla'):
    self.array = np.asarray(array)
    self.device = Device(device)
    self.shape = self.array.shape
    self.dtype = DTYPES[self.array.dtype.name]

  def to(self, dtype):
    return Tensor(self.array.astype(dtype.name), self.device.type)


def modules(run):
  """The modules to put into `sys.modules`, and the calls that will be made.

  Args:
    run: computes the arrays that a serialized HLO module gives, of a list of
      arrays, one for each parameter.

  Returns:
    The modules by name; a list to which each call adds its list of arrays.
  """
  calls = []

  def as_function(computation, name):
    def call(tensors):
      calls.append([t.array for t in tensors])
      return [Tensor(a) for a in run(computation, calls[-1])]
    return call

  torch = types.ModuleType('torch')
  torch.Tensor, torch.dtype = Tensor, DType
  vars(torch).update(DTYPES)
  torch.zeros = lambda shape, device: Tensor(
      np.zeros(shape, np.float32), device.type)
  torch_xla = types.ModuleType('torch_xla')
  torch_xla.device = lambda: Device('xla')
  internal = types.ModuleType('torch_xla._internal')
  internal.jax_workarounds = types.ModuleType('jax_workarounds')
  internal.jax_workarounds.jax_import_guard = lambda: None
  internal.jax_workarounds.jax_env_context = contextlib.nullcontext
  core = types.ModuleType('torch_xla.core')
  core.xla_builder = types.ModuleType('xla_builder')
  core.xla_builder.computation_from_module_proto = lambda name, proto: proto
  core.xla_builder.xla_computation_as_func = as_function
  return {'torch': torch, 'torch_xla': torch_xla,
          'torch_xla._internal': internal, 'torch_xla.core': core}, calls
