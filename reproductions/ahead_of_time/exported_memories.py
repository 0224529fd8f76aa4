# SPDX-License-Identifier: Apache-2.0
"""A function whose result is in host memory, exported (jax#33649)."""

import jax
import numpy as np

REPORT = "jax#33649"


def exported():
  """An exported function with a result in pinned_host"""
  from jax import export
  try:
    place = jax.memory.Space.Host
  except AttributeError:
    from jax._src.sharding_impls import TransferToMemoryKind
    place = TransferToMemoryKind("pinned_host")
  f = jax.jit(lambda x: jax.device_put(x * 2, place))
  read = export.deserialize(export.export(f, platforms=("tpu",))(
      np.ones(4, np.float32)).serialize())
  assert '"pinned_host"' in read.mlir_module()
  return "it says pinned_host"
