# SPDX-License-Identifier: Apache-2.0
"""Shardings of an exported function, on a mesh with another axis name."""
import jax
from jax import sharding as js
import numpy as np

REPORT = "jax#21314"


def other_name():
  """in_shardings_jax(mesh) of a mesh whose axis has another name"""
  from jax import export
  devices = np.array(jax.devices())
  x = js.NamedSharding(js.Mesh(devices, ("x",)), js.PartitionSpec("x"))
  exported = export.export(jax.jit(lambda v: v * 2, in_shardings=x))(
      np.arange(float(len(devices))))
  try:
    found, = exported.in_shardings_jax(js.Mesh(devices, ("a",)))
  except ValueError as e:
    raise AssertionError(str(e)[:90]) from e
  assert found.spec == js.PartitionSpec("a"), found
  return f"{found.spec}"
