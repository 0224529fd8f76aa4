# SPDX-License-Identifier: Apache-2.0
"""PyTorch/XLA calls JAX with every tensor (pytorch/xla#8794)."""

import contextlib
import sys
import types

import numpy as np

REPORT = "pytorch/xla#8794"


def _stand_in(called):
  """As much of PyTorch/XLA as is used, where it isn't installed."""
  class DType(str):
    pass

  class Tensor:
    device = types.SimpleNamespace(type="xla")

    def __init__(self, array):
      self.shape, self.dtype = array.shape, DType(array.dtype.name)

    def to(self, dtype):
      return self

  def as_function(text, name):
    def run(tensors):
      called.append((text, len(tensors)))
      return tensors[:1]
    return run

  torch, xla, inside, core = map(types.ModuleType, (
      "torch", "torch_xla", "torch_xla._internal", "torch_xla.core"))
  torch.Tensor, torch.dtype, torch.float32 = Tensor, DType, "float32"
  inside.jax_workarounds = types.SimpleNamespace(
      jax_import_guard=lambda: None, jax_env_context=contextlib.nullcontext)
  core.xla_builder = types.SimpleNamespace(
      computation_from_module_proto=lambda name, proto: proto,
      xla_computation_as_func=as_function)
  sys.modules.update({m.__name__: m for m in (torch, xla, inside, core)})
  return Tensor


def call_jax_passes_what_is_used():
  """call_jax for PyTorch/XLA leaves unused tensors out"""
  try:
    from jax.experimental import torch_xla
  except ImportError as e:
    raise AssertionError(
        "no jax.experimental.torch_xla: torch_xla's own call_jax lowers with "
        "keep_unused=True, 3 parameters where 2 suffice") from e
  called = []
  tensor = _stand_in(called)
  x = tensor(np.ones(3, np.float32))
  torch_xla.call_jax(lambda a, b, c: a + c, (x, x, x))
  (_, parameters), = called
  assert parameters == 2, f"{parameters} parameters where 2 suffice"
  return "2 parameters of 3 tensors"
